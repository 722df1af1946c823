# SPDX-License-Identifier: Apache-2.0
"""Classes of numbers that processors treat differently: NaN, infinity, denormal, zero."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

_LARGEST = 1e-3
"""Share of the numbers by which a class may differ."""

_LEAST_FRACTION = 1 << 48
"""Below it, a word without exponent is taken for an integer or a flag, and not for a denormal number."""


@dataclass(frozen=True)
class NumberClasses:
    """How many 64-bit words were looked at, and what they are, read as doubles."""

    words: int = 0
    nan: int = 0
    infinite: int = 0
    denormal: int = 0
    zero: int = 0

    def __add__(self, other: NumberClasses) -> NumberClasses:
        mine, theirs = asdict(self), asdict(other)
        return NumberClasses(**{name: mine[name] + theirs[name] for name in mine})

    def differing(self, other: NumberClasses) -> str:
        """The first class of which there is clearly more on one side, with both numbers; "" where there is none."""
        for name, title in (("nan", "NaN"), ("infinite", "infinity"), ("denormal", "denormal")):
            mine, theirs = getattr(self, name), getattr(other, name)
            if abs(mine - theirs) > _LARGEST * max(self.words, other.words, 1):
                return f"{mine} of {self.words} numbers are {title}, {theirs} with the program's own data"
        return ""


def classes_of(words: npt.NDArray[np.uint64]) -> NumberClasses:
    """Classes of 64-bit words."""
    exponent = (words >> np.uint64(52)) & np.uint64(0x7FF)
    fraction = words & np.uint64((1 << 52) - 1)
    special = exponent == 0x7FF
    return NumberClasses(
        words=words.size,
        nan=int((special & (fraction != 0)).sum()),
        infinite=int((special & (fraction == 0)).sum()),
        denormal=int(((exponent == 0) & (fraction >= _LEAST_FRACTION)).sum()),
        zero=int(((words << np.uint64(1)) == 0).sum()),
    )
