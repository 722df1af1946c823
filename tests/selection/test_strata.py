# SPDX-License-Identifier: Apache-2.0
"""Strata: best cuts, their order, their representatives, and the error on intervals held out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_intervals import QUICK, intervals

from probe.selection.strata import (
    apply_cuts,
    best_cut,
    held_out_errors,
    merge_ineligible,
    refine,
    representative,
    weighted_spread,
)


@given(st.lists(st.tuples(st.integers(-20, 20), st.integers(1, 9), st.booleans()), min_size=2, max_size=14))
def test_best_cut_agrees_with_trying_all_of_them(rows: list[tuple[int, int, bool]]) -> None:
    values = np.array([r[0] for r in rows], dtype=float)
    weights = np.array([r[1] for r in rows], dtype=float)
    eligible = np.array([r[2] for r in rows])

    def cost(limit: float) -> float:
        low = values <= limit
        return sum(weights[p].sum() * weighted_spread(values[p], weights[p]) for p in (low, ~low))

    def allowed(limit: float) -> bool:
        low = values <= limit
        return bool(eligible[low].any() and eligible[~low].any())

    limits = sorted(set(values.tolist()))
    between = [(a + b) / 2 for a, b in pairwise(limits)]
    costs = [cost(limit) for limit in between if allowed(limit)]
    found = best_cut(values, weights, eligible)
    whole = weights.sum() * weighted_spread(values, weights)
    if not costs or min(costs) > whole - 1e-9:
        assert found is None or cost(found) <= whole + 1e-6
    else:
        assert found is not None
        assert allowed(found)
        assert cost(found) == pytest.approx(min(costs), abs=1e-5)


def test_cuts_are_made_only_from_the_intervals_named_and_apply_to_all() -> None:
    seconds = np.array([1.0, 1.1, 10.0, 10.5, 900.0, 1.05])
    run = intervals(seconds)
    within = np.array([True, True, True, True, False, False])
    other = seconds.copy()
    other[4:] = [3.0, 7.0]
    labels = np.zeros(6, dtype=np.int64)
    options = replace(QUICK, max_phases=2)
    cuts = refine(run, labels, within, options)
    assert cuts == refine(intervals(other, work=np.ones(6)), labels, within, options)
    assert apply_cuts(run, labels, cuts).tolist() == [0, 0, 1, 1, 1, 0]


def test_strata_of_noise_are_not_cut() -> None:
    run = intervals(np.random.default_rng(0).lognormal(0, 0.02, 200))
    assert refine(run, np.zeros(200, dtype=np.int64), np.ones(200, dtype=bool), QUICK) == []


def test_the_most_urgent_stratum_is_cut_first() -> None:
    # Stratum 0 spreads more, stratum 1 holds far more time.
    seconds = np.array([0.01, 0.1, 0.01, 0.1, 10.0, 20.0, 10.0, 20.0])
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    cuts = refine(intervals(seconds), labels, np.ones(8, dtype=bool), QUICK)
    assert cuts[0].stratum == 1


def test_representative_has_the_rate_of_the_stratum_and_its_code() -> None:
    # The middle of the code is interval 2, but that one is three times slower than the rest.
    points = [[0.0, 0], [0.4, 0], [0.5, 0], [0.6, 0], [1.0, 0]]
    run = intervals([1.0, 1.0, 3.0, 1.02, 1.0], points=points)
    members = np.arange(5)
    assert representative(run, members, replace(QUICK, refine_by_time=False)) == 2
    assert representative(run, members, QUICK) in (1, 3)
    blocked = intervals([1.0, 1.0, 3.0, 1.02, 1.0], points=points, eligible=[1, 0, 1, 0, 1])
    assert representative(blocked, members, QUICK) in (0, 4)


def test_strata_without_eligible_members_join_the_nearest() -> None:
    points = [[0.0, 0], [0.0, 0], [1.0, 0], [5.0, 0], [5.0, 0]]
    run = intervals(np.ones(5), points=points, eligible=[1, 1, 0, 1, 1])
    labels, moved = merge_ineligible(run, np.array([7, 7, 2, 5, 5]), run.eligible)
    assert labels.tolist() == [7, 7, 7, 5, 5]
    assert moved == {2: 7}


def test_held_out_error_by_hand() -> None:
    # Made from intervals 0 and 1 (rate 1); the fold holds 1.5 + 2.5 seconds against 1 + 1 estimated.
    run = intervals([1.0, 1.0, 1.5, 2.5])
    fold = np.array([False, False, True, True])
    path = held_out_errors(run, np.zeros(4, dtype=np.int64), fold, QUICK)
    assert path == pytest.approx([2.0 / 4.0])
    # Errors -1 and +1 of two strata cancel in the total, not in the score.
    run = intervals([2.0, 2.0, 3.0, 1.0])
    path = held_out_errors(run, np.array([0, 1, 0, 1]), fold, replace(QUICK, refine_by_time=False))
    assert path == pytest.approx([np.sqrt(2.0) / 4.0])
