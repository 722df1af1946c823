# SPDX-License-Identifier: Apache-2.0
"""`probe plan` from a store: what can be predicted is chosen from, what cannot is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_runs import computing, made_runs, mpi
from published import schema_errors

from checkpoint.errors import ProbeError, Unpredictable
from probe.applications.application import read_application
from probe.cli.main import cli
from probe.scaling.planning import propose
from probe.store.opening import Store, open_store
from probe.store.runs import set_power, store_runs

FUSION = """
name = "fusion"
[kernel.gem]
parameters = { steps = 1 }
work = "steps"
[kernel.micro]
parameters = { copies = 6 }
work = "0.1*copies/copies"
[compose]
graph = "seq(gem, farm(copies, micro))"
"""


@pytest.fixture
def fusion(tmp_path: Path) -> Path:
    path = tmp_path / "fusion.toml"
    path.write_text(FUSION)
    return path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """haswell is slower and draws less; zen has two sizes of gem, too few; phi has no runs."""
    with open_store(tmp_path / "store.db") as opened:
        for kernel in ("gem", "micro"):
            store_runs(opened, made_runs((1, 2, 4, 8, 16), kernel=kernel, watts=5.0))
            store_runs(opened, made_runs((1, 2, 4, 8, 16), kernel=kernel, node_type="skylake", factor=0.5, watts=20.0))
        store_runs(opened, made_runs((1, 2), node_type="zen"))
        set_power(opened, "haswell", 8, [(0, 10), (1, 40)], "hand")
        yield opened


def test_the_fastest_and_the_cheapest(store: Store, fusion: Path) -> None:
    application = read_application(fusion)
    fast = propose(store, application, (4, 8, 16, 32), {"steps": 2.0})
    gem, micro = fast.planned.best.choices
    assert (gem.node_type, gem.cores) == ("skylake", 32)
    assert gem.seconds == pytest.approx(2 * (0.5 * computing(32) + mpi(32)), rel=0.02)
    turns = -(-6 // micro.places)
    assert fast.planned.best.seconds == pytest.approx(gem.seconds + turns * micro.seconds)
    assert any("fusion.gem on zen" in reason for reason in fast.refused)
    cheap = propose(store, application, (4, 8, 16, 32), {}, objective="energy").planned.best
    assert {choice.node_type for choice in cheap.choices} == {"haswell"}
    waited = propose(store, application, (16,), {}, waits={"skylake": 1e6}).planned.best
    assert waited.choices[0].node_type == "haswell"
    with pytest.raises(ProbeError, match="gem: there is no type"):
        propose(store, application, (16,), {}, types=["phi"])


def test_a_pilot_job_is_no_larger_than_allowed(store: Store, fusion: Path) -> None:
    found = propose(store, read_application(fusion), (4, 16), {})
    for plan in found.planned.front:
        assert plan.choices[1].taken in (4, 16)


def test_the_command(store: Store, fusion: Path) -> None:
    asked = ["plan", str(fusion), "--cores", "4..32", "--store", str(store.path), "--set", "steps=3"]
    shown = CliRunner().invoke(cli, [*asked, "--pareto", "--wait", "skylake=1m"], catch_exceptions=False)
    assert "gem 32 skylake" in shown.stdout and "none of" in shown.stdout and "left out: fusion.gem" in shown.stdout
    for more in ([], ["--pareto"]):
        done = CliRunner().invoke(cli, [*asked, "--json", *more], catch_exceptions=False)
        said = json.loads(done.stdout)
        assert schema_errors("probe-plan", said) == []
        assert bool(said["front"]) == bool(more)
        assert said["best"]["energy_source"] == said["best"]["choices"][0]["energy_source"] != ""
    assert CliRunner().invoke(cli, [*asked, "--wait", "skylake"]).exit_code == 2


def test_why_there_is_no_plan(store: Store, fusion: Path) -> None:
    with pytest.raises(Unpredictable, match=r"that can be predicted: .* times away from those"):
        propose(store, read_application(fusion), [100_000], {})
