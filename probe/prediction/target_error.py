# SPDX-License-Identifier: Apache-2.0
"""Foretell how many more repeats bring a prediction's interval to a wanted width, and what else keeps it wide.

Only two of the interval's terms shrink as phases are timed more often (docs/estimators.md, "A wanted width").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from checkpoint.errors import ProbeError
from probe.node.measuring import MeasuredPhase
from probe.prediction.estimators import Prediction, PredictionOptions
from probe.prediction.spending import Means, next_purchase
from probe.prediction.variance import Term, half_width

MOST_FACTOR = 8
"""No phase is timed more than this many times as often as was asked for at first."""

_ENDLESS = 1e9

DEFAULT_TARGET, DEFAULT_BUDGET = 0.03, 60
"""Half width that is aimed at where none is asked for; seconds that `probe run` may take for it."""

MOST_ROUNDS = 200
"""Repeats of each phase, whatever the budget."""

HERE = ("repeats_candidate", "load")
"""What more repeats on this node narrow."""

ON_BOTH_SIDES = ("repeats_candidate", "load", "repeats_reference")
"""What more rounds of the self-check narrow: on the reference node both sides are measured alike."""

REASONS = {
    "repeats_candidate": "the repeats on this node differ too much: use a quieter node, or a longer --budget",
    "repeats_reference": "the reference node's repeats differ too much: build the probe again on a quieter node, or "
    "with a smaller --target-error and a longer --budget",
    "reference_runs": "full runs of the program differ by as much on the reference node: build on a quieter one",
    "within_strata": "phases may hide members that behave differently here: build with more --max-phases",
    "uncovered": "part of the run is in no phase that could be measured: see the failed phases",
    "outside": "other processes than the one with the phases have part of the time: probe that one by itself",
    "minimum": "whole sessions of repeats differ by this",
    "load": "other load on this node comes and goes: use a quieter node, or a longer --budget",
    "direct": "the phases miss intervals held out by this: build with more --max-phases",
}
"""What each term of the variance says of a probe that cannot reach the width, and what to do."""


class NoMoreRepeats(Exception):
    """Phases cannot be timed any more often; the text says why."""


@dataclass(frozen=True)
class Narrowed:
    """What was done for a wanted width. `wanted`, `before`, `reached`: relative half widths of the interval.

    `rounds` were added, each one repeat of every phase, and `runs` full runs, in `seconds` of `budget` (None: no bound
    of time). `limit` is the cause that keeps the interval from being narrower, "" where it is as narrow as wanted.
    `asked`: whether somebody asked for that width, or it is DEFAULT_TARGET. `stopped`: why phases could not be timed
    more often though that was wanted, "" where they could.
    """

    wanted: float
    before: float
    reached: float
    rounds: int
    seconds: float
    limit: str
    runs: int = 0
    budget: float | None = None
    asked: bool = True
    stopped: str = ""

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "asked"}

    def sentence(self) -> str:
        """For people: what was reached, and what it cost or why no more was done."""
        made = [f"{self.rounds} more rounds"] * (self.rounds > 0) + [f"{self.runs} more full runs"] * (self.runs > 0)
        cost = f"{' and '.join(made)} in {self.seconds:.1f} s" if made else "no more rounds"
        if self.budget is not None:
            cost += f" {'of' if made else 'within'} {self.budget:.0f} s"
        if not self.limit:
            return f"the interval is within {self.reached:.1%} of the prediction, {cost}"
        wanted = f"{self.wanted:.1%}"
        wanted = f"--target-error {wanted}" if self.asked else f"the default half width of {wanted}"
        return (
            f"{wanted} is not reached: the interval is within {self.reached:.1%} of the "
            f"prediction after {cost}; {self.stopped or REASONS[self.limit]}"
        )


def check_target_error(target: float | None) -> None:
    """Raise ProbeError for a wanted half width that is none."""
    if target is not None and not 0 < target < 1:
        raise ProbeError(f"--target-error: {target:g} is not a share of the prediction between 0 and 1, such as 2%")


def with_repeats(terms: Sequence[Term], factor: float, causes: Sequence[str] = HERE) -> list[Term]:
    """The terms if everything under `causes` were repeated `factor` times as often, spread as before."""
    return [term.repeated(factor) if term.cause in causes else term for term in terms]


def rounds_wanted(
    terms: Sequence[Term], target: float, repeats: int, most: int, options: PredictionOptions, causes: Sequence[str]
) -> int:
    """How many repeats, more than `repeats` and at most `most`, bring the half width to `target`; 0 if none do.

    Judged from the spread seen so far, so that it has to be judged again when they are made.
    """
    for wanted in range(repeats + 1, most + 1):
        if half_width(with_repeats(terms, wanted / repeats, causes), options.confidence) <= target:
            return wanted
    return 0


def limiting(terms: Sequence[Term], target: float, options: PredictionOptions, causes: Sequence[str] = HERE) -> str:
    """The largest cause of those that more repeats would leave; of all, where they would be enough."""
    endless = with_repeats(terms, _ENDLESS, causes)
    narrow = half_width(endless, options.confidence) <= target
    by_cause: dict[str, float] = {}
    for term in terms if narrow else endless:
        by_cause[term.cause] = by_cause.get(term.cause, 0.0) + term.variance
    return max(by_cause, key=lambda cause: by_cause[cause])


def narrow(
    measured: list[MeasuredPhase],
    target: float,
    repeats: int,
    *,
    predicted: Callable[[list[MeasuredPhase]], Prediction],
    again: Callable[[int], list[MeasuredPhase]],
    clock: Callable[[], float],
    causes: Sequence[str] = HERE,
    options: PredictionOptions | None = None,
) -> tuple[list[MeasuredPhase], Narrowed]:
    """Have phases timed more often until the interval's half width is `target`, or more cannot bring it there.

    `measured`: each phase `repeats` times. `predicted` makes a prediction of them; `again(n)` times every phase n times
    more; `clock` tells seconds. At most MOST_FACTOR times `repeats` are made. Raises what the two raise; NoMoreRepeats
    of `again` ends it with what there is.
    """
    options = options or PredictionOptions()
    begun, made, most = clock(), repeats, MOST_FACTOR * repeats
    prediction = predicted(measured)
    before, stopped = prediction.half_width, ""
    while prediction.half_width > target and made < most:
        wanted = rounds_wanted(prediction.terms, target, made, most, options, causes)
        if not wanted:
            break
        # Not more than twice as many at a time: the spread seen so far may have been a bad one.
        more = min(wanted, 2 * made) - made
        try:
            measured = joined(measured, again(more))
        except NoMoreRepeats as end:
            stopped = str(end)
            break
        made += more
        prediction = predicted(measured)
    limit = "" if prediction.half_width <= target else limiting(prediction.terms, target, options, causes)
    seconds = clock() - begun if made > repeats else 0.0
    return measured, Narrowed(target, before, prediction.half_width, made - repeats, seconds, limit, stopped=stopped)


def spend(
    measured: list[MeasuredPhase],
    target: float,
    budget: float,
    *,
    repeats: int,
    predicted: Callable[[list[MeasuredPhase]], Prediction],
    again: Callable[[int], list[MeasuredPhase]],
    round_seconds: float,
    clock: Callable[[], float],
    besides: float = 0.0,
    causes: Sequence[str] = HERE,
    full_runs: Means | None = None,
    options: PredictionOptions | None = None,
) -> tuple[list[MeasuredPhase], Narrowed]:
    """Have phases timed more often, or more full runs made, until the half width is `target` or `budget` seconds are
    spent: always what narrows the interval most for each second.

    `round_seconds`: what one repeat of every phase takes; `besides`: what any number of them takes on top.
    `full_runs`: None where there can be no more. Else as `narrow`.
    """
    options = options or PredictionOptions()
    begun, runs_before = clock(), full_runs.made if full_runs else 0

    def more(count: int) -> None:
        nonlocal measured
        measured = joined(measured, again(count))

    rounds = Means(tuple(causes), repeats, MOST_ROUNDS, round_seconds, more, besides)
    means = [rounds] + ([full_runs] if full_runs else [])
    prediction = predicted(measured)
    before, stopped = prediction.half_width, ""
    while prediction.half_width > target:
        left = budget - (clock() - begun)
        bought = next_purchase(means, prediction.terms, target, left, options.confidence)
        if bought is None:
            break
        one, count = bought
        started = clock()
        try:
            one.make(count)
        except NoMoreRepeats as end:
            stopped = str(end)
            break
        one.took(clock() - started, count)
        prediction = predicted(measured)
    limit = "" if prediction.half_width <= target else limiting(prediction.terms, target, options, causes)
    runs = full_runs.made - runs_before if full_runs else 0
    spent = clock() - begun if rounds.made > repeats or runs else 0.0
    return measured, Narrowed(
        target, before, prediction.half_width, rounds.made - repeats, spent, limit, runs=runs, budget=budget,
        stopped=stopped,
    )  # fmt: skip


def check_budget(budget: float, round_seconds: float) -> None:
    """Raise ProbeError where not even one repeat of each phase fits."""
    if budget < round_seconds:
        raise ProbeError(
            f"--budget {budget:g}: one repeat of each phase takes about {round_seconds:.2g} s; give that or more"
        )


def joined(first: Sequence[MeasuredPhase], more: Sequence[MeasuredPhase]) -> list[MeasuredPhase]:
    """All repeats of each phase. One that failed the second time keeps what it had, and says so."""
    later = {(m.phase, m.restorer): m for m in more}
    found = []
    for one in first:
        other = later.get((one.phase, one.restorer))
        if other is None or not one.times:
            found.append(one)
            continue
        failed = (f"phase {one.phase} failed when it was repeated more often: {other.failure}",) * bool(other.failure)
        warnings = tuple(dict.fromkeys([*one.warnings, *other.warnings, *failed]))
        found.append(replace(one, times=(*one.times, *other.times), warnings=warnings))
    return found
