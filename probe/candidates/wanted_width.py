# SPDX-License-Identifier: Apache-2.0
"""Repeats of a probe's phases, here or on other nodes, until the interval is as narrow as wanted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from probe.node.measuring import MeasuredPhase
from probe.prediction.estimators import Prediction
from probe.prediction.target_error import (
    DEFAULT_TARGET,
    MOST_FACTOR,
    Narrowed,
    check_budget,
    check_target_error,
    narrow,
    spend,
)


@dataclass(frozen=True)
class FirstRounds:
    """The repeats that were made at first. `seconds`: what timing them took; `besides`: what each further batch of
    repeats takes on top of its repeats."""

    measured: list[MeasuredPhase]
    seconds: float
    besides: float = 0.0


@dataclass(frozen=True)
class WantedWidth:
    """The width that a run aims at, and what that may cost.

    `target_error`: relative half width of the interval. `budget`: seconds that timing the phases may take in all; then
    `repeats` are a beginning, and the half width aimed at is DEFAULT_TARGET where no other is given. `best_effort`:
    nobody asked for that budget, and `repeats` rounds are made whatever it is.
    """

    target_error: float | None = None
    budget: float | None = None
    best_effort: bool = False

    def __post_init__(self) -> None:
        check_target_error(self.target_error)

    def rounds(self, repeats: int, round_seconds: float) -> int:
        """How many rounds of at most `repeats` come first, if one takes `round_seconds`. Raises ProbeError where the
        budget does not hold even one."""
        if self.budget is None or self.best_effort:
            return repeats
        check_budget(self.budget, round_seconds)
        return max(1, min(repeats, int(self.budget / round_seconds))) if round_seconds else repeats

    def most_seconds(self, first_seconds: float) -> float:
        """What may come on top of first rounds that take so long."""
        if self.budget is not None:
            return self.budget
        return (MOST_FACTOR - 1) * first_seconds if self.target_error is not None else 0.0

    def reach(
        self,
        rounds: int,
        *,
        first: Callable[[int], FirstRounds],
        again: Callable[[int], list[MeasuredPhase]],
        predicted: Callable[[list[MeasuredPhase]], Prediction],
    ) -> tuple[list[MeasuredPhase], Narrowed | None]:
        """`rounds` rounds, and what else it takes. Raises what the three raise, but for NoMoreRepeats of `again`."""
        begun = first(rounds)
        measured = begun.measured
        if self.budget is not None:
            measured, narrowed = spend(
                measured, self.target_error or DEFAULT_TARGET, max(0.0, self.budget - begun.seconds), repeats=rounds,
                predicted=predicted, again=again, round_seconds=begun.seconds / rounds, besides=begun.besides,
                clock=time.monotonic,
            )  # fmt: skip
            return measured, replace(narrowed, budget=self.budget, asked=self.target_error is not None)
        if self.target_error is None:
            return measured, None
        return narrow(measured, self.target_error, rounds, predicted=predicted, again=again, clock=time.monotonic)
