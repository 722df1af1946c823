# SPDX-License-Identifier: Apache-2.0
"""`scripts/bench mpi`: turns of runs and ranks alone, records that are not measured again, tables, bars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.mpi import measurement, report
from benchmarks.mpi.programs import ARGUMENTS, NAMES, SOURCES, compiled
from mpi_programs import allow_root


def row(name: str, seconds: float = 4.1, **more: Any) -> dict[str, Any]:
    made = {
        "name": name, "load": 0.2, "plain": [4.0, 4.1, 3.9], "recorded": [4.02, 4.0, 4.1], "contents": [4.3, 4.2, 4.1],
        "computing": [[3.0, 2.0], [3.1, 2.0], [2.9, 2.0]], "alone": [[3.03, 1.8], [3.0, 1.9], [3.1, 1.7]],
        "calls": 1000, "answers": 2_000_000, "walls": [4.0, 4.0, 4.2], "clusters": 2, "cluster_errors": [-0.012],
        "prediction": {"seconds": seconds, "low": seconds - 0.2, "high": seconds + 0.2}, "warnings": [],
        "bench_seconds": 60.0,
    }  # fmt: skip
    return made | more


def test_each_program_has_a_source_and_a_size() -> None:
    for name in NAMES:
        assert any((SOURCES / f"{name}.{kind}").exists() for kind in ("c", "f90")) and ARGUMENTS[name]


@pytest.mark.parametrize(("name", "arguments"), [("cg", ("40000", "60")), ("ocean", ("900",))])
def test_turns_have_every_run_of_c_and_fortran(
    name: str, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No figure is compared: the machine may be busy."""
    allow_root(monkeypatch)
    monkeypatch.chdir(tmp_path)
    made = measurement.by_turns(compiled(name, tmp_path), arguments, tmp_path, 2)
    assert {key: len(made[key]) for key in ("plain", "recorded", "contents")} == dict.fromkeys(
        ("plain", "recorded", "contents"), 2
    )
    assert [len(turn) for key in ("computing", "alone") for turn in made[key]] == [2] * 4
    for turn in range(2):
        # A rank's CPU time is part of its run, whose times begin and end where those of the calls do.
        assert all(0 < one < made["recorded"][turn] for one in made["computing"][turn])
        assert all(one > 0 for one in made["alone"][turn])
    assert made["calls"] > 2 * 60 and made["answers"] > 1000
    assert not (tmp_path / "ends").exists() and (tmp_path / "recording" / "recording.json").is_file()


def test_what_has_a_record_is_not_measured_again(tmp_path: Path) -> None:
    for made in (row("cg"), {"name": "fft", "failure": "ValueError: no"}):
        (tmp_path / f"{made['name']}.json").write_text(json.dumps(made))
    assert measurement.due(["cg", "fft", "halo"], tmp_path, False) == ["fft", "halo"]
    assert measurement.due(["cg"], tmp_path, True) == ["cg"]
    assert [r["name"] for r in measurement.load_all(["halo", "fft", "cg"], tmp_path)] == ["fft", "cg"]


def test_a_program_that_cannot_be_measured_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARGUMENTS, "nothing", ())
    (made,) = measurement.measure(["nothing"], tmp_path, lambda _: None)
    assert "CalledProcessError" in made["failure"] and "FAILED" in report.line(made)
    assert [path.name for path in tmp_path.iterdir()] == ["nothing.json"]


def test_tables_have_rows_and_bars() -> None:
    records = [row("cg"), row("halo", 5.0), {"name": "fft", "failure": "OSError: no"}]
    said = report.tables(records)
    assert (
        "| cg | 4.00 | +0.5 % | +5.0 % | 1,000 | 2.0 | +1.0 %, -10.0 % | 4.10 | 4.00 | +2.5 % | yes | -1.2 % |" in said
    )
    assert "met: recorder without contents, worst of 2 programs below 2%: 0.5%" in said
    assert "MISSED: recorder with contents, worst of 2 programs below 2%: 5.0%" in said
    assert "MISSED: CPU time of 4 ranks alone at once over recorded computing, median within 3%: 5.5%" in said
    assert "met: CPU time of 4 ranks alone at once over recorded computing, worst within 10%: 10.0%" in said
    assert "MISSED: whole predictions of 2 programs, median within 5%: 13.7%" in said
    assert "MISSED: interval holds in 90%: 50.0%" in said and "| 5.00 | 4.00 | +25.0 % | NO |" in said
    assert "FAILED: fft: OSError: no" in said and "warned: cg: busy" in report.tables([row("cg", warnings=["busy"])])
    assert "DOES NOT HOLD" not in report.line(row("cg")) and "DOES NOT HOLD" in report.line(row("halo", 5.0))
    assert report.tables([])
