# SPDX-License-Identifier: Apache-2.0
"""Vote on how long a run takes: the level of each of its parts over several runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from probe.formats.arrays import BoolArray, FloatArray
from probe.formats.timing import QUANTILE, level

NEAR = 0.03
"""Parts of a run that differ by less from their level were not disturbed."""

_MOSTLY = 0.5
"""Of a run that is disturbed in more than half, the rest is no sample of what a run does by itself."""

_DRAWS = 200

PAIR = 2


@dataclass(frozen=True)
class Voted:
    """Level of a sum: seconds, its relative standard error, and the relative standard deviation that one run has where
    it is not disturbed. Both are infinite for a single run."""

    seconds: float
    error: float
    noise: float


def level_of_sum(runs: Iterable[FloatArray]) -> Voted:
    """Level of a sum, part by part; each run has the same parts.

    A disturbed stretch of a run is outvoted by the other runs, part by part. The error is a bootstrap over whole runs
    (Efron 1979), so that what a run has in common counts. A jackknife of a quantile is not consistent. Two runs do not
    outvote what both have met: that is added.
    """
    parts = np.array(list(runs), dtype=np.float64)
    count, levels = len(parts), level(parts)
    whole = float(levels.sum())
    if count < 2:
        return Voted(whole, math.inf, math.inf)
    rng = np.random.default_rng(count)
    drawn = [float(level(parts[rng.integers(0, count, count)]).sum()) for _ in range(_DRAWS)]
    # The bias correction of a variance, which draws from so few runs lack.
    error = float(np.std(drawn)) * (count / (count - 1)) ** 0.5 / whole
    near = np.abs(parts - levels) <= NEAR * levels
    if count == PAIR:
        error = math.hypot(error, _met_by_both(parts, near, levels) / whole)
    share = near @ levels
    known = share >= _MOSTLY * whole
    apart = np.where(near, parts - levels, 0.0).sum(axis=1)[known] / share[known]
    return Voted(whole, error, float(apart.std(ddof=1)) if len(apart) > 1 else error)


def _met_by_both(parts: FloatArray, near: BoolArray, levels: FloatArray) -> float:
    """Seconds by which the level of two runs may be above what an undisturbed run takes.

    Runs that are each disturbed in a share p of their parts differ in 2 p (1 - p) of them and agree, both disturbed, in
    p^2. Where they differ the level lies a quarter of the way up.
    """
    apart = ~near.all(axis=0)
    differ = min(float(levels[apart].sum() / levels.sum()), 0.5)
    disturbed = (1.0 - math.sqrt(1.0 - 2.0 * differ)) / 2.0
    excess = float(np.ptp(parts[:, apart], axis=0).sum())
    return excess * (QUANTILE + disturbed / (2.0 * (1.0 - disturbed)))
