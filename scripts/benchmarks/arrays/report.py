# SPDX-License-Identifier: Apache-2.0
"""Records of array kernels as a table, and each bar met or missed."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy.report import percent
from benchmarks.arrays.measurement import ESTIMATORS
from benchmarks.pages import measured_here, put_between
from benchmarks.threads.measurement import refusal

Record = dict[str, Any]

_BEGIN, _END = "<!-- arrays -->", "<!-- end of arrays -->"
_WIDTH = 120

COUNTED, DIRECT, SECONDS = 0.95, 0.03, (2.0, 5.0)
"""Bars: least counted share of the instructions, largest error of the direct estimator, and how long a kernel takes."""

_HEADS = (
    "kernel", "native s", "counted", *ESTIMATORS, "interval", "holds", "tracing", "phases", "build s",
)  # fmt: skip


def line(record: Record) -> str:
    """A record, as soon as it is measured."""
    if said := refusal(record):
        return f"{record['program']}: refused: {said}"
    if "failure" in record:
        return f"{record['program']}: FAILED: {record['failure'].splitlines()[-1]}"
    held = "holds" if record["held"] else "DOES NOT HOLD"
    return (
        f"{record['program']}: {record['truth']:.2f} s, {record['counted_share']:.1%} counted; direct "
        f"{_error(record, 'direct')}, combined {_error(record, 'combined')} ±{record['half_width']:.1%} {held}; "
        f"{record['bench_seconds']:.0f} s"
    )


def tables(records: Sequence[Record]) -> str:
    """A row for each kernel that was predicted; then the bars, what was refused, and what was warned of."""
    good = [r for r in records if "truth" in r]
    lines = [*_table(good), *bars(records), *_lost(records)]
    lines += [
        f"{r['program']}: took {r['truth']:.2f} s" for r in good if not SECONDS[0] <= r["truth"] <= SECONDS[1]
    ]  # fmt: skip
    return "\n".join([*lines, *(f"warned: {r['program']}: {text}" for r in good for text in r["warnings"])])


def write(page: Path, records: Sequence[Record]) -> None:
    """Put the table and the bars, with machine and dates, between the page's marks. Raises ValueError."""
    good = [r for r in records if "truth" in r]
    if not good:
        return
    head = f"{measured_here(r['date'] for r in records)}."
    said = [f"- {text}" for text in (*bars(records), *_lost(records))]
    wrapped = [textwrap.fill(text, _WIDTH, subsequent_indent="  ") for text in said]
    put_between(page, _BEGIN, _END, "\n".join([textwrap.fill(head, _WIDTH), "", *_table(good), "", *wrapped]))


def _table(good: Sequence[Record]) -> list[str]:
    return [f"| {' | '.join(_HEADS)} |", f"|{' --- |' * len(_HEADS)}", *(_row(r) for r in good)]


def _lost(records: Sequence[Record]) -> list[str]:
    """Kernels without a prediction, in the tool's words."""
    lines = [f"refused: {r['program']}: {said}" for r in records if (said := refusal(r))]
    return lines + [f"FAILED: {r['program']}: {r['failure'].splitlines()[-1]}" for r in records if _failed(r)]


def bars(records: Sequence[Record]) -> list[str]:
    """Each bar: met or missed, and by which kernels. A kernel without a direct estimate misses that bar."""
    judged = [r for r in records if not _failed(r)]
    good = [r for r in judged if "truth" in r]
    if not good:
        return []
    refused = [r["program"] for r in judged if refusal(r)]
    thin = [r["program"] for r in good if r["counted_share"] < COUNTED]
    far = [r["program"] for r in good if r["errors"]["direct"] is None or abs(r["errors"]["direct"]) > DIRECT]
    direct = [abs(r["errors"]["direct"]) for r in good if r["errors"]["direct"] is not None]
    least = min(r["counted_share"] for r in good)
    worst = f"{max(direct):.2%}" if direct else "none"
    held = sum(r["held"] for r in good)
    return [
        _bar("none refused", f"{len(refused)} of {len(judged)}", refused),
        _bar(f"counted share >= {COUNTED:.0%}", f"least {least:.1%}", thin),
        _bar(f"direct estimator within {DIRECT:.0%}", f"worst {worst}", far),
        f"no bar: interval holds the mean of the full runs: {held} of {len(good)}, median half width "
        f"{statistics.median(r['half_width'] for r in good):.1%}",
    ]


def _bar(asked: str, value: str, short: Sequence[str]) -> str:
    return f"{'MISSED' if short else 'met'}: {asked}: {value}{': ' * bool(short)}{', '.join(short)}"


def _failed(record: Record) -> bool:
    return "failure" in record and not refusal(record)


def _row(record: Record) -> str:
    cells = (
        record["program"],
        f"{record['truth']:.2f}",
        f"{record['counted_share']:.1%}",
        *(_error(record, name) for name in ESTIMATORS),
        f"±{record['half_width']:.1%}",
        "yes" if record["held"] else "**no**",
        f"{record['tracing']:.2f}",
        str(record["phases"]),
        f"{record['build_seconds']:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def _error(record: Record, name: str) -> str:
    found = record["errors"][name]
    return "-" if found is None else percent(found)
