# SPDX-License-Identifier: Apache-2.0
"""The tables of emulations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks import arguments
from benchmarks.emulation import measurement, there
from benchmarks.emulation.report import EXPERIMENTS, tables
from made_usage import made_usage

from probe.emulation.kernels import COMPUTING, MOVING
from probe.emulation.plan import EmulateOptions


def record(**changes: Any) -> dict[str, Any]:
    overhead = {"length": 2.0, "rate": 5, "pairs": 3, "wall": 0.01, "cpu": 0.005, "noise": 0.001, "cpu_spread": 0.01}
    totals = {"cpu_seconds": 0.01, "read": None, "written": 0.0, "resident": -0.02}
    emulated = {"name": "awk", "equal": "work", "seconds": 6.0, "wall": 0.04, "totals": totals}
    rows: dict[str, list[dict[str, Any]]] = {
        "E.1": [{**overhead, **changes}], "E.2": [{**emulated, **changes}],
        "E.3": [
            {"kernel": "the program itself", "seconds": 2.0, "cpu": 1.0, "instructions": 4_000_000_000},
            {"kernel": "matrix", "seconds": 2.2, "cpu": 1.0, "instructions": 5_000_000_000},
            {"kernel": "chase", "seconds": 2.0, "cpu": 1.0, "instructions": None},
            {"kernel": "dgemm", "failure": "this node has no OpenBLAS"},
        ],
        "E.4": [
            {"threads": 1, "ranks": 1, "seconds": 4.0, "program": 3.0},
            {"threads": 2, "ranks": 1, "seconds": 2.0, "program": 1.5},
            {"threads": 1, "ranks": 2, "seconds": 2.5, "program": None},
        ],
        "E.5": [{"file_system": "tmpfs", "block": 4096, "read": 0.01, "written": 0.1}],
        "start": [{"rounds": 3, "median": 0.01, "worst": 0.02}],
        "there": [
            {"name": "one", "there": 2.0, "errors": {"matrix": 0.4, "chase": -0.2, "auto": 0.1}, "real": 0.11},
            {"name": "two", "failure": "no such program"},
        ],
    }  # fmt: skip
    return {name: {"load": 0.5, "quick": name == "E.5", "rows": found} for name, found in rows.items()}


def test_rows_and_bars() -> None:
    said = tables(record())
    assert "| 2 s | 5/s | 3 | +1.0 % | +0.5 % | 0.1 % | 1.0 % |" in said
    assert "Overhead below 1% or the noise: met. Spread below 2%: met." in said
    assert "| awk | work | 6.00 s | +4.0 % | +1.0 % | - | +0.0 % | -2.0 % |" in said
    assert "Wall within 5%: met. Each resource within 5%: met." in said
    assert "| matrix | 2.20 s | 1.00 s | 5.00e9 | +10.0 % | +0.0 % | +25.0 % |" in said
    assert "| chase | 2.00 s | 1.00 s | not known | +0.0 % | +0.0 % | - |" in said
    assert "| dgemm | this node has no OpenBLAS | - | - | - | - | - |" in said
    assert "| 2 | 1 | 2.00 s | 2.00 | 1.50 s | 2.00 |" in said and "| 1 | 2 | 2.50 s | 1.60 | - | - |" in said
    assert "| one | 2.00 s | +40.0 % | -20.0 % | +10.0 % | +11.0 % |" in said
    assert (
        "auto better than the best fixed (chase): met." in said and "| two | no such program | - | - | - | - |" in said
    )
    assert "| tmpfs | 4 KiB | 10 ms | 100 ms |" in said
    assert "below 0.1 s: met" in said and "Cycles: not measured without hardware counters" in said
    assert said.count("Load average before: 0.50.") == len(EXPERIMENTS) and said.count("Short form.") == 1
    assert tables({}) == "nothing is measured yet"
    assert tuple(EXPERIMENTS) == arguments.EXPERIMENTS


def test_what_falls_short_is_called_so() -> None:
    assert "or the noise: SHORT. Spread below 2%: met" in tables(record(cpu=0.02))
    assert "or the noise: met" in tables(record(cpu=0.02, noise=0.03))
    assert "Spread below 2%: SHORT" in tables(record(cpu_spread=0.03))
    assert "Wall within 5%: SHORT. Each resource within 5%: met" in tables(record(wall=-0.06))
    totals = {"cpu_seconds": 0.06, "read": 0.0, "written": 0.0, "resident": 0.0}
    assert "Each resource within 5%: SHORT" in tables(record(totals=totals))
    assert "no bar applies" in tables(record(seconds=4.0))


def test_what_is_measured(tmp_path: Path) -> None:
    (row,) = [r for r in measurement.blocks({"here": tmp_path}) if r["block"] == measurement.BLOCKS[-1]]
    assert row["read"] > 0 and row["written"] > 0
    assert measurement.start_up(tmp_path, 2)["rounds"] == 2
    wall, used = measurement.plain(["true"])
    assert used >= 0 and wall > 0


def test_instructions_are_those_of_valgrind() -> None:
    found = measurement.instructions(["true"])
    assert found is not None and 10_000 < found < 10_000_000
    assert measurement.instructions(["false"]) is None


def test_a_node_is_predicted_by_its_rates() -> None:
    """A node where one kernel is twice as fast, and nothing else is."""
    rates = dict.fromkeys([*COMPUTING, *MOVING], 1e5)
    usage = made_usage(10, rates, cpu_kernel=0.0, read=0.0, written=0.0, resident=4096.0)
    given = EmulateOptions(kernel="chase", threads=1)
    here = there.predicted(usage, given, rates)
    assert here == pytest.approx(0.4, rel=0.01)
    assert there.predicted(usage, given, {**rates, "chase": 2e5}) == pytest.approx(0.2, rel=0.01)
    assert there.predicted(usage, given, {**rates, "matrix": 2e5}) == pytest.approx(here)


def test_an_experiment_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments.read_arguments(["emulation", "--only", "E.9"])
    assert "no experiment E.9; there are: E.1, " in capsys.readouterr().err
