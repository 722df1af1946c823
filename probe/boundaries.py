# SPDX-License-Identifier: Apache-2.0
"""Candidate markers for the boundaries between intervals.

The tracer copied all counters at each boundary. The next execution of any site after that copy is the place
(site, count + 1) in the run; a deterministic rerun reaches it again. Several candidates per boundary are stamped in
the timing run, and the earliest is kept: every one of them comes after the copy, so the earliest is the nearest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from probe.profile import Profile
from probe.tracers.hot_sites import SAVING_SECONDS as MARKER_SECONDS

CANDIDATES = 3
_TIERS = (100, 20, 5, 1)
"""Executions asked for on both sides of a boundary. A site that is idle there would fire a whole outer iteration
later; one executed 100 times in an interval is on average within 1 % of it."""

_CHEAP = 0.002
"""Share of the run that one marker may cost. Only where no cheaper site is active is a hotter one taken, and then
alone: a marker's stub runs the whole time, not just near its boundary."""


@dataclass(frozen=True)
class Candidate:
    """Boundary `boundary` (between intervals boundary-1 and boundary) is execution `count` of block `column`."""

    boundary: int
    column: int
    count: int


def candidates(profile: Profile, most: int = CANDIDATES) -> list[Candidate]:
    """Up to `most` candidates for each inner boundary: cheap ones that are busy there, the cheapest first."""
    counts = profile.counts.astype(np.int64).tocsr()
    totals = np.asarray(counts.sum(axis=0)).ravel()
    cost = totals * MARKER_SECONDS / max(float(profile.seconds.sum()), 1e-9)
    so_far = np.zeros(counts.shape[1], dtype=np.int64)
    found: list[Candidate] = []
    for boundary in range(1, profile.intervals):
        before, executions_before = _row(counts, boundary - 1)
        so_far[before] += executions_before
        after, executions_after = _row(counts, boundary)
        both, at_before, at_after = np.intersect1d(before, after, assume_unique=True, return_indices=True)
        steady = np.minimum(executions_before[at_before], executions_after[at_after])
        chosen = _chosen(both, steady, cost, most)
        found += [Candidate(boundary, int(c), int(so_far[c]) + 1) for c in chosen]
    return found


def _chosen(
    columns: npt.NDArray[np.int64], steady: npt.NDArray[np.int64], cost: npt.NDArray[np.float64], most: int
) -> npt.NDArray[np.int64]:
    """The columns to mark a boundary with, of those active on both sides at least `steady` times."""
    for tier in _TIERS:
        fit = columns[(steady >= tier) & (cost[columns] <= _CHEAP)]
        if len(fit):
            return fit[np.argsort(cost[fit], kind="stable")][:most]
    return columns[np.argsort(cost[columns], kind="stable")][:1]


def _row(counts: object, row: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    low, high = counts.indptr[row], counts.indptr[row + 1]  # type: ignore[attr-defined]
    return counts.indices[low:high], counts.data[low:high]  # type: ignore[attr-defined]
