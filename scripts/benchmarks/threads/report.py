# SPDX-License-Identifier: Apache-2.0
"""Rows of programs with several threads, restores and disturbed repeats as tables, and each bar met or missed."""

from __future__ import annotations

import re
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy.report import percent
from benchmarks.pages import measured_here, put_between
from benchmarks.threads.measurement import refusal

Record = dict[str, Any]

MEDIAN, WORST, COVERS, TRACING, TIMING = 0.02, 0.05, 0.93, 1.10, 1.03
"""Bars of the errors of two threads on the node itself, of the interval, and of the cost of both runs."""

FLAGGED, QUIET = 0.95, 0.01
"""Bars of repeats judged as disturbed: beside a competitor at least, and on a quiet machine at most."""

_BEGIN, _END, _WIDTH = "<!-- threads -->", "<!-- end of threads -->", 120


def line(record: Record) -> str:
    """A row, as soon as it is measured."""
    name = f"{record['program']} seed {record['seed']}"
    if said := refusal(record):
        return f"{name}: refused: {said}"
    if "failure" in record:
        return f"{name}: FAILED: {record['failure'].splitlines()[-1]}"
    held = "holds" if record["held"] else "DOES NOT HOLD"
    return (
        f"{name}: {record['native']:.2f} s by the {record['clock']} clock, {record['phases']} phases; calibrated "
        f"{percent(record['errors']['calibrated'])} ±{record['reach']:.1%} {held}; {record['bench_seconds']:.0f} s"
    )


def tables(records: Sequence[Record]) -> str:
    """By program and width the worst seed; then the bars, what was refused, and what was warned of."""
    good = [r for r in records if "native" in r]
    heads = ("program", "threads", "native s", "worst error", "interval holds", "tracing", "timing run", "phases")
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for name in dict.fromkeys(r["program"] for r in good):
        own = [r for r in good if r["program"] == name]
        lines.append(
            f"| {name} | {own[0]['threads']} | {statistics.median(r['native'] for r in own):.2f} "
            f"| {percent(_worst(own))} "
            f"| {sum(r['held'] for r in own)} of {len(own)} | {statistics.median(r['tracing'] for r in own):.2f} "
            f"| {statistics.median(r['timing'] for r in own):.2f} "
            f"| {statistics.median(r['phases'] for r in own):.0f} |"
        )
    below: list[str] = []
    for threads in sorted({r["threads"] for r in good}):
        below += bars([r for r in good if r["threads"] == threads], threads)
    below += [f"refused: {r['program']}: {_reason(said)}" for r in records if (said := refusal(r))]
    below += [f"FAILED: {r['program']} seed {r['seed']}" for r in records if "failure" in r and not refusal(r)]
    warned = {(r["program"], text) for r in good for text in r["warnings"]}
    below += [f"warned: {program}: {text}" for program, text in sorted(warned)]
    return "\n".join([*lines, "", *(f"- {text}" for text in below)])


def _reason(said: str) -> str:
    """Of a refusal, without this machine's folders and what to do without a probe."""
    return re.sub(r"/\S*/(?=[^/\s]+: )", "", said.removeprefix("probe: ")).partition("; without a probe")[0]


def write(page: Path, records: Sequence[Record]) -> None:
    """Put the tables, with machine and dates, but without warnings, between the page's marks."""
    if not records:
        return
    head = f"{measured_here(r['date'] for r in records)}; seeds: {len({r['seed'] for r in records})}."
    lines = [textwrap.fill(line, _WIDTH, subsequent_indent="  ") if line.startswith("- ") else line
             for line in tables(records).splitlines() if not line.startswith("- warned")]  # fmt: skip
    said = "\n".join([textwrap.fill(head, _WIDTH), "", *lines])
    put_between(page, _BEGIN, _END, said)


def bars(records: Sequence[Record], threads: int) -> list[str]:
    """Each bar of the programs of which so many threads worked at the same time: met or missed."""
    worst = [abs(_worst([r for r in records if r["program"] == name])) for name in {r["program"] for r in records}]
    held = sum(r["held"] for r in records) / len(records)
    tracing, timing = (statistics.median(r[key] for r in records) for key in ("tracing", "timing"))
    found = [
        (statistics.median(worst) <= MEDIAN, f"median error of {len(worst)} programs, worst seed of each",
         f"{statistics.median(worst):.2%}"),
        (max(worst) <= WORST, "worst error", f"{max(worst):.2%}"),
        (held >= COVERS, "interval holds the full run", f"{held:.1%} of {len(records)}"),
        (tracing <= TRACING, "tracing over plain, median", f"{tracing:.3f}"),
        (timing <= TIMING, "timing run over plain, median", f"{timing:.3f}"),
    ]  # fmt: skip
    name = f"{threads} thread{'s' * (threads > 1)}"
    return [f"{name}: {'met' if met else 'MISSED'}: {asked}: {value}" for met, asked, value in found]


def _worst(records: Sequence[Record]) -> float:
    return float(max((r["errors"]["calibrated"] for r in records), key=abs))


def restores(records: Sequence[Record]) -> str:
    """Restores that ended, and repeats that were judged as disturbed, quiet and beside a competitor."""
    lines = [
        f"{r['kind']}: {r['ended']} of {r['restores']} restores ended; flagged: {r['flagged']} of {r['ended']} quiet, "
        f"{r['flagged_beside']} of {r['beside']} beside a competitor" + "".join(f"; {why}" for why in r["failures"])
        for r in records
    ]
    if not records:
        return "no restores yet"
    ended, wanted = (sum(r[key] for r in records) for key in ("ended", "restores"))
    quiet = sum(r["flagged"] for r in records) / max(ended, 1)
    beside = sum(r["flagged_beside"] for r in records) / max(sum(r["beside"] for r in records), 1)
    for met, said in (
        (ended == wanted, f"{ended} of {wanted} restores"),
        (beside >= FLAGGED, f"{beside:.1%} of the repeats beside a competitor are flagged"),
        (quiet <= QUIET, f"{quiet:.1%} of the quiet ones are"),
    ):
        lines.append(f"{'met' if met else 'MISSED'}: {said}")
    return "\n".join(lines)
