# SPDX-License-Identifier: Apache-2.0
"""Draw docs/hosts.md from the recorded rows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.hosts.processor import key
from benchmarks.hosts.recorded import Row
from benchmarks.pages import put_between

BEGIN, END = "<!-- rows: drawn by scripts/bench hosts -->", "<!-- end of rows -->"
_NONE = "No row yet: `scripts/bench hosts --build` on a quiet machine makes the probes, `scripts/bench hosts` the rows."
_HELD, _MEDIAN, _WORST = 0.93, 0.03, 0.08
"""Bars, for rows on processors unlike the one built on: share of intervals that hold, errors."""

_HEADS = (
    "program", "kind", "full run / s", "this / built on", "predicted / s", "95 % interval", "calibrated", "direct",
    "thesis", "holds",
)  # fmt: skip
_ESTIMATORS = ("calibrated", "direct", "strube")


def line(row: Row) -> str:
    """One row, as soon as it is measured."""
    if "failure" in row:
        return f"{row['program']}: no prediction: {row['failure']}"
    said = "holds" if row["held"] else "DOES NOT HOLD"
    return (
        f"{row['program']}: predicted {row['predicted']:.3f} s ({row['low']:.3f} to {row['high']:.3f}), measured "
        f"{statistics.mean(row['full']):.3f} s: {row['error']:+.1%}, interval {said}"
    )


def named(processor: dict[str, Any]) -> str:
    """A processor in one phrase."""
    last = max(processor["caches"].items(), default=("", "no known cache"))[1]
    numbers = f"{processor['family']}/{processor['model']}/{processor['stepping']}"
    wide = "AVX-512" if "avx512f" in processor["features"] else "AVX2" if "avx2" in processor["features"] else "no AVX2"
    return f"{processor['name']} ({numbers}, {last} last-level cache, {wide})"


def tables(rows: Sequence[Row]) -> str:
    """The rows by processor and by what their probes were built on, and how they stand against the bars."""
    if not rows:
        return _NONE
    parts = []
    for host in dict.fromkeys(key(row["host"]) for row in rows):
        mine = [row for row in rows if key(row["host"]) == host]
        parts.append(f"### {named(mine[0]['host'])}")
        for built_on in dict.fromkeys(key(row["built_on"]) for row in mine):
            alike = [row for row in mine if key(row["built_on"]) == built_on]
            parts.append(f"{_where(alike, built_on == host)}\n\n{_table(alike)}")
    return "\n\n".join([*parts, _bars(rows)])


def _where(rows: Sequence[Row], same: bool) -> str:
    built = "The probes were built on this processor" if same else f"Built on: {named(rows[0]['built_on'])}"
    noise = [row["noise"] for row in rows if "noise" in row]
    spreads = [f"{statistics.median(n[what] for n in noise):.1%} for a {what}" for what in ("hash", "copy") if noise]
    quiet = f" 90 % of equal work lies within {', '.join(spreads)}." if spreads else ""
    return f"{built};\nkernel {rows[0]['host']['kernel']}, {rows[0]['date']}.{quiet}"


def _table(rows: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(_HEADS)} |", "|---" * len(_HEADS) + "|"]
    for row in rows:
        if "failure" in row:
            lines.append(f"| {row['program']} | {row['kind']} | | | none: {row['failure'].split(';')[0]} | | | | | |")
            continue
        errors = " | ".join(f"{row['errors'][n]:+.1%}" if n in row["errors"] else "-" for n in _ESTIMATORS)
        mark = " (other files)" * bool(row["other_files"])
        lines.append(
            f"| {row['program']}{mark} | {row['kind']} | {statistics.mean(row['full']):.2f} | {row['ratio']:.3f} | "
            f"{row['predicted']:.2f} | {row['low']:.2f} to {row['high']:.2f} | {errors} | "
            f"{'yes' if row['held'] else '**no**'} |"
        )
    return "\n".join(lines)


def _bars(rows: Sequence[Row]) -> str:
    unlike = [row for row in rows if key(row["host"]) != key(row["built_on"])]
    failed = sum("failure" in row for row in unlike)
    unlike = [row for row in unlike if "failure" not in row]
    if not unlike:
        return "No row yet is of a processor unlike the one built on: the bars cannot be judged."
    errors = [abs(row["error"]) for row in unlike]
    held = sum(row["held"] for row in unlike)
    return (
        f"On processors unlike the one built on: {held} of {len(unlike)} intervals hold (bar {_HELD:.0%}); errors\n"
        f"{statistics.median(errors):.1%} in the median (bar {_MEDIAN:.0%}), worst {max(errors):.1%} "
        f"(bar {_WORST:.0%}). {failed} more had no prediction."
    )


def write(page: Path, rows: Sequence[Row]) -> None:
    """Put the tables between the page's marks."""
    put_between(page, BEGIN, END, f"\n{tables(rows)}\n")
