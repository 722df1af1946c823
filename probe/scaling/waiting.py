# SPDX-License-Identifier: Apache-2.0
"""Waits in a queue, from history: an upper bound of a quantile that holds with 95 % confidence.

The bound is QBETS' (Nurmi, Brevik, Wolski, JSSPP 2007), without its detection of changes: of n like waits, sorted, the
k-th is at least the q quantile with the probability that at most k - 1 of n are below that quantile (binomial).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import binom

from checkpoint.errors import NoPrediction

CONFIDENCE = 0.95
_LIKE = 2.0
"""Jobs are alike whose cores and time limits differ by this factor at most."""

MOST_LIKE = 500
"""The newest ones: what a queue was like long ago says little."""


@dataclass(frozen=True)
class Wait:
    """One job of the past, or one that waits now. times in seconds, since 1970 for `submitted`.

    cores, limit: as it asked for them; limit None for none. ended: whether it has started; `seconds` is its wait until
    then, or until now.
    """

    submitted: float
    seconds: float
    cores: int
    limit: float | None
    ended: bool = True


@dataclass(frozen=True)
class Bound:
    """`seconds` that a job waits at most, with this probability and CONFIDENCE. like: jobs that it is from."""

    seconds: float
    probability: float
    like: int


def least_waits(probability: float) -> int:
    """Jobs that a bound of this quantile needs."""
    count = 1
    while probability**count > 1 - CONFIDENCE:
        count += 1
    return count


def quantile_bound(waits: Sequence[float], probability: float) -> float:
    """Upper bound of the quantile. Raises NoPrediction for too few waits."""
    count = len(waits)
    if count < least_waits(probability):
        raise NoPrediction(
            f"{count} like jobs are in the history; a bound that holds with probability {probability:g} needs "
            f"{least_waits(probability)}"
        )
    # The least k with P(Binomial(n, q) <= k - 1) >= 0.95.
    position = int(binom.ppf(CONFIDENCE, count, probability)) + 1
    return sorted(waits)[min(position, count) - 1]


def like(history: Sequence[Wait], cores: int, limit: float | None) -> list[Wait]:
    """The newest jobs of about this size and time limit, MOST_LIKE at most; of this size alone if those are few."""
    sized = [one for one in history if cores / _LIKE <= one.cores <= cores * _LIKE]
    timed = [one for one in sized if _near(one.limit, limit)]
    chosen = timed if len(timed) >= least_waits(0.95) else sized
    return sorted(chosen, key=lambda one: one.submitted)[-MOST_LIKE:]


def _near(one: float | None, limit: float | None) -> bool:
    if one is None or limit is None:
        return one == limit
    return limit / _LIKE <= one <= limit * _LIKE


def bound(history: Sequence[Wait], cores: int, limit: float | None, probability: float) -> Bound:
    """How long a job of this size waits at most. Raises NoPrediction.

    Jobs that still wait count as soon as they have waited longer than the bound without them: to leave them out would
    take a full queue for an empty one.
    """
    chosen = like(history, cores, limit)
    started = [one.seconds for one in chosen if one.ended]
    waiting = [one.seconds for one in chosen if not one.ended]
    found = quantile_bound(started, probability)
    while True:
        longer = [seconds for seconds in waiting if seconds > found]
        again = quantile_bound([*started, *longer], probability)
        if again <= found:
            return Bound(found, probability, len(started) + len(longer))
        found = again
