# SPDX-License-Identifier: Apache-2.0
"""The level of repeated times: how long the same work takes where nothing else disturbs it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from probe.formats.arrays import FloatArray

QUANTILE = 0.25
"""Share of the times below the level. Chosen from recorded runs: docs/estimators.md, "One location for all times"."""


_DRAWS = 200


def level(times: FloatArray) -> FloatArray:
    """Along the first axis: the lower quartile, linear between neighbours. NaN where there are no times.

    Other work slows a program and never speeds it up. So the median of times of which half were disturbed is one or the
    other by chance, and the lowest of them depends on how many there are; a quartile does neither.
    """
    times = np.asarray(times, dtype=np.float64)
    if not len(times):
        return np.full(times.shape[1:], np.nan)
    return np.asarray(np.quantile(times, QUANTILE, axis=0), dtype=np.float64)


def level_of_sum(runs: Iterable[FloatArray]) -> tuple[float, float]:
    """Level of a sum, part by part; each run has the same parts. Returns it, and its relative standard error.

    A disturbed stretch of a run is outvoted by the other runs, part by part. The error is a bootstrap over whole runs
    (Efron 1979), so that what a run has in common counts; infinite for a single run. A jackknife of a quantile is not
    consistent.
    """
    parts = np.array(list(runs), dtype=np.float64)
    count, whole = len(parts), float(level(parts).sum())
    if count < 2:
        return whole, float("inf")
    rng = np.random.default_rng(count)
    drawn = [float(level(parts[rng.integers(0, count, count)]).sum()) for _ in range(_DRAWS)]
    # The bias correction of a variance, which draws from so few runs lack.
    return whole, float(np.std(drawn)) * (count / (count - 1)) ** 0.5 / whole
