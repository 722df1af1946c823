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

CANDIDATES = 3
_TIERS = (100, 20, 5, 1)
"""Executions asked for on both sides of a boundary. A site that is idle there would fire a whole outer iteration
later; one executed 100 times in an interval is on average within 1 % of it."""


@dataclass(frozen=True)
class Candidate:
    """Boundary `boundary` (between intervals boundary-1 and boundary) is execution `count` of block `column`."""

    boundary: int
    column: int
    count: int


def candidates(profile: Profile, most: int = CANDIDATES) -> list[Candidate]:
    """Up to `most` candidates for each inner boundary, those with the fewest executions in the whole run.

    Few executions make a cheap marker: its stub runs the whole time, not just near the boundary.
    """
    counts = profile.counts.astype(np.int64).tocsr()
    totals = np.asarray(counts.sum(axis=0)).ravel()
    so_far = np.zeros(counts.shape[1], dtype=np.int64)
    found: list[Candidate] = []
    for boundary in range(1, profile.intervals):
        before, executions_before = _row(counts, boundary - 1)
        so_far[before] += executions_before
        after, executions_after = _row(counts, boundary)
        both, at_before, at_after = np.intersect1d(before, after, assume_unique=True, return_indices=True)
        steady = np.minimum(executions_before[at_before], executions_after[at_after])
        for tier in _TIERS:
            fit = both[steady >= tier]
            if len(fit):
                chosen = fit[np.argsort(totals[fit], kind="stable")][:most]
                found += [Candidate(boundary, int(c), int(so_far[c]) + 1) for c in chosen]
                break
    return found


def _row(counts: object, row: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    low, high = counts.indptr[row], counts.indptr[row + 1]  # type: ignore[attr-defined]
    return counts.indices[low:high], counts.data[low:high]  # type: ignore[attr-defined]
