# SPDX-License-Identifier: Apache-2.0
"""Which counting stubs to take out again because they cost the program too much time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

PLAIN_SECONDS, SAVING_SECONDS = 0.8e-9, 1.6e-9
"""What one execution of a stub costs, without and with saving the flags (docs/how-it-works.md, Tracing cost)."""

MOST_OVERHEAD = 0.06
"""Share of an interval that stubs may cost before some are removed; then half of it is aimed at."""

MARKERS_KEPT = 3
MARKER_FIRINGS = 20
"""Every interval keeps this many sites that executed at least this often, or its boundaries have no marker."""


@dataclass(frozen=True)
class Row:
    """One interval as counted: the columns that executed, and how often."""

    columns: Ints
    executions: Ints


def sites_to_remove(
    recent: npt.NDArray[np.float64], cost: npt.NDArray[np.float64], rows: Sequence[Row], removed: npt.NDArray[np.bool_]
) -> Ints:
    """Columns to remove now, hottest first; empty where the cost is bearable.

    `recent`: executions per second of every column just now; `cost`: seconds per execution of every column;
    `rows`: all intervals so far, the newest included; `removed`: what is gone already.
    A flat hot loop keeps its least hot sites, whatever they cost: without one the stretch could not be marked.
    """
    load = recent * cost
    total = float(load.sum())
    if total <= MOST_OVERHEAD:
        return np.zeros(0, dtype=np.int64)
    order = np.argsort(-load)
    after = total - np.cumsum(load[order])
    wanted = order[: int(np.searchsorted(-after, -MOST_OVERHEAD / 2)) + 1]
    wanted = wanted[load[wanted] > 0]
    gone = removed.copy()
    gone[wanted] = True
    kept: set[int] = set()
    for row in rows:
        firm = row.columns[row.executions >= MARKER_FIRINGS]
        alive = firm[~removed[firm]]
        missing = min(MARKERS_KEPT, len(alive)) - int((~gone[alive]).sum())
        if missing > 0:
            doomed = alive[gone[alive]]
            cheapest = doomed[np.argsort(load[doomed], kind="stable")][:missing]
            kept.update(int(c) for c in cheapest)
            gone[cheapest] = False
    return np.array([c for c in wanted.tolist() if c not in kept], dtype=np.int64)
