# SPDX-License-Identifier: Apache-2.0
"""Choose another interval to stand for a phase whose representative cannot be captured."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from probe.formats.arrays import FloatArray, IntArray
from probe.formats.selection import Selection

NEAREST_SHARE = 0.25
FEWEST_NEAREST = 6
"""Of a phase's members this share, nearest to its representative by code, is looked at; of that the share nearest in
time. At least so many each time."""


def another_representative(members: IntArray, vectors: Any, seconds: FloatArray, tried: Sequence[int]) -> int | None:
    """A member to stand for a phase in place of those `tried`, the first of which was chosen; None if none is left.

    `vectors`: scipy.sparse CSR, a row for each interval of the run; `seconds`: their times. Of the members that execute
    nearly the same code in nearly the same time it is the farthest in the run from those tried: whatever was open there
    may be closed here.
    """
    left = np.array([m for m in members if m not in tried and 0 < m < len(seconds) - 1], dtype=np.int64)
    if not len(left):
        return None
    distances = _distances(vectors, left, tried[0])
    alike = _nearest(left, distances)
    nearest = _nearest(alike, np.abs(seconds[alike] - seconds[tried[0]]))
    apart = np.abs(nearest[:, None] - np.array(tried)[None, :]).min(axis=1)
    return int(nearest[np.argmax(apart)])


def _nearest(intervals: IntArray, distances: FloatArray) -> IntArray:
    """Those with the smallest distances, all that are equally far among them."""
    count = max(FEWEST_NEAREST, int(len(intervals) * NEAREST_SHARE))
    farthest = np.sort(distances)[min(count, len(distances)) - 1]
    near: IntArray = intervals[distances <= farthest + 1e-9]
    return near


def _distances(vectors: Any, rows: IntArray, to: int) -> FloatArray:
    """Manhattan distances (0 to 2) of these rows, each divided by its sum, from the row `to`."""
    sums = np.asarray(vectors.sum(axis=1), dtype=np.float64).reshape(-1)
    scales = 1.0 / np.where(sums > 0, sums, 1.0)
    wanted = np.asarray(vectors[[to]].todense()).reshape(-1) * scales[to]
    found = [np.abs(np.asarray(vectors[[r]].todense()).reshape(-1) * scales[r] - wanted).sum() for r in rows]
    return np.array(found, dtype=np.float64)


def without_phases(selection: Selection, left_out: Collection[int]) -> Selection:
    """`selection` without these phases, whose time the estimators extrapolate over."""
    lost = sum(phase.time_share for phase in selection.phases if phase.id in left_out)
    return replace(
        selection,
        phases=tuple(phase for phase in selection.phases if phase.id not in left_out),
        labels=np.where(np.isin(selection.labels, list(left_out)), -1, selection.labels),
        dropped_time_share=selection.dropped_time_share + lost,
    )


def with_representatives(selection: Selection, chosen: Mapping[int, int]) -> Selection:
    """`selection` with these intervals as the representatives of the phases."""
    phases = [replace(phase, representative=chosen.get(phase.id, phase.representative)) for phase in selection.phases]
    return replace(selection, phases=tuple(phases))
