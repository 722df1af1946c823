# SPDX-License-Identifier: Apache-2.0
"""Load of a batch system by the model of Lublin and Feitelson (JPDC 63, 2003): sizes, run times, arrivals.

The numbers are those of the model's batch jobs. `scale` makes all times shorter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.stats import gamma

_SERIAL, _POWER_OF_TWO = 0.244, 0.576
_LOW, _MIDDLE, _LOWER = 0.8, 4.5, 0.86
_FIRST, _SECOND = (4.2, 0.94), (312.0, 0.03)
_SLOPE, _START = -0.0054, 0.78
_ARRIVAL = (10.2303, 0.4871)
_DAY, _SLOTS = (8.1737, 3.9631), 48


@dataclass(frozen=True)
class Load:
    """A job: seconds after the first one, cores, seconds that it runs, and its time limit."""

    arrival: float
    cores: int
    seconds: float
    limit: float


def load(count: int, cores: int, seed: int, *, scale: float = 1.0, arrivals: float = 1.0) -> Iterator[Load]:
    """`count` jobs for a machine of so many cores. arrivals: factor of the time between them, above 1 for less load."""
    generator = np.random.default_rng(seed)
    now = 0.0
    day = gamma(*_DAY[:1], scale=_DAY[1])
    weights = np.array([day.cdf(slot + 0.5) - day.cdf(slot - 0.5) for slot in range(_SLOTS)])
    weights /= weights.mean()
    for _ in range(count):
        size = _size(generator, cores)
        first = generator.random() < min(max(_SLOPE * size + _START, 0.0), 1.0)
        shape, factor = _FIRST if first else _SECOND
        seconds = min(math.exp(generator.gamma(shape, factor)), 36 * 3600.0)
        slot = int(now / 1800.0) % _SLOTS
        now += math.exp(generator.gamma(_ARRIVAL[0] * 1.0225, _ARRIVAL[1])) * arrivals / max(weights[slot], 0.05)
        yield Load(now * scale, size, seconds * scale, seconds * scale * generator.uniform(1.0, 3.0))


def _size(generator: np.random.Generator, cores: int) -> int:
    """Two-stage uniform on the logarithm to base 2."""
    if generator.random() < _SERIAL:
        return 1
    high = math.log2(cores)
    middle = min(_MIDDLE, max(high - 2.5, _LOW))
    low, top = (_LOW, middle) if generator.random() < _LOWER else (middle, high)
    power = generator.uniform(min(low, top), max(low, top))
    size = 2 ** round(power) if generator.random() < _POWER_OF_TWO else round(2**power)
    return int(min(max(size, 1), cores))
