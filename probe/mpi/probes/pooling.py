# SPDX-License-Identifier: Apache-2.0
"""Draw the ratios of clusters together, as far as the probes' own errors explain that they differ.

A program's time is that of its slowest rank. Of several ratios with an error each, the largest is mostly the luckiest:
taken as they are, ratios make the program too slow, the more so the more clusters there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STANDARD_ERRORS = 1.96
_LEAST_ERROR = 1e-6
"""Of a probe whose interval has no width."""


@dataclass(frozen=True)
class Estimate:
    """A ratio and its 95 % interval, all above 0."""

    ratio: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Standard error of its logarithm."""
        return max(_LEAST_ERROR, math.log(self.high / self.low) / 2 / _STANDARD_ERRORS)


def drawn_together(found: Sequence[Estimate]) -> list[Estimate]:
    """Each estimate moved towards the mean of all by s^2 / (s^2 + t^2), with s its own error and t what ratios really
    differ by (a random-effects model, for logarithms of the ratios; t of DerSimonian and Laird, 1986).

    Intervals move with them and keep their width: t is not known well from few clusters.
    """
    if len(found) < 2:
        return list(found)
    values = [math.log(one.ratio) for one in found]
    errors = [one.error**2 for one in found]
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
    return Estimate(one.ratio * by, one.low * by, one.high * by)
