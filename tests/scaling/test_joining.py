# SPDX-License-Identifier: Apache-2.0
"""Curves for types of nodes without parallel runs, by what a probe measured of one thread."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_runs import computing, made_runs, mpi
from published import schema_errors
from results import result

from checkpoint.errors import NoPrediction, Unpredictable
from probe.cli.main import cli
from probe.scaling.joining import joined, probe_ratio
from probe.scaling.model import fit_kernel
from probe.store.describing import describe_node
from probe.store.importing import import_results
from probe.store.opening import Store, open_store
from probe.store.runs import store_runs

FUSION = """
name = "fusion"
[kernel.gem]
command = "gem"
parameters = { steps = 1 }
work = "steps"
probe = "solver"
[kernel.ets]
work = "2"
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Two nodes of the type haswell, one in the cluster skylake, which is 1.6 times as slow."""
    with open_store(tmp_path / "store.db") as opened:
        for node, seconds in (("n1", 10.0), ("n2", 10.2), ("n3", 16.16)):
            import_results(opened, [result(seconds, node=node, probe="solver")], name="solver")
        for node in ("n1", "n2"):
            describe_node(opened, node, features=["haswell"])
        describe_node(opened, "n3", cluster="skylake")
        store_runs(opened, made_runs((1, 2, 4, 8, 16, 32), 2, 0.01))
        yield opened


def test_the_ratio_of_a_probe(store: Store) -> None:
    found = probe_ratio(store, "solver", "haswell", "skylake")
    assert found.value == pytest.approx(1.6) and 0.02 < found.error < 0.2
    assert (found.nodes_a, found.nodes_b) == (("n1", "n2"), ("n3",))
    with pytest.raises(NoPrediction, match="no prediction on a node of type 'zen'"):
        probe_ratio(store, "solver", "haswell", "zen")


def test_a_curve_without_one_parallel_run(store: Store) -> None:
    model = joined(fit_kernel(made_runs((1, 2, 4, 8, 16, 32))), probe_ratio(store, "solver", "haswell", "skylake"))
    predicted = model.predict(16, 1.0)
    assert predicted.seconds == pytest.approx(1.6 * computing(16) + mpi(16), rel=1e-3)
    assert predicted.low < 1.45 * computing(16) + mpi(16) and predicted.high > 1.75 * computing(16) + mpi(16)
    assert any("without a curve of its own" in warning for warning in predicted.warnings)
    simulated = model.predict(16, 1.0, mpi_seconds=2.5)
    assert simulated.seconds == pytest.approx(1.6 * computing(16) + 2.5, rel=1e-3)


def test_runs_correct_the_ratio(store: Store) -> None:
    """One core's ratio was 1.6, all cores' is 1.8: two runs there say so, and narrow the interval."""
    base = fit_kernel(made_runs((1, 2, 4, 8, 16, 32), 3, 0.02))
    ratio = probe_ratio(store, "solver", "haswell", "skylake")
    before = joined(base, ratio).predict(16, 1.0)
    seen = made_runs((8, 16), node_type="skylake", factor=1.8)
    after = joined(base, ratio, seen)
    predicted = after.predict(16, 1.0)
    assert predicted.seconds == pytest.approx(1.8 * computing(16) + mpi(16), rel=0.05)
    assert predicted.high - predicted.low < before.high - before.low
    assert any("corrected by" in warning for warning in after.warnings)


def test_scale_predict_joins(store: Store, tmp_path: Path) -> None:
    (tmp_path / "fusion.toml").write_text(FUSION)
    asked = ["scale", "predict", str(tmp_path / "fusion.toml"), "--kernel", "gem", "--node-type", "skylake"]
    asked += ["--cores", "16", "--store", str(store.path)]
    alone = CliRunner().invoke(cli, asked)
    assert isinstance(alone.exception, Unpredictable) and "no runs on skylake" in str(alone.exception)
    done = CliRunner().invoke(cli, [*asked, "--like", "haswell", "--set", "steps=2", "--json"], catch_exceptions=False)
    said = json.loads(done.stdout)
    assert schema_errors("probe-scale-predict", said) == []
    found = said["predictions"][0]
    assert found["seconds"] == pytest.approx(2 * (1.6 * computing(16) + mpi(16)), rel=0.05)
    assert found["low"] < found["seconds"] < found["high"] and found["joules"] is None
