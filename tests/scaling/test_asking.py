# SPDX-License-Identifier: Apache-2.0
"""`probe scale` from a store: fits of every kernel and type, predictions of the composed application, energy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_runs import computing, made_runs, mpi
from published import schema_errors

import probe
from checkpoint.errors import Unpredictable
from probe.applications.application import read_application
from probe.cli.main import cli
from probe.scaling.asking import Question, fit_application, predict_application
from probe.scaling.judging import usual_power
from probe.store.opening import Store, open_store
from probe.store.runs import set_power, store_runs

FUSION = """
name = "fusion"
[kernel.gem]
parameters = { steps = 1 }
work = "steps"
[kernel.ets]
parameters = { steps = 1 }
work = "2*steps"
[kernel.imp]
work = "1"
[compose]
graph = "loop(ets, par(gem, imp))"
"""


@pytest.fixture
def fusion(tmp_path: Path) -> Path:
    path = tmp_path / "fusion.toml"
    path.write_text(FUSION)
    return path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        for kernel in ("gem", "ets", "imp"):
            watts = 14.35 if kernel == "gem" else None
            store_runs(opened, made_runs((1, 2, 4, 8, 16, 32), 2, 0.01, kernel=kernel, watts=watts))
        store_runs(opened, made_runs((1, 2), node_type="skylake"))
        yield opened


def at(x: float) -> float:
    return computing(x) + mpi(x)


def test_a_composed_application(store: Store, fusion: Path) -> None:
    """ets, with twice the work, and then gem beside imp: the longer one counts."""
    application = read_application(fusion)
    found = predict_application(store, application, Question("haswell", {"steps": 3.0}), (16, 64))
    assert [one.cores for one in found] == [16, 64]
    for one in found:
        assert one.seconds == pytest.approx(9 * at(one.cores), rel=0.05)
        assert one.low < one.seconds < one.high
        assert {k.kernel: k.predicted.work for k in one.kernels} == {"gem": 3, "ets": 6, "imp": 1}


def test_energy_is_of_runs_or_of_nodes_or_unknown(store: Store, fusion: Path) -> None:
    application = read_application(fusion)
    (before,) = predict_application(store, application, Question("haswell", {}), (16,))
    assert before.energy is None and before.kernels[1].energy is None
    gem = before.kernels[0]
    assert gem.energy and gem.energy.source == "accounting"
    assert gem.energy.share == pytest.approx(14.35 * 16 * gem.predicted.seconds, rel=1e-6)
    set_power(store, "haswell", 24, [(0, 100), (1, 300)], "published")
    (after,) = predict_application(store, application, Question("haswell", {}), (16,))
    ets = after.kernels[1]
    assert ets.energy and ets.energy.source == "published"
    assert ets.energy.whole == pytest.approx((100 + 200 * 16 / 24) * ets.predicted.seconds)
    assert after.energy and after.energy.source == "accounting, published"
    whole = after.kernels[0].energy
    assert whole and whole.whole == pytest.approx(whole.share * 24 / 16)


@pytest.mark.parametrize(
    ("graph", "counted"),
    [
        ("seq(gem, ets, imp)", (1, 1, 1)), ("loop(3, seq(gem, loop(2, ets)), imp)", (3, 6, 3)),
        ("seq(replica(8, gem), farm(5, ets), imp)", (8, 5, 1)), ("loop(steps, par(gem, ets), imp)", (3, 3, 3)),
    ],
)  # fmt: skip
def test_energy_of_repetitions_and_copies_counts(
    graph: str, counted: tuple[int, ...], store: Store, fusion: Path
) -> None:
    fusion.write_text(FUSION.replace("loop(ets, par(gem, imp))", graph))
    set_power(store, "haswell", 24, [(0, 100), (1, 300)], "published")
    asked = Question("haswell", {"steps": 3.0})
    (found,) = predict_application(store, read_application(fusion), asked, (16,))
    parts = [one.energy for one in found.kernels]
    assert found.energy
    for name in ("whole", "share"):
        each = sum(times * getattr(part, name) for times, part in zip(counted, parts, strict=True))
        assert getattr(found.energy, name) == pytest.approx(each)


def test_energy_of_parallel_kernels_on_shared_nodes_is_the_largest(store: Store, fusion: Path) -> None:
    fusion.write_text(FUSION + 'nodes = "shared"\n')
    set_power(store, "haswell", 24, [(0, 100), (1, 300)], "published")
    (found,) = predict_application(store, read_application(fusion), Question("haswell", {}), (16,))
    gem, ets, imp = (one.energy for one in found.kernels)
    assert gem and ets and imp and found.energy
    assert found.energy.share == pytest.approx(ets.share + max(gem.share, imp.share))


def test_watts_are_of_the_most_trusted_source() -> None:
    """One run by accounting beside many by IPMI."""
    counted = made_runs((1, 2, 4), 3, watts=20.0)
    other = [replace(run, energy=2 * (run.energy or 0), energy_source="ipmi") for run in counted]
    assert usual_power([*other, counted[0]]) == (pytest.approx(20.0), "accounting")
    assert usual_power(other) == (pytest.approx(40.0), "ipmi")
    assert usual_power(made_runs((1, 2, 4))) is None


def test_fits_of_every_kernel_and_type(store: Store, fusion: Path) -> None:
    found = fit_application(store, read_application(fusion))
    assert [(m.kernel, m.node_type) for m in found.models] == [(k, "haswell") for k in ("gem", "ets", "imp")]
    assert [(one.kernel, one.node_type) for one in found.refused] == [("gem", "skylake")]
    assert "2 different numbers of cores" in found.refused[0].reason
    with pytest.raises(Unpredictable, match=r"gem: fusion\.gem on skylake"):
        fit_application(store, read_application(fusion), kernels=["gem"], node_type="skylake")


def test_commands(store: Store, fusion: Path) -> None:
    where = ["--store", str(store.path)]
    done = CliRunner().invoke(cli, ["scale", "fit", str(fusion), "--json", *where], catch_exceptions=False)
    assert schema_errors("probe-scale-fit", json.loads(done.stdout)) == []
    plain = CliRunner().invoke(cli, ["scale", "fit", str(fusion), *where], catch_exceptions=False)
    assert "/x" not in plain.stdout and "x^-1" in plain.stdout and "none: gem: fusion.gem on skylake" in plain.stdout
    asked = ["scale", "predict", str(fusion), "--node-type", "haswell", "--cores", "16..64", *where]
    shown = CliRunner().invoke(cli, asked, catch_exceptions=False)
    assert "efficiency from 16 to 64 cores" in shown.stdout and "all" in shown.stdout
    said = json.loads(CliRunner().invoke(cli, [*asked, "--json"], catch_exceptions=False).stdout)
    assert schema_errors("probe-scale-predict", said) == []
    assert [one["cores"] for one in said["predictions"]] == [16, 32, 64]
    partly = [*asked, "--cores", "64..256"]
    some = json.loads(CliRunner().invoke(cli, [*partly, "--json"], catch_exceptions=False).stdout)
    assert schema_errors("probe-scale-predict", some) == []
    assert [one["cores"] for one in some["predictions"]] == [64, 128]
    assert [one["cores"] for one in some["refused"]] == [256] and "8 times away" in some["refused"][0]["reason"]
    assert "none on 256 cores: " in CliRunner().invoke(cli, partly, catch_exceptions=False).stdout
    far = CliRunner().invoke(cli, [*asked, "--cores", "512"])
    assert isinstance(far.exception, Unpredictable) and far.exception.exit_code == 34
    wrong = CliRunner().invoke(cli, [*asked, "--set", "stpes=3"])
    assert "no kernel has such a parameter" in str(wrong.exception)
    for cores in ("0", "4..2", "a", "1,,2"):
        assert CliRunner().invoke(cli, [*asked, "--cores", cores]).exit_code == 2


def test_the_python_interface_says_what_the_commands_say(store: Store, fusion: Path) -> None:
    url = str(store.path)
    said = CliRunner().invoke(cli, ["scale", "predict", str(fusion), "--node-type", "haswell", "--cores", "8,16",
        "--set", "steps=3", "--store", url, "--json"], catch_exceptions=False)  # fmt: skip
    found = probe.predict_scaling(fusion, "haswell", [16, 8], settings={"steps": 3}, store=url)
    assert [one.to_json() for one in found] == json.loads(said.stdout)["predictions"]
    fitted = probe.fit_scaling(fusion, kernels=["gem"], node_type="haswell", store=url)
    assert [model.kernel for model in fitted.models] == ["gem"]
    planned = probe.plan_scaling(fusion, [4, 8], node_types=["haswell"], store=url).planned
    assert planned.best.seconds <= min(one.seconds for one in planned.front) + 1e-9
