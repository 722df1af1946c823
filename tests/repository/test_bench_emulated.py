# SPDX-License-Identifier: Apache-2.0
"""The tables of the emulated node."""

from __future__ import annotations

from typing import Any

from benchmarks.emulated import report as emulated_report

FAILED = {"name": "instructions-two", "failure": "StorageError: a disk\nis full"}


def record(error: float, *, held: bool = True) -> dict[str, Any]:
    return {
        "name": "instructions-one", "phases": 3, "restored": 2, "full": [10.0], "held": held, "restore_median": 0.01,
        "prediction": {"seconds": 10.0 * (1 + error), "low": 9.0, "high": 11.0},
        "errors": {"calibrated": error, "direct": -error, "strube": 0.2, "random_calibrated": 0.3},
    }  # fmt: skip


def test_rows_and_bars() -> None:
    said = emulated_report.tables([FAILED, record(0.02)])
    assert (
        "| one | 2 of 3 | 10.20 s | 10.00 s | +2.0 % | -2.0 % | +20.0 % | +30.0 % | - | holds, ±7.8 % | 10 ms |" in said
    )
    assert "| two | FAILED | is full |" in said and "| calibrated | 2.00% | 2.0% | 1 |" in said
    assert said.endswith("at worst: met. Interval holds 1 of 1 (at least 90%): met.")


def test_what_falls_short_is_called_so() -> None:
    said = emulated_report.tables([record(0.05), record(0.01), record(0.11, held=False)])
    assert said.endswith("at worst: SHORT. Interval holds 2 of 3 (at least 90%): SHORT.")


def test_where_all_failed_there_are_no_bars() -> None:
    assert "median" not in emulated_report.tables([FAILED]).partition("\n")[2]
