# SPDX-License-Identifier: Apache-2.0
"""Resource profiles and emulations in the store: kept apart from predictions, on each kind of database."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from documentation import check_keys
from made_usage import made_usage
from results import result
from stores import server, store, url

from checkpoint.errors import NotInStore, ProbeError
from probe.cli.main import cli
from probe.emulation.usage import save_usage
from probe.store.emulations import (
    LEAST_RUNS,
    foretold,
    import_emulations,
    import_usages,
    interval_of,
    stored_emulations,
    stored_usages,
)
from probe.store.importing import import_results
from probe.store.observing import observe
from probe.store.opening import Store
from probe.store.reading import find_node, find_probe

__all__ = ["server", "store", "url"]


def emulated(seconds: float, **changes: Any) -> dict[str, Any]:
    """What `probe emulate --json` prints, of the program and on the node of `result`."""
    one = result(1.0)
    node = {key: one["node"][key] for key in ("name", "cpu", "cores", "kernel", "load")}
    totals = [{"name": "cpu_seconds", "unit": "s", "profiled": 2.0, "wanted": 2.0, "emulated": 2.01}]
    return {
        "format_version": 1, "method": "emulation", "profile": "x/solver.usage", "program": list(one["program"]),
        "tags": [{"name": "size", "value": "big"}], "node": node, "profiled_on": "n0",
        "prediction": {"seconds": seconds, "low": None, "high": None}, "equal": "work", "kernel": "matrix",
        "threads": 2, "samples": 3, "start_seconds": 0.01, "totals": totals, "warnings": ["one"], **changes,
    }  # fmt: skip


def test_the_newest_emulation_of_each_node_is_given_out(store: Store) -> None:
    first = import_emulations(store, [emulated(10.0), emulated(9.0)], made_at=100.0)
    assert len(first.stored) == 2 and first.known == 0
    assert import_emulations(store, [emulated(9.0)], made_at=200.0).known == 1
    import_emulations(store, [emulated(8.0)], made_at=300.0, node="other", cluster="north")
    found = stored_emulations(store, program=result(1.0)["program"])
    assert [(one.node, one.seconds, one.cluster) for one in found] == [
        ("other", 8.0, "north"), (result(1.0)["node"]["name"], 9.0, ""),
    ]  # fmt: skip
    assert found[0].low is None and found[0].high is None and found[0].name == "solver"
    assert found == stored_emulations(store, name="solver")
    assert stored_emulations(store, name="none") == [] == stored_emulations(store, program=["none"])


def test_an_emulation_on_a_node_that_has_changed_is_stale(store: Store) -> None:
    import_emulations(store, [emulated(10.0)], made_at=100.0)
    changed = emulated(9.0, program=["another"])
    changed["node"]["kernel"] = "7.7"
    import_emulations(store, [changed], made_at=200.0)
    (found,) = stored_emulations(store, program=result(1.0)["program"])
    assert "changed since" in found.stale


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format_version": 2}, "version 1 .format_version: 2"),
        ({"prediction": {"seconds": 0.0}}, "an emulation of 0 s"),
        ({"prediction": {"seconds": -1.0}}, "an emulation of -1 s"),
        ({"prediction": {"seconds": math.nan}}, "not a whole result"),
        ({"prediction": {}}, "not a whole result"),
        ({"program": 5}, "not a whole result"),
        ({"tags": [5]}, "not a whole result"),
        ({"threads": "many"}, "not a whole result"),
        ({"threads": 1 << 40}, "1099511627776 is no number of threads"),
        ({"threads": 1.5}, "1.5 is no number of threads"),
        ({"threads": "2"}, "2 is no number of threads"),
        ({"kernel": "a\0b"}, "not a whole result"),
        ({"node": {}}, "not a whole result"),
        ({"load": [{"name": "cpu", "value": 1}]}, "under artificial load stands for no run"),
        ({"totals": [{"name": "written", "profiled": 2.0, "wanted": 4.0}]}, "another written than profiled"),
    ],
)
def test_what_is_no_emulation(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    from probe.store.opening import open_store

    with open_store(tmp_path / "store.db") as opened:
        with pytest.raises(ProbeError, match=said):
            import_emulations(opened, [emulated(1.0), emulated(2.0, **changes)], made_at=1.0)
        assert stored_emulations(opened, name="solver") == []


def test_profiles_with_their_spread(store: Store) -> None:
    runs = [made_usage(10), made_usage(10, cpu_user=0.05), made_usage(10, cpu_user=0.06)]
    runs[2] = replace(runs[2], header=replace(runs[2].header, tags={"size": "small"}))
    assert len(import_usages(store, runs).stored) == 3
    assert import_usages(store, runs[:1]).known == 1
    found = stored_usages(store)
    assert [(one.tags["size"], one.runs, one.node) for one in found] == [("big", 2, "n1"), ("small", 1, "n1")]
    cpu = next(metric for metric in found[0].metrics if metric.name == "cpu_seconds")
    assert (cpu.mean, cpu.least, cpu.most) == (pytest.approx(0.55), pytest.approx(0.5), pytest.approx(0.6))
    assert next(m for m in found[1].metrics if m.name == "cpu_seconds").deviation is None


def test_no_interval_until_enough_runs_were_foretold(store: Store) -> None:
    import_results(store, [result(10.0)], made_at=50.0, name="solver")
    import_emulations(store, [emulated(10.0)], made_at=100.0)
    probe, node = find_probe(store, "solver"), find_node(store, result(1.0)["node"]["name"])
    observe(store, probe, node, 11.0, observed_at=99.0)
    assert foretold(store) == []
    for number in range(LEAST_RUNS):
        (found,) = stored_emulations(store, name="solver")
        assert found.low is None and found.high is None
        observe(store, probe, node, 11.0 + 0.1 * number, observed_at=200.0 + number)
    assert len(foretold(store, probe=probe, node=node)) == LEAST_RUNS
    (found,) = stored_emulations(store, name="solver")
    assert found.low is not None and found.high is not None
    # Emulations were too fast: the interval begins with the emulated time itself, and holds what was observed.
    assert found.low == 10.0 and 11.9 < found.high < 13.0


def test_an_interval_is_that_of_one_more_run() -> None:
    ratios = [math.exp(0.1 * (number - 4.5)) for number in range(10)]
    found = interval_of(100.0, ratios)
    assert found is not None
    # Student's t of nine degrees of freedom is 2.262, the ratios' deviation 0.3028.
    half = 2.262 * 0.3028 * math.sqrt(1.1)
    assert found == (pytest.approx(100 * math.exp(-half), rel=1e-3), pytest.approx(100 * math.exp(half), rel=1e-3))
    assert interval_of(100.0, ratios[1:]) is None


def test_the_commands(tmp_path: Path) -> None:
    place = ["--store", str(tmp_path / "store.db")]

    def said(*words: str | Path) -> str:
        done = CliRunner().invoke(cli, [*map(str, words), *place])
        assert done.exit_code == 0, done.output
        return done.stdout

    save_usage(made_usage(10), tmp_path / "solver.usage")
    (tmp_path / "here.json").write_text(json.dumps(emulated(9.5)))
    there = {"format_version": 1, "candidates": [{"result": emulated(8.0)}, {"result": None}]}
    (tmp_path / "there.json").write_text(json.dumps(there))
    files = [tmp_path / name for name in ("solver.usage", "here.json", "there.json")]
    imported = json.loads(said("store", "import", *files, "--json"))
    check_keys(imported, "probe store import --json")
    assert (imported["stored"], imported["emulations"], imported["profiles"], imported["known"]) == (0, 2, 1, 0)
    assert "0 predictions, 0 profiles stored, 3 were there already" in said("store", "import", *files)
    check_keys(json.loads(said("store", "usages", "--json")), "probe store usages --format json")
    assert "size=big" in said("store", "usages")
    # Without a probe of that name there are emulations alone.
    assert "emulations, which are no predictions:" in said("rank", "solver")
    assert "prefer the probe" not in said("rank", "solver")
    (tmp_path / "probed.json").write_text(json.dumps(result(10.0)))
    said("store", "import", tmp_path / "probed.json", "--name", "solver")
    ranked = json.loads(said("rank", "solver", "--json"))
    check_keys(ranked, "probe rank --format json")
    assert [one["seconds"] for one in ranked["candidates"]] == [10.0]
    assert [one["seconds"] for one in ranked["emulations"]] == [8.0]
    assert "prefer the probe" in said("rank", "solver")
    said("store", "observe", "solver", result(1.0)["node"]["name"], "12")
    calibrated = json.loads(said("store", "calibration", "--method", "emulation", "--json"))
    check_keys(calibrated, "probe store calibration --format json")
    assert calibrated["calibration"][-1]["bias"] == pytest.approx(0.5)
    assert calibrated["calibration"][-1]["held"] is None
    said("store", "calibration", "--method", "emulation")
    assert isinstance(CliRunner().invoke(cli, ["rank", "none", *place]).exception, NotInStore)
