# SPDX-License-Identifier: Apache-2.0
"""Times compared in pairs: equal ones are accepted, others refused, by few repeats of many phases together."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from checkpoint.errors import PhaseFailed
from probe.flow.times import (
    LOOKS,
    Compared,
    OtherTime,
    PairedTimes,
    Repeats,
    are_same_together,
    compared,
    judge_together,
    look_first,
    seconds_to_settle,
    spread,
)


def phase(own: Callable[[], float], synthetic: Callable[[], float]) -> PairedTimes:
    """One with these repeats."""

    @contextlib.contextmanager
    def opened() -> Iterator[Repeats]:
        yield [own, synthetic]

    return PairedTimes(opened)


class Taking:
    """A repeat that takes these seconds, again and again, and how often it was made."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.made = seconds, 0

    def __call__(self) -> float:
        self.made += 1
        return self.seconds[(self.made - 1) % len(self.seconds)]


def drifting(chance: np.random.Generator, noise: float, other: float) -> PairedTimes:
    """A phase on a machine whose speed drifts by 20 %, with pairs of this noise: heavy-tailed, as machines are."""
    state = {"speed": 0.0}

    def repeat(factor: float) -> Callable[[], float]:
        def made() -> float:
            state["speed"] = 0.98 * state["speed"] + 0.001 * chance.standard_normal()
            spike = 0.05 * chance.random() if chance.random() < 0.02 else 0.0
            return factor * math.exp(state["speed"] + noise / math.sqrt(2) * chance.standard_normal() + spike)

        return made

    return phase(repeat(0.1), repeat(0.1 * (1 + other)))


def accepted(others: Sequence[float], noise: float, seed: int, until: float = math.inf) -> list[bool]:
    """Which phases of a build are, whose synthetic memory takes so much more time."""
    chance = np.random.default_rng(seed)
    phases = [drifting(chance, noise, other) for other in others]
    kept: list[PairedTimes] = []
    for one in phases:
        with contextlib.suppress(OtherTime):
            look_first(one, kept)
            kept.append(one)
    passed = [one for one, said in zip(kept, judge_together(kept, until), strict=True) if isinstance(said, Compared)]
    return [any(one is each for each in passed) for one in phases]


def share(others: Sequence[float], noise: float, times: int) -> tuple[float, float]:
    """How often the first phase is accepted, and how often the others are."""
    runs = np.array([accepted(others, noise, seed) for seed in range(times)])
    return float(runs[:, 0].mean()), float(runs[:, 1:].mean()) if runs.shape[1] > 1 else math.nan


@pytest.mark.parametrize("noise", [0.005, 0.01, 0.02])
def test_equal_phases_are_accepted(noise: float) -> None:
    first, rest = share([0.0] * 20, noise, 10)
    assert first >= 0.9 and rest >= 0.97


@pytest.mark.parametrize("noise", [0.005, 0.01, 0.02])
@pytest.mark.parametrize("other", [0.05, -0.05])
def test_one_odd_phase_among_equal_ones_is_found(noise: float, other: float) -> None:
    first, rest = share([other] + [0.0] * 20, noise, 20)
    assert first == 0.0 and rest >= 0.97


def test_a_phase_that_differs_by_three_per_cent_is_accepted_seldom() -> None:
    assert share([0.03] + [0.0] * 20, 0.01, 50)[0] <= 0.04


@pytest.mark.parametrize("noise", [0.005, 0.01, 0.02])
@pytest.mark.parametrize("phases", [1, 6, 20])
def test_what_all_phases_have_in_common_is_found(noise: float, phases: int) -> None:
    assert np.mean([accepted([0.03] * phases, noise, seed) for seed in range(10)]) <= 0.02


def test_what_no_phase_shows_by_itself_all_show_together() -> None:
    """Four of ten single phases that differ by 1.5 % pass among others that do not."""
    assert np.mean([accepted([0.015] * 20, 0.01, seed) for seed in range(10)]) <= 0.1
    assert share([0.015] + [0.0] * 20, 0.01, 40)[0] > 0.1


@pytest.mark.parametrize("noise", [0.005, 0.01])
def test_a_phase_by_itself_needs_more_pairs(noise: float) -> None:
    assert share([0.0], noise, 20)[0] >= 0.9
    assert share([0.05], noise, 20)[0] == share([0.03], noise, 20)[0] == 0.0


def test_few_pairs_suffice_for_phases_together() -> None:
    chance = np.random.default_rng(1)
    together = [drifting(chance, 0.01, 0.0) for _ in range(20)]
    for one in together:
        look_first(one, [])
    assert all(isinstance(said, Compared) for said in judge_together(together, math.inf))
    assert np.mean([len(one.pairs) for one in together]) < 4.5
    alone = drifting(chance, 0.01, 0.0)
    look_first(alone, [])
    judge_together([alone], math.inf)
    assert len(alone.pairs) >= 7


def test_pairs_share_what_drifts_and_their_order_alternates() -> None:
    order: list[str] = []

    def slower(name: str) -> Callable[[], float]:
        def made() -> float:
            order.append(name)
            return 1.1 ** len(order)

        return made

    one = phase(slower("own"), slower("synthetic"))
    one.make(4)
    assert order == ["own", "synthetic", "synthetic", "own"] * 2
    assert compared(one.pairs, None).difference == pytest.approx(0.0, abs=1e-9)


def test_times_that_spread_need_more_repeats() -> None:
    first = Taking(*np.exp(0.012 * np.random.default_rng(3).standard_normal(64)))
    one = phase(first, Taking(1.0))
    look_first(one, [])
    (said,) = judge_together([one], 0.0)
    assert isinstance(said, Compared) and 7 < first.made <= LOOKS[-1]


def test_noise_passes_no_time() -> None:
    """Neither time is known, and the data are kept."""
    for shift in (1.0, 1.015, 1.03):
        noise = np.exp(0.1 * np.random.default_rng(4).standard_normal(64))
        first = Taking(*noise)
        one = phase(first, Taking(shift))
        look_first(one, [])
        (said,) = judge_together([one], math.inf)
        assert isinstance(said, OtherTime)
        assert str(said).startswith("its time cannot be told: ") and str(said).endswith("while the machine does less")
        assert first.made == LOOKS[-1]


def test_another_time_is_refused_as_soon_as_it_is_clear() -> None:
    first = Taking(1.0)
    with pytest.raises(OtherTime, match=r"it takes \+10\.0% of the time with its own data, give or take 1\.0%"):
        look_first(phase(first, Taking(1.1)), [])
    assert first.made == LOOKS[0]
    # What seems to be another one is looked at more closely at once.
    unclear = Taking(1.0)
    with pytest.raises(OtherTime, match=r"it takes \+4\.0%"):
        look_first(phase(unclear, Taking(1.04)), [])
    assert unclear.made > LOOKS[0]


def test_without_time_what_is_open_is_refused_and_what_is_known_is_not() -> None:
    chance = np.random.default_rng(5)
    quiet, noisy = ([drifting(chance, noise, 0.0) for _ in range(6)] for noise in (0.005, 0.04))
    for group in (quiet, noisy):
        for one in group:
            one.make(3)
    assert all(isinstance(said, Compared) for said in judge_together(quiet, 0.0))
    assert all("cannot be told" in str(said) for said in judge_together(noisy, 0.0))
    assert {len(one.pairs) for one in (*quiet, *noisy)} == {3}


def test_a_steady_phase_beside_phases_that_cannot_be_told_is_known_by_three_pairs() -> None:
    """These may have a common difference: together nothing is decided, and the steady one speaks for itself."""
    open_ones = [compared([0.01, 0.035, 0.015], 0.004) for _ in range(6)]
    steady = compared([0.0, 0.001, -0.001], 0.004)
    assert not are_same_together([*open_ones, steady])
    assert steady.is_same and not any(one.is_same for one in open_ones)
    # By themselves three pairs do not tell how much they spread.
    assert not compared([0.0, 0.001, -0.001], None).is_same


def test_a_noisy_phase_among_quiet_ones_needs_an_error_of_its_own() -> None:
    """That the others spread little says nothing about its own error."""
    pairs = [-0.09, 0.0, 0.09, 0.001, -0.08, 0.08, 0.0]
    one = compared(pairs, 0.005)
    assert one.common is not None and one.common < 0.003 and one.error > 0.01
    assert not one.is_like_all
    assert compared([0.0, 0.002, -0.002], 0.005).is_like_all


def test_one_noisy_phase_leaves_no_others_open() -> None:
    quiet = [compared([0.002, 0.003, -0.002], 0.005)] * 13
    noisy = compared([0.0, 0.2, -0.2], 0.005)
    assert noisy.error > 0.06 and are_same_together([*quiet, noisy])
    assert not noisy.is_like_all and all(one.is_like_all for one in quiet)
    assert not are_same_together([noisy] * 13)


def test_too_few_pairs_judge_nothing_together() -> None:
    few = [compared([0.0, 0.001, -0.001], 0.001)] * 4
    assert not are_same_together(few) and are_same_together(few + few[:1])
    assert spread([[0.0, 0.01, 0.02]] * 4) is None
    assert are_same_together([compared([0.0, 0.001, -0.001] * 10, 0.001)]) is False


def test_the_spread_of_pairs_is_that_around_their_own_phases() -> None:
    chance = np.random.default_rng(6)
    for number in (3, 7, 28):
        phases = [float(k) + 0.01 * chance.standard_normal(number) for k in range(200)]
        assert spread(phases) == pytest.approx(0.01, rel=0.1)
        spoiled = [np.append(one[:-1], 9.0) if k % 10 == 0 else one for k, one in enumerate(phases)]
        assert spread(spoiled) == pytest.approx(0.01, rel=0.2)


def test_a_phase_that_fails_in_the_end_says_why() -> None:
    def fails() -> float:
        raise PhaseFailed("phase 3: it was killed")

    good, failing = phase(Taking(1.0), Taking(1.0)), phase(fails, fails)
    look_first(good, [])
    failing.pairs = [0.0, 0.0, 0.0]
    said = judge_together([good, failing], math.inf)
    assert isinstance(said[0], Compared) and str(said[1]) == "phase 3: it was killed"


def test_the_time_for_judging_grows_with_the_noise() -> None:
    def seconds(noise: float) -> float:
        chance = np.random.default_rng(7)
        phases = [PairedTimes(contextlib.nullcontext, list(noise * chance.standard_normal(3)), 3.0) for _ in range(40)]
        return seconds_to_settle(phases)

    assert seconds(0.005) == 0.0 < seconds(0.02) < seconds(0.04)
    assert seconds_to_settle([]) == 0.0
