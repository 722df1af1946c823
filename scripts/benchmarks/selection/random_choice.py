# SPDX-License-Identifier: Apache-2.0
"""The baseline: as many intervals as the probe has phases, chosen at random."""

from __future__ import annotations

import numpy as np

from probe.formats.arrays import FloatArray

DRAWS = 20_000


def random_error(seconds: FloatArray, instructions: FloatArray, count: int, seed: int = 1) -> float | None:
    """Root mean square relative error of the run's time estimated from `count` random intervals.

    Estimated as the direct estimator does, per counted instruction: sum of times / sum of instructions of those
    drawn, times all instructions. (Intervals of the native tracer are equal in time on the machine they were traced
    on; their mean time would be right there by construction, and nowhere else.) Intervals without work are left out.
    """
    worked = instructions > 0
    times, work = seconds[worked], instructions[worked]
    if not 0 < count < len(times):
        return None
    rng = np.random.default_rng(seed)
    chosen = np.array([rng.choice(len(times), count, replace=False) for _ in range(DRAWS)])
    estimates = times[chosen].sum(axis=1) / work[chosen].sum(axis=1) * work.sum()
    return float(np.sqrt(np.mean((estimates / times.sum() - 1) ** 2)))
