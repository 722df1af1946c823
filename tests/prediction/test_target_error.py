# SPDX-License-Identifier: Apache-2.0
"""A wanted width of the interval: rounds are added while they help, never without end, and what limits is named."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from checkpoint.errors import ProbeError
from checkpoint.restore.criu_restore import RegionTime
from probe.cli.main import cli
from probe.cli.parameters import Share
from probe.formats.phase_record import CRIU, DIRECT
from probe.node.measuring import MeasuredPhase
from probe.prediction.estimators import PhaseTiming, Prediction, PredictionOptions, ReferenceRun, predict
from probe.prediction.target_error import (
    HERE,
    MOST_FACTOR,
    ON_BOTH_SIDES,
    REASONS,
    Narrowed,
    joined,
    narrow,
    rounds_wanted,
    with_repeats,
)
from probe.prediction.variance import CAUSES, Term

SHARES = (0.5, 0.3, 0.2)


class Node:
    """Three phases. Spread of repeats here (`noise`), on the reference node, of its runs, and inside the strata."""

    def __init__(
        self, noise: float, *, reference_noise: float = 0.001, runs: float = 0.001, spread: float = 0.0
    ) -> None:
        self._rng = np.random.default_rng(5)
        self._noise, self._spread = noise, spread
        self._t_ref = [self._times(reference_noise, 5) for _ in SHARES]
        self._reference = ReferenceRun(self._times(runs, 3, 10.0), 1.0)
        self.asked: list[int] = []

    def _times(self, noise: float, count: int, mean: float = 0.1) -> list[float]:
        return (mean * np.exp(self._rng.normal(0, noise, count))).tolist()

    def again(self, count: int) -> list[MeasuredPhase]:
        self.asked.append(count)
        return [
            MeasuredPhase(c, tuple(RegionTime(t, t, 0.01, 0.01) for t in self._times(self._noise, count)))
            for c in range(len(SHARES))
        ]

    def predicted(self, measured: list[MeasuredPhase]) -> Prediction:
        slower = (1.0, 1.0 + self._spread, 1.0 + 3 * self._spread)
        phases = [
            PhaseTiming(
                c, share, share, 0.01 * (c + 1), self._t_ref[c], [slower[c] * t.wall for t in measured[c].times], 0.1,
                spread=self._spread,
            )
            for c, share in enumerate(SHARES)
        ]  # fmt: skip
        return predict(self._reference, phases)

    def narrowed(self, target: float, repeats: int = 5, **options: object) -> tuple[list[MeasuredPhase], Narrowed]:
        first = self.again(repeats)
        ticks = itertools.count()
        return narrow(
            first, target, repeats, predicted=self.predicted, again=self.again, clock=lambda: float(next(ticks)),
            **options,  # type: ignore[arg-type]
        )  # fmt: skip


def test_rounds_are_added_until_the_interval_is_as_narrow_as_wanted() -> None:
    node = Node(0.06)
    before = node.predicted(Node(0.06).again(5)).half_width
    measured, found = node.narrowed(0.03)
    assert before > 0.03
    assert found.limit == "" and found.reached <= 0.03 < found.before
    assert found.rounds > 0 and {len(m.times) for m in measured} == {5 + found.rounds}
    assert sum(node.asked) == 5 + found.rounds
    # Never more at once than there are: the first spread may mislead.
    made = 0
    for count in node.asked:
        assert made == 0 or count <= made
        made += count
    assert found.seconds > 0 and f"{found.rounds} more rounds" in found.sentence()
    assert node.predicted(measured).half_width == found.reached


def test_no_more_are_added_at_once_than_there_are() -> None:
    """Though the first spread asks for more: it may mislead."""
    node = Node(0.12)
    terms = node.predicted(node.again(5)).terms
    options = PredictionOptions()
    assert rounds_wanted(terms, 0.03, 5, 1000, options, HERE) > 10
    node = Node(0.12)
    node.narrowed(0.03)
    assert node.asked[:2] == [5, 5]


def test_more_repeats_are_more_certain_of_their_spread_too() -> None:
    noise, other = Term("repeats_candidate", 0.01, 4.0), Term("reference_runs", 0.02, 2.0)
    assert with_repeats([noise, other], 3.0) == [Term("repeats_candidate", 0.01 / 3, 14.0), other]


def test_nothing_is_repeated_where_the_interval_is_narrow_already() -> None:
    node = Node(0.002)
    measured, found = node.narrowed(0.05)
    assert (found.rounds, found.seconds, found.limit, node.asked) == (0, 0.0, "", [5])
    assert {len(m.times) for m in measured} == {5}


@pytest.mark.parametrize(
    ("node", "target", "limit"),
    [
        (Node(0.01, runs=0.05), 0.02, "reference_runs"),
        (Node(0.01, reference_noise=0.1), 0.02, "repeats_reference"),
        (Node(0.001, spread=0.3), 0.02, "within_strata"),
        (Node(0.0001, reference_noise=0.0001, runs=0.0001), 0.003, "minimum"),
    ],
)
def test_what_more_repeats_cannot_mend_is_named_and_costs_nothing(node: Node, target: float, limit: str) -> None:
    _, found = node.narrowed(target)
    assert (found.limit, found.rounds, node.asked) == (limit, 0, [5])
    assert found.reached == found.before > target
    assert REASONS[limit] in found.sentence() and "no more rounds" in found.sentence()


def test_rounds_have_a_bound() -> None:
    node = Node(0.5)
    _, found = node.narrowed(0.02)
    assert found.limit == "repeats_candidate" and sum(node.asked) <= MOST_FACTOR * 5
    # What looked possible at first is given up at the bound, when it turns out worse.
    worse = Node(0.06)
    first = worse.again(5)
    worse._noise = 0.3
    measured, found = narrow(first, 0.03, 5, predicted=worse.predicted, again=worse.again, clock=lambda: 0.0)
    assert found.rounds > 0 and found.limit == "repeats_candidate" and found.reached > 0.03
    assert len(measured[0].times) <= MOST_FACTOR * 5


def test_the_self_check_narrows_both_sides() -> None:
    noisy = Node(0.01, reference_noise=0.1)
    limited = noisy.narrowed(0.02)[1]
    on_both = noisy.narrowed(0.07, causes=ON_BOTH_SIDES)[1]
    assert limited.limit == "repeats_reference"
    # Here the reference's repeats do not change, so that it goes on to the bound.
    assert on_both.rounds > 0


def test_every_cause_has_its_advice() -> None:
    assert set(REASONS) == set(CAUSES)


@pytest.mark.parametrize("later", ["", "killed"])
def test_repeats_are_joined_by_phase_and_restorer(later: str) -> None:
    one = RegionTime(1.0, 1.0, 0.1, 0.1)
    first = [MeasuredPhase(1, (one,), restorer=CRIU), MeasuredPhase(1, (one, one), restorer=DIRECT)]
    failed = MeasuredPhase(2, (), "no", ProbeError("no"))
    more = [
        MeasuredPhase(1, () if later else (one,), later, restorer=DIRECT),
        MeasuredPhase(1, (one,), restorer=CRIU),
        replace(failed, times=(one,), failure="", error=None),
    ]
    found = joined([*first, failed], more)
    assert [(m.restorer, len(m.times)) for m in found[:2]] == [(CRIU, 2), (DIRECT, 2 if later else 3)]
    assert bool(found[1].warnings) == bool(later) and all("killed" in w for w in found[1].warnings)
    assert found[2] == failed


@pytest.mark.parametrize(("text", "share"), [("2%", 0.02), ("0.5 %", 0.005), ("0.03", 0.03)])
def test_shares(text: str, share: float) -> None:
    assert Share().convert(text, None, None) == pytest.approx(share)


@pytest.mark.parametrize("text", ["0", "100%", "-2%", "2", "two", "nan", "2%%", ""])
def test_what_is_no_share(text: str) -> None:
    done = CliRunner().invoke(cli, ["run", "x.probe", "--target-error", text])
    assert done.exit_code == 2 and "is not a share such as 2%" in done.output


def stopped(rng: np.random.Generator, target: float) -> Callable[[], bool]:
    """One made-up node and the truth: whether the interval holds it after stopping at `target`."""
    node = Node(float(rng.uniform(0.01, 0.08)), runs=float(rng.uniform(0.001, 0.01)))
    node._rng = rng
    node._t_ref = [node._times(0.01, 5) for _ in SHARES]
    noise = float(rng.uniform(0.001, 0.01))
    node._reference = ReferenceRun(node._times(noise, 3, 10.0), 1.0)

    def holds() -> bool:
        measured, _ = node.narrowed(target)
        said = node.predicted(measured)
        return bool(said.low <= 10.0 * np.exp(rng.normal(0, noise)) <= said.high)

    return holds


def test_stopping_when_it_is_narrow_keeps_the_interval_honest() -> None:
    rng = np.random.default_rng(11)
    trials = 400
    held = sum(stopped(rng, float(rng.choice([0.01, 0.02, 0.03])))() for _ in range(trials))
    assert held / trials >= 0.93
    assert PredictionOptions().confidence == 0.95
