# SPDX-License-Identifier: Apache-2.0
"""Markers that place no boundary: they tell that a program draws its way inside a steady loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from native_profiles import made

from checkpoint.errors import Diverged
from probe.formats.choices import INSTRUCTIONS
from probe.formats.profile import Profile
from probe.pipeline.runs.boundaries import Candidate, StampedRun, candidates
from probe.pipeline.runs.sound_boundaries import merge_bad_boundaries
from probe.pipeline.runs.witnesses import witnesses

LOOP, HEAD, OFTEN, LESS, RARE = range(5)


@pytest.fixture
def profile() -> Profile:
    """A loop of 200 steps in each interval, its head, two ways inside, and what is printed now and then."""
    drawn = np.tile([[60, 140], [90, 80]], (20, 1))
    columns = [np.full((40, 1), 200), np.full((40, 1), 201), drawn[:, 1:], drawn[:, :1], np.full((40, 1), 4)]
    return made(np.concatenate(columns, axis=1))


@pytest.fixture
def wanted(profile: Profile) -> list[Candidate]:
    return [c for c in candidates(profile) if c.column in (LOOP, HEAD)]


def stamped(wanted: list[Candidate], totals: dict[int, int]) -> StampedRun:
    wall = np.array([100 + 0.05 * c.boundary for c in wanted])
    return StampedRun(wall, wall, 100.0, 102.1, 3.0, totals)


def test_what_differs_from_the_loop_is_counted(profile: Profile, wanted: list[Candidate]) -> None:
    assert {c.column for c in wanted} == {LOOP, HEAD}
    assert witnesses(profile, wanted) == (OFTEN, LESS)
    assert witnesses(profile, wanted, native_seconds=1e-6) == ()
    more = [*wanted, Candidate(1, OFTEN, 10), Candidate(1, LESS, 10)]
    assert witnesses(profile, more) == () and witnesses(profile, more[:-1]) == (LESS,)
    assert witnesses(profile, []) == ()
    # Where threads share the work, or another processor was shown, other counts are no fault.
    assert witnesses(replace(profile, first=profile.counts), wanted) == ()
    assert witnesses(replace(profile, unit=INSTRUCTIONS), wanted) == ()


def test_ways_that_are_drawn_are_no_repetition(profile: Profile, wanted: list[Candidate]) -> None:
    steady = {LOOP: 8000, HEAD: 8040}
    with pytest.raises(Diverged, match="of 4 markers only 2 were"):
        merge_bad_boundaries(profile, wanted, stamped(wanted, {**steady, OFTEN: 4100, LESS: 3300}))
    only = [c for c in wanted if c.column == LOOP]
    with pytest.raises(Diverged, match="of 2 markers only 1 were"):
        merge_bad_boundaries(profile, only, stamped(only, {LOOP: 8000, OFTEN: 4100}))


def test_witnesses_place_nothing_and_may_be_off_by_little(profile: Profile, wanted: list[Candidate]) -> None:
    """One execution more is nothing; one of many that is far off does not refuse the run."""
    steady = {LOOP: 8000, HEAD: 8040}
    for others in ({OFTEN: 4401, LESS: 3001}, {OFTEN: 4400, LESS: 3300}):
        timed = merge_bad_boundaries(profile, wanted, stamped(wanted, {**steady, **others}))
        assert {*timed.columns.tolist()} <= {LOOP, HEAD} and timed.compared == 4
        assert timed.seconds[1:-1] == pytest.approx(0.05)
    # By a marker that places boundaries one execution more is a difference.
    assert merge_bad_boundaries(profile, wanted, stamped(wanted, {LOOP: 8001, HEAD: 8040})).agreeing == 1
