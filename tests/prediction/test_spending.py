# SPDX-License-Identifier: Apache-2.0
"""A budget of seconds goes where the interval is widest, and is never overdrawn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_target_error import Node

from checkpoint.errors import ProbeError
from probe.candidates.wanted_width import FirstRounds, WantedWidth
from probe.node.measuring import MeasuredPhase
from probe.prediction.spending import FULL_RUNS, Means, next_purchase
from probe.prediction.target_error import DEFAULT_TARGET, Narrowed, NoMoreRepeats, check_budget, spend
from probe.prediction.variance import CALIBRATED_ALONE, Term

REPEATS = Term("repeats_candidate", 0.0016, 8.0)
RUNS = [Term(FULL_RUNS, 0.0001, 3.0, joint=True), Term(FULL_RUNS, 0.0025, 3.0, of=CALIBRATED_ALONE, joint=True)]


def means(round_seconds: float, run_seconds: float, made: int = 4) -> list[Means]:
    def none(_: int) -> None:
        raise AssertionError("nothing is made yet")

    return [
        Means(("repeats_candidate",), made, 100, round_seconds, none),
        Means((FULL_RUNS,), made, 20, run_seconds, none),
    ]


@pytest.mark.parametrize(("round_seconds", "run_seconds", "chosen"), [(1.0, 1.0, 1), (1.0, 20.0, 0), (9.0, 2.0, 1)])
def test_what_narrows_most_for_each_second_is_made(round_seconds: float, run_seconds: float, chosen: int) -> None:
    offered = means(round_seconds, run_seconds)
    bought = next_purchase(offered, [REPEATS, *RUNS], 0.02, 1000.0, 0.95)
    assert bought is not None and bought[0] is offered[chosen]
    assert 1 <= bought[1] <= 4


def test_the_noise_of_the_future_run_cannot_be_bought_off() -> None:
    """More runs tell how large it is, and that is all: with many, nothing is gained."""
    few, many = means(1.0, 1.0), means(1.0, 1.0, made=19)
    known = Term(FULL_RUNS, 0.0001, 400.0, joint=True)
    assert next_purchase(many, [known], 0.001, 1000.0, 0.95) is None
    assert few[1].narrowed(RUNS[:1], 4) == [replace(RUNS[0], freedom=7.0)]
    assert few[1].narrowed(RUNS, 4)[1].variance == RUNS[1].variance / 2


def test_no_more_than_the_wanted_width_is_bought() -> None:
    bought = next_purchase(means(1.0, 1.0, made=16), [REPEATS], 0.09, 1000.0, 0.95)
    assert bought is not None and 1 <= bought[1] < 16


def test_nothing_is_bought_that_the_budget_does_not_hold() -> None:
    assert next_purchase(means(2.0, 3.0), [REPEATS, *RUNS], 0.02, 1.9, 0.95) is None
    bought = next_purchase(means(2.0, 3.0), [REPEATS, *RUNS], 0.02, 2.5, 0.95)
    assert bought is not None and bought[1] == 1


class Bought:
    """A node whose rounds and full runs take seconds of a clock that this keeps."""

    def __init__(self, noise: float, runs: float, round_seconds: float = 1.0) -> None:
        self.node, self.now = Node(noise, runs=runs), 0.0
        self._round_seconds = round_seconds
        self.made: list[str] = []

    def again(self, count: int) -> list[MeasuredPhase]:
        self.now += count * self._round_seconds
        self.made.append("rounds")
        return self.node.again(count)

    def run(self, count: int) -> None:
        self.now += 3.0 * count
        self.made.append("runs")
        self.node._reference = type(self.node._reference)(
            [*self.node._reference.runs, *self.node._times(0.001, count, 10.0)], 1.0
        )

    def spent(self, target: float, budget: float) -> Narrowed:
        first = self.node.again(5)
        full = Means((FULL_RUNS,), len(self.node._reference.runs), 20, 3.0, self.run)
        return spend(
            first, target, budget, repeats=5, predicted=self.node.predicted, again=self.again,
            round_seconds=self._round_seconds, clock=lambda: self.now, full_runs=full,
        )[1]  # fmt: skip


def test_noisy_repeats_are_repeated_and_noisy_runs_run_again() -> None:
    repeats, runs = Bought(0.06, 0.001), Bought(0.002, 0.03)
    found = repeats.spent(0.03, 60.0)
    assert repeats.made[0] == "rounds" and found.rounds > 0 and found.reached < found.before
    found = runs.spent(0.02, 60.0)
    assert runs.made[0] == "runs" and found.runs > 0 and found.reached < found.before
    assert f"{found.runs} more full runs" in found.sentence() and "of 60 s" in found.sentence()


@pytest.mark.parametrize("budget", [0.0, 0.9, 10.0, 33.0])
def test_the_budget_is_kept(budget: float) -> None:
    bought = Bought(0.3, 0.05)
    found = bought.spent(0.001, budget)
    assert bought.now <= budget and found.seconds <= budget
    assert found.limit and found.budget == budget
    assert (found.rounds + found.runs > 0) == (budget >= 1.0)


def test_what_takes_longer_than_expected_is_noticed() -> None:
    """A machine that becomes slower by half does not overdraw the budget by more than what is under way."""
    bought = Bought(0.3, 0.001)
    bought._round_seconds = 2.0
    first = bought.node.again(5)
    spend(
        first, 0.001, 40.0, repeats=5, predicted=bought.node.predicted, again=bought.again, round_seconds=1.0,
        clock=lambda: bought.now,
    )  # fmt: skip
    assert 20.0 <= bought.now <= 40.0


def test_a_budget_for_less_than_one_repeat_of_each_phase_says_what_is_needed() -> None:
    check_budget(2.5, 2.4)
    with pytest.raises(ProbeError, match=r"--budget 0\.5: one repeat of each phase takes about 2\.4 s"):
        check_budget(0.5, 2.4)


def test_a_width_that_nobody_asked_for_is_not_called_so() -> None:
    found = Bought(0.3, 0.05).spent(0.03, 0.0)
    assert found.sentence().startswith("--target-error 3.0% is not reached")
    by_default = replace(found, asked=False)
    assert by_default.sentence().startswith("the default half width of 3.0% is not reached")
    assert "--target-error" not in by_default.sentence() and by_default.to_json() == found.to_json()


@pytest.mark.parametrize("asked", [None, 0.001])
def test_a_run_says_whose_width_was_not_reached(asked: float | None) -> None:
    bought = Bought(0.3, 0.001)
    _, found = WantedWidth(asked, 0.0, best_effort=True).reach(
        5,
        first=lambda count: FirstRounds(bought.again(count), 5.0),
        again=bought.again,
        predicted=bought.node.predicted,
    )
    assert found is not None and found.limit and found.asked == (asked is not None)
    assert found.wanted == (asked or DEFAULT_TARGET)


@pytest.mark.parametrize("besides", [0.0, 3.0])
def test_what_buying_costs_at_any_rate_is_part_of_the_price(besides: float) -> None:
    one = Means(("repeats_candidate",), 4, 100, 1.0, lambda _: None, besides)
    assert one.affordable(4.9) == (4 if not besides else 1) and one.affordable(besides + 0.9) == 0
    assert one.cost(2) == pytest.approx(2 + besides)
    one.took(8.0, 4)
    assert one.made == 8 and one.seconds == pytest.approx((8.0 - besides) / 4)
    # Dearer than expected is the repeats' fault, cheaper not below nothing.
    one.took(1.0, 4)
    assert one.seconds == pytest.approx(max(0.0, 1.0 - besides) / 4)


@pytest.mark.parametrize("budget", [None, 60.0])
def test_a_node_that_cannot_be_asked_again_ends_it_with_what_there_is(budget: float | None) -> None:
    node, asked = Node(0.3), 0

    def again(count: int) -> list[MeasuredPhase]:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise NoMoreRepeats("n1: it is gone")
        return node.again(count)

    measured, found = WantedWidth(0.1, budget).reach(
        5, first=lambda count: FirstRounds(node.again(count), 5.0), again=again, predicted=node.predicted
    )
    assert found is not None and asked == 2 and found.stopped == "n1: it is gone"
    assert {len(m.times) for m in measured} == {5 + found.rounds} and found.rounds > 0
    assert found.sentence().endswith("; n1: it is gone") and "is not reached" in found.sentence()
