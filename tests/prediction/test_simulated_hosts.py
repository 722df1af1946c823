# SPDX-License-Identifier: Apache-2.0
"""Both intervals on simulated hosts with bursts, neighbours, pauses, drift, and one shared processor."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from simulated_hosts import (
    INTERVAL,
    KINDS,
    LASTS,
    PHASES,
    STEP,
    Disturbance,
    Host,
    Trial,
    bursts,
    drifting,
    paused,
    trial,
)

HELD, HELD_DISTURBED, HELD_SINGLE = 0.93, 0.9, 0.8
"""Shares of the trials whose interval holds; a stretch that was disturbed in most of the reference's runs is not
outvoted: docs/estimators.md has the figures. Last, of a single run that is paused by chance."""

TRIALS = {"quiet": 20, "bursts": 60, "neighbours": 60, "drift": 40, "one processor": 40, "pauses": 40}


@cache
def trials(kind: str, reference_too: bool, runs: int = 10) -> list[Trial]:
    rng = np.random.default_rng(2011)
    return [trial(rng, KINDS[kind], reference_too=reference_too, runs=runs) for _ in range(TRIALS[kind])]


def share(found: list[bool]) -> float:
    return float(np.mean(found))


@pytest.mark.parametrize("reference_too", [False, True])
@pytest.mark.parametrize("kind", ["quiet", "bursts", "neighbours", "pauses"])
def test_the_interval_holds_where_disturbances_come_and_go(kind: str, reference_too: bool) -> None:
    done = trials(kind, reference_too)
    needed = HELD_DISTURBED if reference_too else HELD
    assert share([one.holds(one.later) for one in done]) >= needed
    assert share([one.holds(one.meanwhile) for one in done]) >= needed
    # What two neighbours leave undisturbed is a quarter of the time: just what the level needs.
    if kind != "neighbours":
        assert share([one.holds_alone for one in done]) >= needed
    # A single run is held where the reference node shows how much its runs differ.
    if reference_too:
        assert share([one.holds(one.one) for one in done]) >= (HELD_SINGLE if kind == "pauses" else needed)
    # No interval is endless; where much is slower for half of the time, there are two numbers.
    assert np.median([one.said.half_width for one in done]) < (0.2 if reference_too else 0.1)
    if kind == "bursts":
        apart = [one.said.seconds / one.said.undisturbed.seconds for one in done if one.said.undisturbed]
        assert np.median(apart) > 1.04


@pytest.mark.parametrize("kind", ["quiet", "bursts", "pauses"])
def test_two_reference_runs_do_on_a_quiet_node(kind: str) -> None:
    done = trials(kind, False, runs=2)
    assert share([one.holds(one.meanwhile) for one in done]) >= HELD_DISTURBED
    assert share([one.holds_alone for one in done]) >= HELD_DISTURBED


def test_one_reference_run_has_no_spread() -> None:
    done = trials("quiet", False, runs=1)
    assert share([one.holds(one.meanwhile) for one in done]) >= HELD
    assert np.median([one.said.half_width for one in done]) > 0.1


def test_full_runs_by_turns_with_rounds_meet_the_clock_that_the_phases_met() -> None:
    """With all runs first, ET_ref and T_ref come from different minutes: half of the intervals hold."""
    fallen = trials("drift", True)
    assert share([one.holds(one.meanwhile) for one in fallen]) >= HELD_DISTURBED
    assert np.median([abs(one.said.seconds / one.meanwhile - 1) for one in fallen]) < 0.05


def test_a_clock_that_falls_to_half_widens_the_interval_enough() -> None:
    done = trials("drift", False)
    assert share([one.holds(one.meanwhile) for one in done]) >= HELD
    quiet = trials("quiet", False)
    assert np.median([one.said.half_width for one in done]) > 5 * np.median([one.said.half_width for one in quiet])


def test_of_a_shared_processor_the_undisturbed_number_holds() -> None:
    assert share([one.holds_alone for one in trials("one processor", False)]) >= HELD


def test_what_the_intervals_do_not_claim() -> None:
    """docs/estimators.md, "Simulated hosts": where this is mended, that page is wrong."""
    sliced = trials("one processor", False)
    # Repeats that waited for the processor are left out, and with them what cold caches cost.
    assert share([one.holds(one.later) for one in sliced]) < 0.7
    assert np.median([one.said.seconds / one.later for one in sliced]) < 1.0
    # What two neighbours leave undisturbed is a quarter of the time: just what the level needs.
    assert share([one.holds_alone for one in trials("neighbours", False)]) < 0.9


# ---- the model itself


def test_a_host_does_what_its_kind_says() -> None:
    rng = np.random.default_rng(5)
    flat = np.full(PHASES, 0.2)
    for name, kind in KINDS.items():
        what = kind(rng, flat)
        host = Host(rng, 2.0, what)
        begun = host.now
        run = host.run()
        # Time goes on by the wall; nothing is faster than undisturbed.
        assert host.now - begun == pytest.approx(run[:, 0].sum()), name
        assert run[:, 1].mean() > 1.9 * INTERVAL and (run[:, 0] >= run[:, 1]).all(), name
    begun = host.now
    assert host.repeats(3).shape == (3, PHASES, 2) and host.now - begun > 3 * PHASES * 0.06


def test_disturbances_are_as_large_as_they_say() -> None:
    rng = np.random.default_rng(6)
    on = bursts(rng)
    assert len(on) == int(LASTS / STEP) and set(on) == {0.0, 1.0} and 0.3 < on.mean() < 0.7
    fallen = drifting(rng, np.zeros(PHASES)).slower[:, 0]
    assert fallen.max() == pytest.approx(2, rel=0.01) and fallen.min() == pytest.approx(1, rel=0.01)
    # Within a minute.
    assert abs(int(fallen.argmax()) - int(fallen.argmin())) * STEP % 120 == pytest.approx(60, abs=1)
    stops = paused(rng, np.zeros(PHASES)).pauses
    assert (stops > 0).sum() / LASTS == pytest.approx(2, rel=0.2) and stops.max() <= 0.05
    stopped = Host(rng, 1.0, Disturbance(pauses=np.full(10, 0.01))).run()
    assert (stopped > INTERVAL + 0.009).all()
    sliced = Host(rng, 1.0, Disturbance(away=np.full(10, 0.5))).run()
    assert sliced[:, 0] == pytest.approx(2 * sliced[:, 1])
