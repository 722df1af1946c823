# SPDX-License-Identifier: Apache-2.0
"""Tell from few paired repeats whether phases take the same time with synthetic memory as with their own data.

A pair is one repeat of each, right behind each other, in alternating order: its value is the logarithm of the quotient.
Neighbours share what drifts on a machine. Phases of one build are judged together: each has few pairs, and all of them
tell how much pairs spread, and what all have in common.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from checkpoint.errors import NodeUnfit, PhaseFailed

LOOKS = (3, 5, 7, 10, 14, 20, 28)
"""Pairs after which times are compared. Looking oftener would end at the first chance agreement."""
_ALONE = {7: 2.45, 14: 2.16, 28: 2.05}
"""What Student's distribution has, after so many pairs, in place of two standard errors (95 %)."""
_DRAWN = {3: 2.45, 5: 2.31}
"""The same where the error is drawn to that of other phases: what these tell counts as _PRIOR pairs more."""
_TOGETHER, _LEAST_PAIRS = 2.0, 15
"""Standard errors for phases together, and pairs that they need in all: that many tell how much pairs spread."""
_CLEARLY = 4.0
"""Standard errors beyond what is allowed from which on another time is refused before the last look."""
_CLOSE = 0.01
_LARGEST_ERROR = 0.01
"""With a larger standard error nothing is decided."""
_UNKNOWN = 0.02
"""Spread of a pair that is expected while there are too few to tell."""
_ROBUST = 7
"""Of fewer pairs the median distance is too large by up to a half in the mean of its squares."""
_PRIOR = 4
"""Pairs of its own that weigh as much in a phase's spread as that of all phases."""

_CENTER_ERROR = 1.03
"""Standard error of `_center` over that of a mean, for 3 to 28 values of a normal distribution."""
_MEDIAN_DISTANCE = 0.9539
"""Median distance of two values of a normal distribution, in standard deviations: 0.6745 times the root of 2."""

Repeats = Sequence[Callable[[], float]]
"""One repeat with the program's own data, and one with synthetic memory: each gives its seconds."""


class OtherTime(Exception):
    """A phase takes another time, or noise leaves open whether it does."""


@dataclass
class PairedTimes:
    """Pairs of one phase so far. `open`: gives its repeats, for the time of a block."""

    open: Callable[[], contextlib.AbstractContextManager[Repeats]]
    pairs: list[float] = field(default_factory=list)
    seconds: float = 0.0
    """What they have taken, each with restoring."""

    def make(self, number: int) -> None:
        """Go on until there are so many."""
        begun = time.monotonic()
        with self.open() as repeats:
            while len(self.pairs) < number:
                order = (0, 1) if len(self.pairs) % 2 == 0 else (1, 0)
                times = {which: max(repeats[which](), 1e-9) for which in order}
                self.pairs.append(math.log(times[1] / times[0]))
        self.seconds += time.monotonic() - begun

    def seconds_up_to(self, number: int) -> float:
        """What going on until there are so many will take."""
        return self.seconds / max(1, len(self.pairs)) * (number - len(self.pairs))


@dataclass(frozen=True)
class Compared:
    """How a phase's times compare: difference (logarithm of the quotient), its standard error, and the same error if it
    spreads like all phases together (None: too few pairs)."""

    pairs: int
    difference: float
    error: float
    common: float | None

    @property
    def ratio(self) -> float:
        return math.exp(self.difference)

    @property
    def beyond(self) -> float:
        """How far the difference is beyond what is allowed."""
        return abs(self.difference) - _CLOSE

    @property
    def is_suspicious(self) -> bool:
        return self.beyond > _TOGETHER * self.error

    @property
    def is_other(self) -> bool:
        """Clearly, or after the last look."""
        last = self.pairs >= LOOKS[-1] and self.error <= _LARGEST_ERROR
        return self.beyond > (0.0 if last else _CLEARLY * self.error)

    @property
    def is_same(self) -> bool:
        """By its own pairs alone."""
        errors = _ALONE.get(self.pairs) or (None if self.common is None else _DRAWN.get(self.pairs))
        if errors is not None and self.beyond + errors * self.error <= 0:
            return True
        return self.pairs >= LOOKS[-1] and self.beyond <= 0 and self.error <= _LARGEST_ERROR

    @property
    def is_like_all(self) -> bool:
        """Not told apart from phases that together take the same time."""
        if self.common is None or max(self.error, self.common) > _LARGEST_ERROR:
            return False
        return abs(self.difference) <= max(_CLOSE, _TOGETHER * min(self.error, self.common))

    def refusal(self) -> OtherTime:
        """Why it keeps its data."""
        said = f"{self.ratio - 1:+.1%} of {{}} with its own data, give or take {self.error:.1%}"
        if self.is_other:
            return OtherTime(f"it takes {said.format('the time')}")
        told = f"its time cannot be told: {said.format('that')}; build it while the machine does less"
        return OtherTime(told)


def spread(phases: Sequence[Sequence[float]]) -> float | None:
    """Standard deviation of a pair around its own phase, from the distances of pairs of one phase: these need no
    correction for how many pairs a phase has. None for fewer than _LEAST_PAIRS in all."""
    if sum(len(pairs) for pairs in phases) < _LEAST_PAIRS:
        return None
    distances = np.concatenate([_distances(pairs) for pairs in phases])
    # A phase with many pairs has far more distances, and is no more than one phase.
    weights = np.concatenate([np.full(len(_distances(p)), 2.0 / max(1, len(p))) for p in phases])
    order = np.argsort(distances)
    below = np.cumsum(weights[order])
    return float(distances[order][np.searchsorted(below, below[-1] / 2)]) / _MEDIAN_DISTANCE


def compared(pairs: Sequence[float], common: float | None) -> Compared:
    """What these pairs of a phase say. `common`: how much a pair spreads in all phases.

    The variance of its own pairs is drawn to that of all (G. K. Smyth: Linear models and empirical Bayes methods for
    assessing differential expression, 2004): that of three pairs says little by itself, and phases differ."""
    number, prior = len(pairs), _PRIOR
    own = float(np.median(_distances(pairs))) / _MEDIAN_DISTANCE if number >= _ROBUST else float(np.std(pairs, ddof=1))
    expected = common
    if common is None:
        # With so many pairs a phase is judged by its own pairs alone, where there are no others.
        expected, prior = _UNKNOWN, _PRIOR if number < _ROBUST else 0
    assert expected is not None
    drawn = math.sqrt((prior * expected**2 + (number - 1) * own**2) / (prior + number - 1))
    scale = _CENTER_ERROR / math.sqrt(number)
    return Compared(number, _center(pairs), drawn * scale, None if common is None else common * scale)


def look_first(times: PairedTimes, others: Sequence[PairedTimes]) -> None:
    """Compare the times of a phase right after its images were written. Raises OtherTime where they clearly differ;
    looks on while they seem to."""
    for look in LOOKS:
        times.make(look)
        found = compared(times.pairs, spread([one.pairs for one in (*others, times)]))
        if found.is_other:
            raise found.refusal()
        if not found.is_suspicious:
            return
    raise found.refusal()


def seconds_to_settle(phases: Sequence[PairedTimes], judged: Sequence[PairedTimes] = ()) -> float:
    """What judging these together will about take: each pair that is wanted for an error small enough. `judged`: others
    that were, and tell how much pairs spread."""
    common = spread([one.pairs for one in (*phases, *judged)]) or _UNKNOWN
    wanted = (_CENTER_ERROR * common / _LARGEST_ERROR) ** 2
    look = next((look for look in LOOKS if look >= wanted), LOOKS[-1])
    return sum(max(0.0, one.seconds_up_to(look)) for one in phases)


def judge_together(
    phases: Sequence[PairedTimes], until: float, judged: Sequence[PairedTimes] = ()
) -> list[Compared | OtherTime]:
    """What each phase takes that was looked at, or why that is another time, or open. `judged`: others that were
    before, for comparison alone.

    More pairs are made of the phases that are open, while time.monotonic() is below `until`; in any case of a phase by
    itself, and of so few that all their pairs do not suffice."""
    refused: dict[int, OtherTime] = {}
    while True:
        every = _compared_all([*phases, *judged])
        now = every[: len(phases)]
        refused |= {at: one.refusal() for at, one in enumerate(now) if one.is_other and at not in refused}
        together = are_same_together([one for at, one in enumerate(every) if at not in refused and not one.is_other])
        undecided = [
            at
            for at, one in enumerate(now)
            if at not in refused and not (one.is_same or (together and one.is_like_all))
        ]
        few = len(every) == 1 or sum(one.pairs for one in every) < _LEAST_PAIRS
        grown = [at for at in undecided if _grown(phases[at], refused, at, math.inf if few else until)]
        if not grown:
            break
    refused |= {at: now[at].refusal() for at in undecided if at not in refused}
    return [refused.get(at, one) for at, one in enumerate(now)]


def _compared_all(phases: Sequence[PairedTimes]) -> list[Compared]:
    common = spread([one.pairs for one in phases])
    return [compared(one.pairs, common) for one in phases]


def _grown(phase: PairedTimes, refused: dict[int, OtherTime], at: int, until: float) -> bool:
    """Make as many pairs as the next look wants; whether there was time for them."""
    look = next((look for look in LOOKS if look > len(phase.pairs)), None)
    if look is None or time.monotonic() + phase.seconds_up_to(look) > until:
        return False
    try:
        phase.make(look)
    except (PhaseFailed, NodeUnfit) as error:
        refused[at] = OtherTime(str(error))
    return True


def are_same_together(phases: Sequence[Compared]) -> bool:
    """Whether the mean difference of these phases, with twice its standard error, is within 1 %.

    Those too noisy to be judged do not count: by its error a single one would leave all others open."""
    enough = sum(one.pairs for one in phases) >= _LEAST_PAIRS
    phases = [one for one in phases if one.error <= _LARGEST_ERROR]
    if len(phases) < 2 or not enough:
        return False
    mean = sum(one.difference for one in phases) / len(phases)
    error = math.hypot(*(one.error for one in phases)) / len(phases)
    return abs(mean) + _TOGETHER * error <= _CLOSE


def _distances(pairs: Sequence[float]) -> npt.NDArray[np.float64]:
    """Of all pairs of one phase from each other."""
    values = np.asarray(pairs, dtype=np.float64)
    first, second = np.triu_indices(len(values), 1)
    return np.asarray(np.abs(values[first] - values[second]), dtype=np.float64)


def _center(pairs: Sequence[float]) -> float:
    """Median of the means of any two, each with itself too (Hodges and Lehmann, 1963): from 7 values on it bears two
    that are far off, and varies hardly more than the mean."""
    values = np.asarray(pairs, dtype=np.float64)
    first, second = np.triu_indices(len(values))
    return float(np.median((values[first] + values[second]) / 2))
