# SPDX-License-Identifier: Apache-2.0
"""The accuracy records as tables: the worst seed of each program, and each bar met or missed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bounds import CALIBRATED, COVERS, DIRECT, REACH
from benchmarks.pages import measured_here, put_between

Record = dict[str, Any]

ESTIMATORS = ("calibrated", "direct", "strube", "random_direct")
_HEADS = ("calibrated", "direct", "thesis", "random")
_BEGIN, _END = "<!-- measured -->", "<!-- end -->"


def percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{100 * value:+.{digits}f} %"


def _size(value: float | None, digits: int = 1) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f} %"


def _worst(values: Iterable[float | None]) -> float | None:
    """The one farthest from zero, with its sign."""
    return max((v for v in values if v is not None), key=abs, default=None)


def _median(values: Iterable[float | None]) -> float | None:
    known = [abs(v) for v in values if v is not None]
    return statistics.median(known) if known else None


def line(record: Record) -> str:
    """One pair, as soon as it is measured."""
    name = f"{record['program']} seed {record['seed']}"
    if "failure" in record:
        return f"{name}: FAILED: {record['failure'].splitlines()[-1]}"
    errors = ", ".join(f"{head} {percent(record['errors'][e])}" for head, e in zip(_HEADS, ESTIMATORS, strict=True))
    said = "holds" if record["held"] else "DOES NOT HOLD"
    return (
        f"{name}: {record['native']:.2f} s, {record['phases']} phases; {errors}; ±{_size(record['reach'])} {said}; "
        f"selection {percent(record['selection_error'])}, restore {_size(record['restore_error'])}; "
        f"{record['bench_seconds']:.0f} s"
    )


def _programs(records: Sequence[Record]) -> list[list[Record]]:
    names = dict.fromkeys(r["program"] for r in records)
    return [[r for r in records if r["program"] == name] for name in names]


def _row(seeds: Sequence[Record]) -> list[str]:
    """A program: the worst of its seeds for errors, the median for sizes and times."""

    def middle(key: str) -> float:
        return statistics.median(r[key] for r in seeds)

    return [
        seeds[0]["program"], seeds[0]["kind"], f"{middle('native'):.2f}",
        *(percent(_worst(r["errors"][e] for r in seeds)) for e in ESTIMATORS),
        f"{sum(r['held'] for r in seeds)} of {len(seeds)}", f"±{_size(middle('reach'))}",
        _size(min(r["coverage"] for r in seeds)), f"{middle('phases'):.0f}",
        percent(_worst(r["selection_error"] for r in seeds), 2),
        percent(_worst(r["random_selection_error"] for r in seeds)),
        _size(_worst(r["restore_error"] for r in seeds)), f"{middle('size_bytes') / 1e6:.1f}",
        f"{middle('probing_seconds'):.1f}", f"{middle('tracing'):.2f}",
    ]  # fmt: skip


COLUMNS = (
    "program", "kind", "native s", *_HEADS, "interval holds", "interval", "coverage", "phases", "selection",
    "selection, random", "restore", "MB", "probing s", "tracing",
)  # fmt: skip


def _table(rows: Sequence[Sequence[str]]) -> str:
    head = [list(COLUMNS), ["---"] * len(COLUMNS)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*head, *rows])


def bars(records: Sequence[Record]) -> list[tuple[bool, str, str]]:
    """Each bar: whether it is met, what it asks for, what was measured."""
    good = [r for r in records if "native" in r]
    programs = _programs(good)
    found = []
    for estimator, bar in (("calibrated", CALIBRATED), ("direct", DIRECT)):
        worst = [w for p in programs if (w := _worst(r["errors"][estimator] for r in p)) is not None]
        median, most = statistics.median(map(abs, worst)), max(map(abs, worst))
        asked = f"{estimator}, worst seed: median of the programs <= {bar.median:.1%}, worst <= {bar.worst:.0%}"
        found.append((median <= bar.median and most <= bar.worst, asked, f"{median:.2%}, {most:.1%}"))
    held = sum(r["held"] for r in good) / len(good)
    found.append((held >= COVERS, f"95 % interval holds the full run in >= {COVERS:.0%}", f"{held:.1%} of {len(good)}"))
    reach = statistics.median(r["reach"] for r in good)
    found.append((reach <= REACH, f"95 % interval, median, at most ±{REACH:.0%}", f"±{reach:.1%}"))
    for rival, name in (("strube", "thesis estimator"), ("random_direct", "random intervals")):
        both = [r["errors"] for r in good if r["errors"][rival] is not None]
        if not both:
            continue
        ours, theirs = [e["calibrated"] for e in both], [e[rival] for e in both]
        pairs = [(_median(ours), _median(theirs)), (abs(_worst(ours) or 0.0), abs(_worst(theirs) or 0.0))]
        better = all(a is not None and b is not None and a < b for a, b in pairs)
        measured = "; ".join(f"{_size(a, 2)} against {_size(b, 2)}" for a, b in pairs)
        found.append((better, f"calibrated better than the {name}, median and worst pair", measured))
    failed = [f"{r['program']} seed {r['seed']}" for r in records if "failure" in r]
    found.append((not failed, "every pair is measured", ", ".join(failed) or f"{len(good)}"))
    return found


def tables(records: Sequence[Record]) -> str:
    """The table, and the bars, as text that is Markdown as well."""
    good = [r for r in records if "native" in r]
    if not good:
        return "no records"
    rows = [_row(seeds) for seeds in _programs(good)]
    judged = [f"| {'met' if met else '**SHORT**'} | {asked} | {said} |" for met, asked, said in bars(records)]
    failed = [f"- {line(r)}" for r in records if "failure" in r]
    return "\n".join(
        [_table(rows), "", "| | bar | measured |", "|---|---|---|", *judged, *([""] if failed else []), *failed]
    )


def write(path: Path, records: Sequence[Record]) -> None:
    """Put the tables, with machine and date, in place of those in the page: between its two marks."""
    seeds = len({r["seed"] for r in records})
    disturbed = sum(1 for r in records if not r.get("quiet", True))
    written = f", written {time.strftime('%Y-%m-%d')}"
    head = (
        f"{measured_here((r['date'] for r in records), written)}; {seeds} seeds, intervals of "
        f"{records[0]['interval_seconds'] * 1e3:g} ms. {disturbed} of {len(records)} pairs began on a machine that was "
        "not quiet."
    )
    put_between(path, _BEGIN, _END, f"\n{head}\n\n{tables(records)}")
