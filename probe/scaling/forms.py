# SPDX-License-Identifier: Apache-2.0
"""Forms of scaling curves: sums of terms x^i log2(x)^j with coefficients that are not negative.

The first forms are those of ComPat D4.3, table 3. The rival is the performance model normal form with one term
(Calotoiu et al., SC 2013), with the exponents of Extra-P.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from probe.formats.arrays import FloatArray


@dataclass(frozen=True)
class Term:
    """x^i log2(x)^j, times 1 - 1/x where it is of what `leaves` its rank: of data on x ranks, 1/x is at home."""

    i: Fraction
    j: int = 0
    leaves: bool = False

    def __call__(self, x: FloatArray) -> FloatArray:
        value: FloatArray = np.asarray(x, dtype=np.float64) ** float(self.i) * np.log2(x) ** self.j
        return value * (1 - 1 / x) if self.leaves else value

    def __str__(self) -> str:
        if self.leaves:
            own = str(Term(self.i, self.j))
            return "(1 - 1/x)" if own == "1" else f"{own} (1 - 1/x)"
        power = (
            "" if self.i == 0 else "x" if self.i == 1 else f"x^{self.i}" if self.i.denominator == 1 else f"x^({self.i})"
        )
        logarithm = "" if self.j == 0 else "log2(x)" if self.j == 1 else f"log2(x)^{self.j}"
        return " ".join(part for part in (power, logarithm) if part) or "1"


@dataclass(frozen=True)
class Form:
    """A sum of terms by its name."""

    name: str
    terms: tuple[Term, ...]

    def columns(self, x: FloatArray) -> FloatArray:
        """Shape (len(x), len(terms))."""
        return np.column_stack([term(x) for term in self.terms])


def _term(i: str, j: int = 0) -> Term:
    return Term(Fraction(i), j)


_CONSTANT, _INVERSE, _LINEAR, _SQUARE, _LOGARITHM = _term("0"), _term("-1"), _term("1"), _term("2"), _term("0", 1)

COMPUTING: Final = Form("a/x + b", (_INVERSE, _CONSTANT))
"""CPU time: Amdahl's law."""

CONSTANT: Final = Form("constant", (_CONSTANT,))
QUADRATIC: Final = Form("quadratic", (_SQUARE, _LINEAR, _CONSTANT))
"""What the paper compares with; here for the same comparison."""

LEAST_SIZES: Final = 3
"""Different numbers of cores without which there is no curve."""

RIVAL_SIZES: Final = 5
"""Different numbers of cores from which on the rival is tried."""


def mpi_form(sizes: int) -> Form:
    """MPI time for so many different numbers of cores: the fewer there are, the fewer terms."""
    if sizes >= 5:
        return Form("a x + b x^2 + c log2(x) + d", (_LINEAR, _SQUARE, _LOGARITHM, _CONSTANT))
    if sizes == 4:
        return Form("a x + c log2(x) + d", (_LINEAR, _LOGARITHM, _CONSTANT))
    return Form("a x + d", (_LINEAR, _CONSTANT))


def whole_form(sizes: int) -> Form:
    """Run time as a whole, where MPI time was not measured: both forms in one sum."""
    more = (_LINEAR, _LOGARITHM, _SQUARE)[: max(0, sizes - LEAST_SIZES)]
    names = ("c x", "d log2(x)", "e x^2")[: len(more)]
    return Form(" + ".join(("a/x + b", *names)), (_INVERSE, _CONSTANT, *more))


_EXPONENTS = (
    ("0", 1), ("0", 2), ("1/4", 0), ("1/3", 0), ("1/4", 1), ("1/3", 1), ("1/4", 2), ("1/3", 2), ("1/2", 0), ("1/2", 1),
    ("1/2", 2), ("2/3", 0), ("3/4", 0), ("2/3", 1), ("3/4", 1), ("4/5", 0), ("2/3", 2), ("3/4", 2), ("1", 0), ("1", 1),
    ("1", 2), ("5/4", 0), ("5/4", 1), ("4/3", 0), ("4/3", 1), ("3/2", 0), ("3/2", 1), ("3/2", 2), ("5/3", 0),
    ("7/4", 0), ("2", 0), ("2", 1), ("2", 2), ("9/4", 0), ("7/3", 0), ("5/2", 0), ("5/2", 1), ("5/2", 2), ("8/3", 0),
    ("11/4", 0), ("3", 0), ("3", 1),
)  # fmt: skip
"""Extra-P's (i, j), in its order."""


def rivals(falling: bool) -> Sequence[Form]:
    """Normal forms c0 + c1 x^i log2(x)^j. `falling`: with exponents below zero, as computing time has them."""
    sign = -1 if falling else 1
    terms = [Term(sign * Fraction(i), j) for i, j in _EXPONENTS if not falling or i != "0"]
    return [Form(f"c0 + c1 {term}", (_CONSTANT, term)) for term in terms]


_GATHERED, _TRANSPOSED = Term(Fraction(0), 0, True), Term(Fraction(-1), 0, True)


def volume_forms(sizes: int) -> list[Form]:
    """MPI time where a fixed amount of data is sent: all of it to every rank, or its share by each rank to all others.

    Each message costs time beside that, and there are x or log2(x) of them.
    """
    if sizes < RIVAL_SIZES:
        return []
    return [
        Form(f"a {volume} + b {messages} + c", (volume, messages, _CONSTANT))
        for volume in (_GATHERED, _TRANSPOSED)
        for messages in (_LINEAR, _LOGARITHM)
    ]


_FALLING_POWERS = ("1/2", "2/3", "3/4", "4/5", "9/10", "1", "11/10", "5/4")
_RISING_POWERS = ("1/4", "1/2", "3/4", "1", "5/4", "3/2", "2")


def possible_computing_forms() -> list[Form]:
    """What computing may be as well: powers beside 1/x (caches, imbalance), and overheads that grow."""
    powers = [_term(f"-{power}") for power in _FALLING_POWERS]
    grown = (_LOGARITHM, _term("1/2"), _LINEAR)
    return [
        *(Form(f"a {power} + b", (power, _CONSTANT)) for power in powers),
        *(Form(f"a/x + b {term} + c", (_INVERSE, term, _CONSTANT)) for term in grown),
        Form("a/x + b x^(-1/2)", (_INVERSE, _term("-1/2"))),
    ]


def possible_mpi_forms() -> list[Form]:
    """What MPI time may be as well: powers, logarithms, and volumes, each with one more term."""
    rising = [*(_term(power) for power in _RISING_POWERS), _LOGARITHM, _term("0", 2), _term("1", 1)]
    volumes = [_term("-1/2"), _INVERSE, _GATHERED, _TRANSPOSED]
    return [
        *(Form(f"a {term} + b", (term, _CONSTANT)) for term in (*rising, *volumes)),
        Form("a/x + b log2(x) + c", (_INVERSE, _LOGARITHM, _CONSTANT)),
        Form("a/x + b x + c", (_INVERSE, _LINEAR, _CONSTANT)),
    ]
