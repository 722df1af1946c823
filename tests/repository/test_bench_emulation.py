# SPDX-License-Identifier: Apache-2.0
"""The tables of emulations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.emulation import measurement
from benchmarks.emulation.report import tables


def record(**changes: Any) -> dict[str, Any]:
    overhead = {"length": 2.0, "rate": 5, "pairs": 3, "wall": 0.01, "cpu": 0.005, "noise": 0.001, "cpu_spread": 0.01}
    totals = {"cpu_seconds": 0.01, "read": None, "written": 0.0, "resident": -0.02}
    emulated = {"name": "awk", "equal": "work", "seconds": 6.0, "wall": 0.04, "totals": totals}
    return {
        "load": 0.5, "overhead": [{**overhead, **changes}], "emulated": [{**emulated, **changes}],
        "threads": [{"threads": 1, "seconds": 4.0}, {"threads": 2, "seconds": 2.0}],
        "blocks": [{"file_system": "tmpfs", "block": 4096, "read": 0.01, "written": 0.1}],
        "start_up": {"rounds": 3, "median": 0.01, "worst": 0.02},
    }  # fmt: skip


def test_rows_and_bars() -> None:
    said = tables(record())
    assert "| 2 s | 5/s | 3 | +1.0 % | +0.5 % | 0.1 % | 1.0 % |" in said
    assert "Overhead below 1% or the noise: met. Spread below 2%: met." in said
    assert "| awk | work | 6.00 s | +4.0 % | +1.0 % | - | +0.0 % | -2.0 % |" in said
    assert "Wall within 5%: met. Each resource within 5%: met." in said
    assert "| 2 | 2.00 s | 2.00 |" in said and "| tmpfs | 4 KiB | 10 ms | 100 ms |" in said
    assert "below 0.1 s: met" in said and "E.3 (cycles on two machines, by hardware counters): not measured" in said


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
