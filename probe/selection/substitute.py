# SPDX-License-Identifier: Apache-2.0
"""Choose another interval to stand for a phase whose representative cannot be captured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from probe.formats.arrays import FloatArray, IntArray
from probe.formats.selection import Selection

NEAREST_SHARE = 0.25
FEWEST_NEAREST = 4
"""So many of a phase's members, nearest to its representative by code, are looked at, but at least so many."""


def another_representative(members: IntArray, vectors: Any, seconds: FloatArray, tried: Sequence[int]) -> int | None:
    """A member to stand for a phase in place of those `tried`, the first of which was chosen; None if none is left.

    `vectors`: scipy.sparse CSR, a row for each interval of the run; `seconds`: their times. Of the members that execute
    nearly the same code it is the farthest in time from those tried: whatever was open there may be closed here.
    """
    left = np.array([m for m in members if m not in tried and 0 < m < len(seconds) - 1], dtype=np.int64)
    if not len(left):
        return None
    distances = _distances(vectors, left, tried[0])
    # Equal code: the one that took the most similar time.
    order = np.lexsort((np.abs(seconds[left] - seconds[tried[0]]), distances))
    nearest = left[order[: max(FEWEST_NEAREST, int(len(members) * NEAREST_SHARE))]]
    apart = np.abs(nearest[:, None] - np.array(tried)[None, :]).min(axis=1)
    return int(nearest[np.argmax(apart)])


def _distances(vectors: Any, rows: IntArray, to: int) -> FloatArray:
    """Manhattan distances (0 to 2) of these rows, each divided by its sum, from the row `to`."""
    sums = np.asarray(vectors.sum(axis=1), dtype=np.float64).reshape(-1)
    scales = 1.0 / np.where(sums > 0, sums, 1.0)
    wanted = np.asarray(vectors[[to]].todense()).reshape(-1) * scales[to]
    found = [np.abs(np.asarray(vectors[[r]].todense()).reshape(-1) * scales[r] - wanted).sum() for r in rows]
    return np.array(found, dtype=np.float64)


def with_representatives(selection: Selection, chosen: Mapping[int, int]) -> Selection:
    """`selection` with these intervals as the representatives of the phases."""
    phases = [replace(phase, representative=chosen.get(phase.id, phase.representative)) for phase in selection.phases]
    return replace(selection, phases=tuple(phases))
