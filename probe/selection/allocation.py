# SPDX-License-Identifier: Apache-2.0
"""Allocate representatives to strata, and to each representative the intervals that it stands for.

Cuts by time (`probe.selection.strata`) part intervals that the reference node can tell apart. What a candidate may
treat differently and the reference does not, such as data that outgrow a smaller cache, is in none of its times. So
strata that carry much time or spread get several representatives, spread over the run.

Neyman allocation (Neyman 1934; Cochran, *Sampling Techniques*, section 5.5): the variance of a sum over strata,
sum of (S_h s_h)^2 / n_h, is smallest for a number of representatives n_h proportional to S_h s_h. In whole numbers: the
next one goes where S_h s_h / sqrt(n_h (n_h + 1)) is largest (Wright 2012).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from probe.formats.arrays import IntArray
from probe.formats.choices import SelectionOptions
from probe.selection.strata import Intervals, seconds_spread

_IDENTICAL = 1e-9
"""Spread of log times that rounding alone makes."""


def representatives(run: Intervals, strata: Sequence[IntArray], options: SelectionOptions) -> list[int]:
    """How many representatives each of `strata` (indices of intervals) gets: at least one each, in all at most
    `max_phases` where there are no more strata than that."""
    shares = [float(run.seconds[members].sum() / run.seconds.sum()) for members in strata]
    spreads = [seconds_spread(run, members) for members in strata]
    # Intervals that are all the same leave nothing to choose among.
    claims = [
        share * math.hypot(spread, options.unseen_spread) if spread > _IDENTICAL else 0.0
        for share, spread in zip(shares, spreads, strict=True)
    ]
    most = [max(1, len(members) // options.part_intervals) for members in strata]
    counts = [1] * len(strata)
    waiting = [(-claim / math.sqrt(2.0), h) for h, claim in enumerate(claims) if most[h] > 1]
    heapq.heapify(waiting)
    for _ in range(options.max_phases - len(strata)):
        if not waiting or -waiting[0][0] <= options.part_above:
            break
        _, h = heapq.heappop(waiting)
        counts[h] += 1
        if counts[h] < most[h]:
            heapq.heappush(waiting, (-claims[h] / math.sqrt(counts[h] * (counts[h] + 1.0)), h))
    return counts


def parts(run: Intervals, members: IntArray, count: int) -> list[IntArray]:
    """`members` in `count` stretches of the run of about equal time; fewer where one would hold no interval that can be
    captured. At least one of `members` must be eligible."""
    seconds = run.seconds[members]
    middle = np.cumsum(seconds) - seconds / 2.0
    while count > 1:
        part = np.minimum(middle * count / seconds.sum(), count - 1).astype(np.int64)
        found = [members[part == number] for number in range(count)]
        if all(_fit(run, members, one) for one in found):
            return found
        count -= 1
    return [members]


def _fit(run: Intervals, members: IntArray, part: IntArray) -> bool:
    """Whether the part can have a representative that tells as much as one of the whole stratum could."""
    able = part[run.eligible[part]]
    if len(able) == 0:
        return False
    return bool(run.work[able].max() > 0 or run.work[members].max() == 0)
