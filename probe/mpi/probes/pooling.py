# SPDX-License-Identifier: Apache-2.0
"""Draw the ratios of clusters together, as far as the probes' own errors explain that they differ.

A program's time is that of its slowest rank. Of several ratios with an error each, the largest is mostly the luckiest:
taken as they are, ratios make the program too slow, the more so the more clusters there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST_ERROR = 1e-6
"""Standard error of a probe whose times do not spread at all."""


@dataclass(frozen=True)
class Estimate:
    """A ratio with its 95 % interval, all above 0, and its relative standard error."""

    ratio: float
    low: float
    high: float
    error: float

    @property
    def variance(self) -> float:
        """Of its logarithm."""
        return max(_LEAST_ERROR, self.error) ** 2


def drawn_together(found: Sequence[Estimate]) -> list[Estimate]:
    """Each ratio moved towards the mean of all by s^2 / (s^2 + t^2), with s its own error and t what ratios really
    differ by (a random-effects model, for logarithms of the ratios; t of DerSimonian and Laird, 1986).

    An interval reaches as far as it did, and as far as it would moved along: a cluster that is unlike all others would
    be drawn to them by too much.
    """
    if len(found) < 2:
        return list(found)
    values, errors = [math.log(one.ratio) for one in found], [one.variance for one in found]
    between = _between(values, errors)
    mean = _mean(values, [1 / (own + between) for own in errors])
    moves = [(mean - value) * own / (own + between) for value, own in zip(values, errors, strict=True)]
    return [_moved(one, math.exp(move)) for one, move in zip(found, moves, strict=True)]


def _between(values: Sequence[float], errors: Sequence[float]) -> float:
    """Variance of the ratios' logarithms beyond that of their errors; 0 where errors explain all."""
    weights = [1 / own for own in errors]
    mean, total = _mean(values, weights), sum(weights)
    spread = sum(weight * (value - mean) ** 2 for weight, value in zip(weights, values, strict=True))
    return max(0.0, (spread - (len(values) - 1)) / (total - sum(weight**2 for weight in weights) / total))


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def _moved(one: Estimate, by: float) -> Estimate:
    return Estimate(one.ratio * by, one.low * min(1.0, by), one.high * max(1.0, by), one.error)
