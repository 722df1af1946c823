# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/figures.md about the instruction-exact tracers, from the records there are."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from benchmarks.exact.measurement import COLLECTOR_RECORD, Record

NATIVE_BAR, EXP_BBV_BAR, EVENTS_BAR = 8.0, 1.5, 200e6
SAME_MEDIAN_BAR, SAME_WORST_BAR = 0.01, 0.03
_SAID = 100


def difference(record: Record) -> float:
    """How far the two probes' predictions are apart, each against its own ET_ref: the machine may have drifted."""
    exact, native = (record[kind]["seconds"] / record[kind]["et_ref"] for kind in ("exact", "native"))
    return float(exact / native - 1)


def report(names: Sequence[str], load: Callable[[str], Record | None]) -> str:
    """Two tables: the programs `names` that have a record, and the bars."""
    records = [record for name in names if (record := load(name))]
    lines = [
        "| program | native s | Valgrind tool / native | exp-bbv / Valgrind tool | intervals, native and exact "
        "| phases | same phases | selection error | predictions apart |",
        "|---|---|---|---|---|---|---|---|---|",
        *map(_row, records),
        "",
        "| bar | measured |",
        "|---|---|",
    ]
    if costs := [record["cost"] for record in records if "cost" in record]:
        slower = [cost["valgrind"] / cost["native"] for cost in costs]
        faster = [cost["exp_bbv"] / cost["valgrind"] for cost in costs]
        lines += [
            f"| Valgrind tool at most {NATIVE_BAR:.0f} times native, median of the programs | "
            f"{statistics.median(slower):.1f} ({min(slower):.1f} to {max(slower):.1f}): "
            f"{_met(statistics.median(slower) <= NATIVE_BAR)} |",
            f"| at least {EXP_BBV_BAR} times faster than exp-bbv in the same run | {min(faster):.2f} to "
            f"{max(faster):.2f}, median {statistics.median(faster):.2f}: {_met(min(faster) >= EXP_BBV_BAR)} |",
        ]
    if apart := [abs(difference(record)) for record in records if "exact" in record]:
        median, worst = statistics.median(apart), max(apart)
        lines.append(
            f"| native and exact predict the same: {SAME_MEDIAN_BAR:.0%} in the median, {SAME_WORST_BAR:.0%} worst | "
            f"{100 * median:.2f} %: {_met(median <= SAME_MEDIAN_BAR)}; {100 * worst:.2f} %: "
            f"{_met(worst <= SAME_WORST_BAR)} |"
        )
    if record := load(COLLECTOR_RECORD):
        lines += _collector(record)
    return "\n".join(lines)


def _collector(record: Record) -> list[str]:
    tenth, end = record["kilobytes_after_a_tenth"], record["kilobytes_at_the_end"]
    return [
        f"| collector: {EVENTS_BAR / 1e6:.0f} million block events per second from memory | "
        f"{record['events_per_second'] / 1e6:.0f} million: {_met(record['events_per_second'] >= EVENTS_BAR)} |",
        f"| profile of 10^13 instructions: memory does not grow | {tenth} kB after a tenth, {end} kB at the end: "
        f"{_met(end <= tenth)}. {record['intervals_recorded']} intervals "
        f"and {record['blocks']:,} blocks recorded of {record['recorded_from'][0].rpartition('/')[2]}, "
        f"{record['passes']:,} times; {record['bytes_written'] / 1e6:.0f} MB of stream |",
    ]


def _row(record: Record) -> str:
    name = record["name"].removeprefix("exact-")
    if "cost" not in record:
        return f"| {name} | {record['failure'][:_SAID]} | | | | | | | |"
    c = record["cost"]
    cells = [name, f"{c['native']:.2f}", f"{c['valgrind'] / c['native']:.1f}", f"{c['exp_bbv'] / c['valgrind']:.2f}"]
    if "same_phases" not in record:
        return f"| {' | '.join(cells)} | {record['failure'][:_SAID]} | | | | |"
    both = [record[kind] for kind in ("native", "exact")]
    cells += [", ".join(f"{one[key]}" for one in both) for key in ("intervals", "phases")]
    cells += [f"{record['same_phases']:.2f}", ", ".join(f"{100 * one['selection_error']:+.2f} %" for one in both)]
    return f"| {' | '.join(cells)} | {100 * difference(record):+.2f} % |"


def _met(reached: bool) -> str:
    return "met" if reached else "**missed**"
