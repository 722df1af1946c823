# SPDX-License-Identifier: Apache-2.0
"""Records of MPI programs as tables, and each bar met or missed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.accuracy.report import percent
from benchmarks.mpi.measurement import Record, ratio

RECORDER = 0.02
"""Bar of what recording adds to the wall time from MPI_Init to MPI_Finalize."""

ALONE_MEDIAN, ALONE_WORST = 0.03, 0.10
"""Bars of a rank's CPU time alone, all ranks at once, over its recorded computing."""

MEDIAN, WORST, HOLDS = 0.05, 0.12, 0.9
"""Bars of whole predictions on this node, and of their intervals."""

_HEADS = ("program", "plain s", "recorded", "with contents", "calls", "answers MB", "ranks alone", "predicted s",
          "run s", "error", "interval holds", "cluster error")  # fmt: skip


def overhead(record: Record, key: str) -> float:
    """Of the runs recorded without contents (`recorded`) or with them (`contents`), over plain runs."""
    return ratio(record[key], record["plain"]) - 1


def alone(record: Record) -> list[float]:
    """Of each rank: CPU time alone over recorded computing, less 1. The delivery of messages is in the first."""
    pairs = zip(zip(*record["alone"], strict=True), zip(*record["computing"], strict=True), strict=True)
    return [ratio(own, recorded) - 1 for own, recorded in pairs]


def error(record: Record) -> float:
    """Of the whole prediction, over the median of plain runs around it."""
    return float(record["prediction"]["seconds"] / statistics.median(record["walls"]) - 1)


def holds(record: Record) -> bool:
    """Whether the prediction's interval holds the median of plain runs around it."""
    told = record["prediction"]
    return bool(told["low"] <= statistics.median(record["walls"]) <= told["high"])


def line(record: Record) -> str:
    """A record, as soon as it is measured."""
    if "failure" in record:
        return f"{record['name']}: FAILED: {record['failure'].splitlines()[-1]}"
    held = "holds" if holds(record) else "DOES NOT HOLD"
    return (
        f"{record['name']}: recorder {percent(overhead(record, 'recorded'))}, with contents "
        f"{percent(overhead(record, 'contents'))}; alone {', '.join(map(percent, alone(record)))}; predicted "
        f"{percent(error(record))}, {held}; {record['bench_seconds']:.0f} s at load {record['load']:.1f}"
    )


def tables(records: Sequence[Record]) -> str:
    """A row for each program, then the bars, then what failed and what was warned of."""
    good = [r for r in records if "failure" not in r]
    lines = [f"| {' | '.join(_HEADS)} |", f"|{' --- |' * len(_HEADS)}", *map(_row, good), *bars(good)]
    lines += [f"FAILED: {r['name']}: {r['failure'].splitlines()[-1]}" for r in records if "failure" in r]
    warned = {(r["name"], text) for r in good for text in r["warnings"]}
    return "\n".join([*lines, *(f"warned: {name}: {text}" for name, text in sorted(warned))])


def _row(record: Record) -> str:
    clusters = ", ".join(map(percent, record["cluster_errors"])) or "-"
    cells = (
        record["name"], f"{statistics.median(record['plain']):.2f}", percent(overhead(record, "recorded")),
        percent(overhead(record, "contents")), f"{record['calls']:,}", f"{record['answers'] / 1e6:.1f}",
        ", ".join(map(percent, alone(record))), f"{record['prediction']['seconds']:.2f}",
        f"{statistics.median(record['walls']):.2f}", percent(error(record)), "yes" if holds(record) else "NO",
        clusters,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def bars(records: Sequence[Record]) -> list[str]:
    """Each bar, met or missed."""
    if not records:
        return []
    found = []
    for key, said in (("recorded", "recorder without contents"), ("contents", "recorder with contents")):
        worst = max(overhead(r, key) for r in records)
        found.append((worst < RECORDER, f"{said}, worst of {len(records)} programs below {RECORDER:.0%}", worst))
    ranks = [abs(one) for r in records for one in alone(r)]
    errors = [abs(error(r)) for r in records]
    held = sum(map(holds, records)) / len(records)
    for values, median, worst_bar, said in (
        (ranks, ALONE_MEDIAN, ALONE_WORST, f"CPU time of {len(ranks)} ranks alone at once over recorded computing"),
        (errors, MEDIAN, WORST, f"whole predictions of {len(errors)} programs"),
    ):
        found.append((statistics.median(values) <= median, f"{said}, median within {median:.0%}",
                      statistics.median(values)))  # fmt: skip
        found.append((max(values) <= worst_bar, f"{said}, worst within {worst_bar:.0%}", max(values)))
    found.append((held >= HOLDS, f"interval holds in {HOLDS:.0%}", held))
    return [f"{'met' if met else 'MISSED'}: {said}: {value:.1%}" for met, said, value in found]
