# SPDX-License-Identifier: Apache-2.0
"""Locate repeated times by one number, with its error: median, mean, or level."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from probe.formats.arrays import FloatArray
from probe.formats.timing import level

MEDIAN_FACTOR = math.pi / 2.0
"""Variance of a median over that of a mean, for many normal values; above the true one for few."""

_QUARTILE_FACTOR = 1.86
"""Variance of a lower quartile over that of a mean, for many normal values."""

_MUCH_SHORTER = 0.5
_DRAWS, _MOST_DRAWN = 200, 2000
_FEWEST = 3
"""Repeats from which on a bootstrap says anything."""


def median_factor(count: int) -> float:
    """Variance of the median over that of the mean; below three values they are the same."""
    return MEDIAN_FACTOR if count > 2 else 1.0


@dataclass(frozen=True)
class Location:
    """A way to locate repeats. `along`: of each column of repeats x columns. `own_error`: relative variance of the
    location of values, given the relative variance of one of them."""

    along: Callable[[FloatArray], FloatArray]
    own_error: Callable[[FloatArray, float], float]

    def of(self, values: FloatArray) -> float:
        return float(self.along(values[:, None])[0])


def _level_error(values: FloatArray, variance: float) -> float:
    count = len(values)
    if count < _FEWEST:
        return variance / count
    if count > _MOST_DRAWN:
        return variance * _QUARTILE_FACTOR / count
    # Sorted, so that the order of the repeats does not matter.
    found = level(_drawn(np.sort(values)[:, None])[:, :, 0].T)
    return float(found.var() / level(values) ** 2) * count / (count - 1)


def _drawn(values: FloatArray) -> FloatArray:
    """Bootstrap: draws x repeats x columns; the columns of a repeat stay together."""
    count = len(values)
    return np.asarray(values[np.random.default_rng(count).integers(0, count, (_DRAWS, count))], dtype=np.float64)


MEDIAN = Location(
    lambda values: np.asarray(np.median(values, axis=0)),
    lambda values, variance: variance * median_factor(len(values)) / len(values),
)
MEAN = Location(lambda values: np.asarray(values.mean(axis=0)), lambda values, variance: variance / len(values))
LEVEL = Location(level, _level_error)


def common_error(series: Sequence[FloatArray], shares: FloatArray, location: Location) -> tuple[float, float]:
    """What the repeats of one round have in common: relative variance of the weighted sum of the series' locations,
    beyond that of series that vary by themselves; and its degrees of freedom.

    A burst of other load lasts for many phases of a round, so their errors do not cancel. Series are aligned by round,
    about: repeats that something disturbed are missing. Of series much shorter than most nothing is told.
    """
    table, shares = _by_rounds(series, shares, location)
    rounds = len(table)
    if rounds < _FEWEST:
        return 0.0, math.inf
    apart = float((shares**2 * [location.own_error(t, relative_variance(t)) for t in table.T]).sum())
    if location is MEAN:
        whole, freedom = _error_of_mean(table @ shares)
    else:
        together = location.along(np.moveaxis(_drawn(table), 1, 0)) @ shares
        whole, freedom = float(together.var()) * rounds / (rounds - 1), float(rounds - 1)
    return max(0.0, whole - apart), freedom


def spread_of_rounds(series: Sequence[FloatArray], shares: FloatArray) -> tuple[float, float] | None:
    """Relative variance of one round's weighted sum of all series, and its degrees of freedom; None where there are too
    few rounds to tell."""
    table, shares = _by_rounds(series, shares, MEAN)
    return (relative_variance(table @ shares), len(table) - 1.0) if len(table) >= _FEWEST else None


def _by_rounds(series: Sequence[FloatArray], shares: FloatArray, location: Location) -> tuple[FloatArray, FloatArray]:
    """Rounds x series, each relative to its location, and the shares of those series; without much shorter series."""
    usual = float(np.median([len(values) for values in series])) if len(series) else 0.0
    long = [len(values) >= _MUCH_SHORTER * usual for values in series]
    series, shares = [values for values, kept in zip(series, long, strict=True) if kept], shares[long]
    rounds = min(min((len(values) for values in series), default=0), _MOST_DRAWN)
    return np.array([values[:rounds] / location.of(values[:rounds]) for values in series if rounds]).T, shares


def _error_of_mean(series: FloatArray) -> tuple[float, float]:
    """Variance of the mean of a series whose neighbours are alike, and its degrees of freedom.

    Autocorrelations are added up as long as they are positive (Geyer 1992): a burst may last for several rounds.
    """
    count, apart = len(series), series - series.mean()
    own = float((apart**2).sum())
    if own <= 0:
        return 0.0, float(count - 1)
    stretch = 1.0
    for lag in range(1, count // 2):
        alike = float((apart[lag:] * apart[:-lag]).sum()) / own
        if alike <= 0:
            break
        stretch += 2.0 * alike
    return own / (count - 1) / count * stretch, max(2.0, count / stretch - 1.0)


def relative_variance(values: FloatArray) -> float:
    """Of one value, by all of them."""
    return float(values.var(ddof=1) / values.mean() ** 2)
