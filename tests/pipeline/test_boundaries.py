# SPDX-License-Identifier: Apache-2.0
"""Boundaries between intervals: their candidates, and how they merge where stamps disagree."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_profiles import made

from checkpoint.errors import Diverged
from probe.formats.profile import Profile
from probe.pipeline.runs.boundaries import Candidate, StampedRun, candidates, longest_rising
from probe.pipeline.runs.sound_boundaries import merge_bad_boundaries

matrices = st.integers(2, 8).flatmap(
    lambda n: st.integers(1, 6).flatmap(
        lambda b: st.lists(
            st.lists(st.sampled_from([0, 1, 4, 30, 200]), min_size=b, max_size=b), min_size=n, max_size=n
        )
    )
)


@given(matrices)
def test_candidates_are_the_next_executions_of_active_blocks(rows: list[list[int]]) -> None:
    counts = np.array(rows, dtype=np.int64)
    found = candidates(made(counts))
    for c in found:
        assert c.count == counts[: c.boundary, c.column].sum() + 1
        assert counts[c.boundary - 1, c.column] and counts[c.boundary, c.column]
    active = {k for k in range(1, len(counts)) if ((counts[k - 1] > 0) & (counts[k] > 0)).any()}
    assert {c.boundary for c in found} == active
    assert all(sum(c.boundary == k for c in found) <= 3 for k in active)


def test_a_hot_loop_marks_no_boundary_near_a_cheap_one() -> None:
    """Its stub would run all the time, for the sake of two intervals that may as well be one."""
    counts = np.zeros((60, 2), dtype=np.int64)
    counts[:, 0] = 10**9
    counts[:20, 1] = 200
    counts[21:24, 1] = 200
    found = candidates(made(counts))
    cheap = {c.boundary for c in found if c.column == 1}
    hot = {c.boundary for c in found if c.column == 0}
    assert cheap == {*range(1, 20), 22, 23}
    assert hot == set(range(29, 60)), "a flat stretch keeps its own marker, and nothing else does"


@given(st.lists(st.floats(0, 10, allow_nan=False) | st.integers(0, 9).map(float), max_size=10))
def test_longest_rising_against_all_subsequences(values: list[float]) -> None:
    chosen = longest_rising(np.array(values)).tolist()
    assert chosen == sorted(set(chosen))
    assert all(values[a] < values[b] for a, b in pairwise(chosen))
    longest: list[int] = []
    for i, value in enumerate(values):
        longest.append(1 + max((longest[j] for j in range(i) if values[j] < value), default=0))
    assert len(chosen) == max(longest, default=0)


@st.composite
def timing_runs(draw: st.DrawFn) -> tuple[Profile, list[Candidate], StampedRun]:
    """Forty intervals of three blocks; one boundary at most is missing or out of order."""
    intervals = 40
    chance = np.random.default_rng(draw(st.integers(0, 1000)))
    counts = chance.integers(1, 300, (intervals, 3))
    profile = made(counts.astype(np.int64))
    wanted = candidates(profile)
    wall = np.array([100 + 0.05 * c.boundary for c in wanted]) + chance.uniform(0, 0.01, len(wanted))
    bad = draw(st.none() | st.integers(8, intervals - 8))  # where a shift stays within the run
    shift = draw(st.sampled_from([np.nan, 0.3, -0.3]))
    for i, c in enumerate(wanted):
        if c.boundary == bad:
            wall[i] += shift
    cpu = wall - 99
    totals = {0: int(counts[:, 0].sum()), 1: int(counts[:, 1].sum()), 2: -1}
    return profile, wanted, StampedRun(wall, cpu, 100.0, 102.1, 3.2, totals, 1.0)


@given(timing_runs())
def test_merging_keeps_counts_and_seconds(case: tuple[Profile, list[Candidate], StampedRun]) -> None:
    profile, wanted, stamped = case
    timed = merge_bad_boundaries(profile, wanted, stamped)
    assert (np.asarray(timed.counts.sum(axis=0)) == np.asarray(profile.counts.sum(axis=0))).all()
    assert timed.seconds.sum() == pytest.approx(2.1) and timed.cpu.sum() == pytest.approx(2.2)
    assert (timed.seconds > 0).all() and timed.wall_seconds == pytest.approx(2.1)
    assert (np.diff(timed.first_row) > 0).all()
    assert timed.first_row[0] == 0 and timed.first_row[-1] == profile.intervals
    assert timed.intervals == profile.intervals - timed.missing - timed.out_of_order
    assert timed.missing + timed.out_of_order <= 1 and timed.unmarked == 0
    assert (timed.agreeing, timed.compared) == (2, 3)
    for row, (low, high) in enumerate(zip(timed.first_row, timed.first_row[1:], strict=False)):
        assert (timed.counts[[row]].toarray() == profile.counts[low:high].sum(axis=0)).all()
    by_place = {(c.column, c.count): c.boundary for c in wanted}
    pairs = zip(timed.columns.tolist(), timed.executions.tolist(), strict=True)
    assert [by_place[pair] for pair in pairs] == timed.first_row[1:-1].tolist()


def test_too_many_bad_boundaries_are_a_divergence() -> None:
    profile = made(np.full((40, 2), 200, dtype=np.int64))
    wanted = candidates(profile)
    wall = np.array([100 + 0.05 * c.boundary for c in wanted])
    sound = StampedRun(wall, wall, 100.0, 102.1, 3.0, {})
    assert merge_bad_boundaries(profile, wanted, sound).missing == 0
    for spoilt in (np.where(np.arange(len(wall)) % 20 < 6, np.nan, wall), wall[::-1].copy()):
        with pytest.raises(Diverged, match="did not repeat"):
            merge_bad_boundaries(profile, wanted, replace(sound, wall=spoilt))


def test_the_earliest_stamp_is_the_boundary() -> None:
    profile = made(np.full((10, 3), 200, dtype=np.int64))
    wanted = candidates(profile)
    wall = np.array([100 + 0.05 * c.boundary + 0.01 * (2 - c.column) for c in wanted])
    timed = merge_bad_boundaries(profile, wanted, StampedRun(wall, wall, 100.0, 101.0, 2.0, {}))
    assert set(timed.columns.tolist()) == {2}
