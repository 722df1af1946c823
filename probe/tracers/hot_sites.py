# SPDX-License-Identifier: Apache-2.0
"""Choose the counting stubs to take out again because they cost the program too much time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkpoint.stubs.counts import Counts
from probe.formats.arrays import BoolArray, FloatArray, IntArray

PLAIN_SECONDS, SAVING_SECONDS = 0.8e-9, 1.6e-9
"""What one execution of a stub costs, without and with saving the flags (docs/how-it-works.md, Tracing cost)."""

LEAVING_SECONDS = 2e-9
"""What leaving the copies of a loop costs, and coming to them (checkpoint/stubs/loops.py)."""

MISS_SECONDS, CACHED_SITES = 8e-9, 4000
"""What an execution costs besides where the busy sites are too many for the processor's branch and code caches, and
about how many are too many. A compiler with 30,000 busy sites was slowed down by 7 to 10 ns for each execution."""

MOST_OVERHEAD = 0.06
"""Share of an interval that stubs may cost before some are removed; then half of it is aimed at."""

MOST_BEARABLE = 0.15
LITTLE = 0.05
FEW_BUSY = 400
"""Where a removal would take more than LITTLE of the counted instructions, and no more than FEW_BUSY sites are busy,
stubs may cost so much instead: what is left would say little of the run."""

MOST_AT_ALL = 0.3
"""What they may cost where even that would take more than LITTLE. A sparse product with rows of eight, and Fourier
transforms, lost nine tenths of their instructions for the last hundredths of the cost."""

MARKERS_KEPT = 3
MARKER_FIRINGS = 20
"""Every interval keeps so many sites that executed at least so often, or its boundaries have no marker."""

CHEAP_LOAD = 0.003
"""Of those kept, all but the first must cost less than this share of the interval."""


@dataclass(frozen=True)
class Row:
    """One interval as counted: the columns that executed, how often, and in how many seconds."""

    columns: IntArray
    executions: IntArray
    seconds: float


@dataclass(frozen=True)
class Removal:
    """Columns taken out, and the last stretch that still had them: what else ran there, and how often."""

    columns: IntArray
    stretch: Row


def counted_share(rows: Sequence[Row], removals: Sequence[Removal], instructions: FloatArray) -> float:
    """Share of the instructions that the columns hold which were never removed, as far as it can be told.

    What was removed is known up to its removal. From then on it is taken to run as often, beside the code that it ran
    beside in the last stretch that had it, as it did there. `instructions`: of the block behind each column.
    """
    if not removals:
        return 1.0
    gone = np.zeros(len(instructions), dtype=bool)
    for removal in removals:
        gone[removal.columns] = True
    kept = lost = 0.0
    beside = [_beside(removal, gone, instructions) for removal in removals]
    for row in rows:
        work = row.executions * instructions[row.columns]
        stays = ~gone[row.columns]
        kept += float(work[stays].sum())
        lost += float(work[~stays].sum())
        for removal, (there, ratio) in zip(removals, beside, strict=True):
            if not np.isin(removal.columns, row.columns).any():
                lost += ratio * float(work[stays & there[row.columns]].sum())
    return kept / (kept + lost) if kept + lost > 0 else 1.0


def _beside(removal: Removal, gone: BoolArray, instructions: FloatArray) -> tuple[BoolArray, float]:
    """Which columns ran in a removal's last stretch and stayed, and the instructions removed to one of theirs."""
    columns = removal.stretch.columns
    work = removal.stretch.executions * instructions[columns]
    stays = ~gone[columns]
    there = np.zeros(len(gone), dtype=bool)
    there[columns[stays]] = True
    removed = float(work[np.isin(columns, removal.columns)].sum())
    return there, removed / max(float(work[stays].sum()), 1.0)


def leaving_seconds(left: Counts, fresh: Counts) -> FloatArray:
    """What leaving the copies of loops has cost, by each execution of the columns of `fresh`. `left`: how often they
    were left meanwhile, by the column at which they are entered."""
    seconds: FloatArray = left.at(fresh.columns) * LEAVING_SECONDS / fresh.executions
    return seconds


def busy_sites(rate: FloatArray) -> float:
    """How many equally hot sites would spread the executions as these do; 0 where nothing runs."""
    squares = float((rate**2).sum())
    return float(rate.sum()) ** 2 / squares if squares > 0 else 0.0


def hottest_sites(rate: FloatArray, cost: FloatArray) -> IntArray:
    """Columns whose removal makes the cost bearable, hottest first; empty where it is.

    `rate`: executions per second of every column just now; `cost`: seconds per execution of every column.
    """
    load = rate * (cost + MISS_SECONDS * min(1.0, busy_sites(rate) / CACHED_SITES))
    total = float(load.sum())
    if total <= MOST_OVERHEAD:
        return np.zeros(0, dtype=np.int64)
    order = np.argsort(-load)
    after = total - np.cumsum(load[order])
    wanted = order[: int(np.searchsorted(-after, -MOST_OVERHEAD / 2)) + 1]
    return wanted[load[wanted] > 0].astype(np.int64)


def dearest_sites(wanted: IntArray, rate: FloatArray, cost: FloatArray, instructions: FloatArray) -> IntArray:
    """Columns to remove where those of `wanted` hold too much of the counted instructions: fewer, and first those that
    cost most for what they count. `instructions`: of the block behind every column. Else `wanted`."""
    counted = rate * instructions
    if float(counted[wanted].sum()) <= LITTLE * float(counted.sum()) or busy_sites(rate) > FEW_BUSY:
        return wanted
    load = rate * cost
    order = wanted[np.argsort(-(load[wanted] / np.maximum(counted[wanted], 1e-9)), kind="stable")]
    taken = _down_to(MOST_BEARABLE, order, load)
    if float(counted[taken].sum()) <= LITTLE * float(counted.sum()):
        return taken
    return _down_to(MOST_AT_ALL, order, load)


def _down_to(most: float, order: IntArray, load: FloatArray) -> IntArray:
    """The first of `order` without which all that is left costs no more than `most`, as far as that can be reached."""
    above = float(load.sum()) - most
    if above <= 0:
        return order[:0]
    return order[: int(np.searchsorted(np.cumsum(load[order]), above)) + 1]


def sites_to_remove(wanted: IntArray, cost: FloatArray, rows: Sequence[Row], removed: BoolArray) -> IntArray:
    """Those of `wanted` that every interval in `rows` can do without; `removed`: what is gone already.

    A flat hot loop keeps its least hot site, whatever it costs: without one the stretch could not be marked. The
    last of `rows` must be a stretch that began after `wanted` was chosen. A stretch in which a new loop has just
    begun still shows the sites of the code before it, and the loop would lose all of its own.
    """
    gone = removed.copy()
    gone[wanted] = True
    kept: set[int] = set()
    for row in rows:
        kept.update(_needed(row, cost, gone, removed).tolist())
    return np.array([c for c in wanted.tolist() if c not in kept], dtype=np.int64)


def _needed(row: Row, cost: FloatArray, gone: BoolArray, removed: BoolArray) -> IntArray:
    """Columns that must stay for the sake of one interval; takes them back from `gone`."""
    firm = (row.executions >= MARKER_FIRINGS) & ~removed[row.columns]
    columns, executions = row.columns[firm], row.executions[firm]
    doomed = gone[columns]
    left = int((~doomed).sum())
    if left >= MARKERS_KEPT or not doomed.any():
        return np.zeros(0, dtype=np.int64)
    load = executions[doomed] * cost[columns[doomed]] / row.seconds
    order = np.argsort(load, kind="stable")
    spared = order[: MARKERS_KEPT - left]
    spared = spared[(load[spared] < CHEAP_LOAD) | ((np.arange(len(spared)) == 0) & (left == 0))]
    back: IntArray = columns[doomed][spared]
    gone[back] = False
    return back
