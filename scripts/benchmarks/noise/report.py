# SPDX-License-Identifier: Apache-2.0
"""The records of quiet and disturbed machines as tables, beside the bars."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.noise.competitor import KIND
from benchmarks.noise.offline import predicted
from benchmarks.noise.recorded import DISTURBED, QUIET, Record
from benchmarks.pages import put_between

BARS = {
    QUIET: {"median half width": 0.015, "worst error": 0.04},
    DISTURBED: {"median half width": 0.04, "worst half width": 0.12, "median error": 0.02, "worst error": 0.06},
}
COVERS = 0.93
_BEGIN, _END = "<!-- noise -->", "<!-- end of noise -->"
_HEADS = (
    "program",
    "state",
    "full runs, mean",
    "spread",
    "predicted",
    "error",
    "interval",
    "holds",
    "single runs held",
    "by medians",
    "build s",
    "run s",
)


def error(record: Record) -> float:
    """Of what is predicted today, relative to the mean of the full runs."""
    return predicted(record).seconds / float(record["truth"]) - 1


def half_width(record: Record) -> float:
    return predicted(record).half_width


def holds(record: Record) -> bool:
    said = predicted(record)
    return bool(said.low <= record["truth"] <= said.high)


def single(record: Record) -> float:
    """Share of the full runs that the interval holds, one by one."""
    said = predicted(record)
    return statistics.fmean(said.low <= seconds <= said.high for seconds in record["full"])


def line(record: Record) -> str:
    """One record, as soon as it is measured."""
    name = f"{record['program']}, {record['state']}"
    if "failure" in record:
        return f"{name}: FAILED: {record['failure'].splitlines()[-1]}"
    said = "holds" if holds(record) else "DOES NOT HOLD"
    return f"{name}: {error(record):+.1%}, ±{half_width(record):.1%} {said}; {record['bench_seconds']:.0f} s"


def figures(records: Sequence[Record]) -> dict[str, float]:
    """What the bars are about."""
    errors, widths = [abs(error(r)) for r in records], [half_width(r) for r in records]
    return {
        "median half width": statistics.median(widths),
        "worst half width": max(widths),
        "median error": statistics.median(errors),
        "worst error": max(errors),
    }


def tables(records: Sequence[Record]) -> str:
    """A row for each record, and the bars of each state with enough to judge them by."""
    good = [r for r in records if "failure" not in r]
    rows = [_HEADS, ("---",) * len(_HEADS), *(_row(r) for r in good)]
    text = ["| " + " | ".join(row) + " |" for row in rows]
    text += ["", "| | bar | measured |", "|---|---|---|"]
    for state, bars in BARS.items():
        mine = [r for r in good if r["state"] == state]
        if not mine:
            continue
        found = figures(mine)
        for name, bar in bars.items():
            said = "met" if found[name] <= bar else "**SHORT**"
            text.append(f"| {said} | {state}: {name} <= {bar:.1%} | {found[name]:.1%} of {len(mine)} |")
        held = sum(map(holds, mine)) / len(mine)
        said = "met" if held >= COVERS else "**SHORT**"
        text.append(f"| {said} | {state}: interval holds in >= {COVERS:.0%} | {held:.0%} |")
        one = statistics.fmean(map(single, mine))
        said = "met" if one >= COVERS else "**SHORT**"
        text.append(f"| {said} | {state}: single runs held, >= {COVERS:.0%} | {one:.0%} |")
    failed = [r["program"] for r in records if "failure" in r]
    return "\n".join(text + [f"\nFailed: {', '.join(failed)}."] * bool(failed))


def _row(record: Record) -> tuple[str, ...]:
    full, said = record["full"], predicted(record)
    return (
        record["program"],
        record["state"],
        f"{record['truth']:.2f} s",
        f"{statistics.stdev(full) / record['truth']:.1%}",
        f"{said.seconds:.2f} s",
        f"{error(record):+.1%}",
        f"±{half_width(record):.1%}",
        "yes" if holds(record) else "**no**",
        f"{single(record):.0%}",
        _before(record),
        f"{record['seconds']['build']:.0f}",
        f"{record['seconds']['run']:.0f}",
    )


def _before(record: Record) -> str:
    """Error and half width that the same repeats gave before reference runs were stamped."""
    found = predicted(record, stamped=False)
    held = found.low <= record["truth"] <= found.high
    return f"{found.seconds / record['truth'] - 1:+.1%} ±{found.half_width:.1%}{'' if held else ', **no**'}"


def write(page: Path, records: Sequence[Record]) -> None:
    """Put the tables between the page's marks."""
    put_between(page, _BEGIN, _END, f"Competitor: {KIND}.\n\n{tables(records)}")
