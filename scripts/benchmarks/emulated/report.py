# SPDX-License-Identifier: Apache-2.0
"""The records of the emulated node as a table, and each bar met or missed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.accuracy.report import percent
from benchmarks.bounds import EMULATED, EMULATED_COVERS

Record = dict[str, Any]

_ESTIMATORS = {
    "calibrated": "calibrated",
    "direct": "direct",
    "strube": "thesis",
    "random_calibrated": "random, calibrated",
    "random_direct": "random, direct",
}


def line(record: Record) -> str:
    """One program, as soon as it is measured."""
    if "failure" in record:
        return f"{record['name']}: FAILED: {record['failure']}"
    p = record["prediction"]
    errors = ", ".join(f"{head} {percent(record['errors'].get(name))}" for name, head in _ESTIMATORS.items())
    return (
        f"{record['name']}: {record['restored']} of {record['phases']} phases restored, predicted {p['seconds']:.2f} s "
        f"({p['low']:.2f} to {p['high']:.2f}), measured {statistics.median(record['full']):.2f} s; {errors}; "
        f"95 % {'holds' if record['held'] else 'DOES NOT HOLD'}; restore {record['restore_median'] * 1e3:.0f} ms"
    )


def tables(records: Sequence[Record]) -> str:
    """A row for each program, and the bars."""
    heads = ["program", "phases", "predicted", "measured", *_ESTIMATORS.values(), "95 % interval", "restore, median"]
    rows = [heads, ["---"] * len(heads), *map(_row, sorted(records, key=lambda r: r["name"]))]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    good = [r for r in records if "failure" not in r]
    return f"{table}\n\n{_bars(good)}" if good else table


def _row(record: Record) -> list[str]:
    name = record["name"].partition("-")[2]
    if "failure" in record:
        return [name, "FAILED", record["failure"].splitlines()[-1][:120], *["-"] * (len(_ESTIMATORS) + 3)]
    p = record["prediction"]
    return [
        name, f"{record['restored']} of {record['phases']}", f"{p['seconds']:.2f} s",
        f"{statistics.median(record['full']):.2f} s", *(percent(record["errors"].get(e)) for e in _ESTIMATORS),
        f"{'holds' if record['held'] else '**does not hold**'}, ±{100 * (p['high'] / p['seconds'] - 1):.1f} %",
        f"{record['restore_median'] * 1e3:.0f} ms",
    ]  # fmt: skip


def _bars(records: Sequence[Record]) -> str:
    found = {
        head: [abs(r["errors"][name]) for r in records if r["errors"].get(name) is not None]
        for name, head in _ESTIMATORS.items()
    }
    lines = ["| | median | worst | programs |", "|---|---|---|---|"]
    for head, errors in found.items():
        if errors:
            lines.append(f"| {head} | {statistics.median(errors):.2%} | {max(errors):.1%} | {len(errors)} |")
    held = sum(r["held"] for r in records)
    met = statistics.median(found["calibrated"]) <= EMULATED.median and max(found["calibrated"]) <= EMULATED.worst
    lines.append(
        f"\nCalibrated within {EMULATED.median:.0%} in the median and {EMULATED.worst:.0%} at worst: "
        f"{'met' if met else 'SHORT'}. Interval holds {held} of {len(records)} (at least {EMULATED_COVERS:.0%}): "
        f"{'met' if held >= EMULATED_COVERS * len(records) else 'SHORT'}."
    )
    return "\n".join(lines)
