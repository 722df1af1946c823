# SPDX-License-Identifier: Apache-2.0
"""Combine the calibrated and the direct estimate by their variances: docs/estimators.md, "The combined estimate".

Both share what the candidate's repeats err by. What is left is independent: the calibrated estimate has the errors of
the reference node's times, the direct one those of selection and restoring.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from probe.prediction.variance import CALIBRATED_ALONE, DIRECT, Term


@dataclass(frozen=True)
class Combined:
    """Seconds, the weight that the direct estimate has in them, and the terms of their variance."""

    seconds: float
    direct_weight: float
    terms: tuple[Term, ...]


def combine(
    calibrated: float,
    direct: float,
    terms: Sequence[Term],
    direct_spread: float | None,
    freedom: float,
    outside: float = 0.0,
) -> Combined:
    """The mean of the two logarithms with the smallest variance.

    `terms`: of the calibrated estimate. `direct_spread`: relative standard deviation of the direct estimate for reasons
    of its own; None where that is not known, or there is no direct estimate: then it has no weight. `outside`: share of
    the run that both estimates scale alike, by the calibrated one.
    """
    alone = math.fsum(t.variance for t in terms if t.of == CALIBRATED_ALONE)
    if direct_spread is None or not math.isfinite(direct) or alone <= 0:
        return Combined(calibrated, 0.0, tuple(terms))
    apart = math.log(direct / calibrated)
    inside = 1.0 - outside
    # What the calibrated estimate's errors cannot explain is the direct one's: little is known of its own.
    own = max(direct_spread**2, (apart / inside) ** 2 - alone)
    weight = min(1.0, alone / (alone + own) / inside)
    left, taken = (1.0 - weight * inside) ** 2, (weight * inside) ** 2
    shrunk = [replace(t, variance=t.variance * left) if t.of == CALIBRATED_ALONE else t for t in terms]
    return Combined(
        calibrated * math.exp(weight * apart), weight, (*shrunk, Term(DIRECT, taken * own, freedom, of=DIRECT))
    )
