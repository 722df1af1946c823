# SPDX-License-Identifier: Apache-2.0
"""Sharing of the work by threads: the marking one alone, the bound that this sets, and one that only hands work out."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from probe.formats.profile import Profile
from probe.formats.selection import Phase
from probe.formats.timing import TimedProfile, sum_rows
from probe.prediction.sharing import Sharing, doubts_of_sharing, notes_of_sharing, sharing_of


def run_of(
    own: list[list[int]],
    others: list[list[int]],
    *,
    cpu: list[float] | None = None,
    seconds: list[float] | None = None,
    joined: list[int] | None = None,
    thin: bool = False,
    by_thread: list[list[int]] | None = None,
) -> tuple[Profile, TimedProfile]:
    """A run of two threads. Rows are the intervals traced, columns are blocks of 2 and 10 instructions; `joined`: the
    rows that timed intervals begin with, and the number of rows."""
    first, counts = sp.csr_array(np.array(own)), sp.csr_array(np.array(own) + np.array(others))
    edges = np.array(joined or range(len(own) + 1))
    length = np.array(seconds or [1.0] * (len(edges) - 1))
    profile = SimpleNamespace(
        first=first, counts=counts, blocks=SimpleNamespace(instructions=np.array([2, 10])), thin=thin,
        program=SimpleNamespace(threads=2),
        thread_work=None if by_thread is None else np.array(by_thread, dtype=np.float64),
    )  # fmt: skip
    timed = SimpleNamespace(
        counts=sum_rows(counts, edges), first_row=edges, seconds=length,
        cpu=np.array(cpu) if cpu else length.copy(),
    )  # fmt: skip
    return cast(Profile, profile), cast(TimedProfile, timed)


def phase(number: int, *members: int) -> Phase:
    return Phase(number, members[0], np.array(members), 0.5, 0.5, 0.0)


def known(sharing: Sharing | None) -> Sharing:
    assert sharing is not None
    return sharing


def test_the_marking_thread_alone_bounds_what_more_threads_bring() -> None:
    """Of four intervals, one of them twice as long, it is alone in two: for three of five seconds."""
    run = run_of([[5, 9], [5, 1], [0, 9], [5, 0]], [[0, 0], [0, 6], [0, 0], [5, 4]], seconds=[1.0, 1.0, 2.0, 1.0])
    sharing = known(sharing_of(*run))
    assert sharing.alone.tolist() == [True, False, True, False]
    assert sharing.alone_share == pytest.approx(0.6) and sharing.fastest == pytest.approx(5 / 3)
    assert sharing.marking == pytest.approx((100 + 20 + 90 + 10) / (220 + 60 + 50))
    note, shared = notes_of_sharing(sharing, [phase(0, 0, 2), phase(1, 1, 3)])
    assert shared == "threads at work, interval by interval: not running for 50% of their time"
    assert note == (
        "the thread that tells places executes 67% of the counted instructions, and works alone for 60% of the time "
        "(phase 0): more threads make the run 1.7 times as fast at most (Amdahl's bound)"
    )
    assert doubts_of_sharing(sharing) == []


def test_work_that_is_not_counted_is_work() -> None:
    """The others execute nothing that is counted, and the process uses two processors."""
    run = run_of([[5, 9], [5, 9]], [[0, 0], [0, 0]], cpu=[1.0, 1.9])
    assert known(sharing_of(*run)).alone.tolist() == [True, False]


def test_intervals_are_those_timed() -> None:
    """Two of the traced were joined, and in one of them another works."""
    run = run_of([[5, 9], [5, 9], [5, 9]], [[0, 0], [0, 9], [0, 0]], joined=[0, 2, 3])
    assert known(sharing_of(*run)).alone.tolist() == [False, True]


def test_nothing_counted_is_nothing_known() -> None:
    assert not known(sharing_of(*run_of([[0, 0], [1, 0]], [[0, 0], [1, 0]]))).alone.any()
    assert sharing_of(*run_of([[1, 0]], [[0, 0]], thin=True)) is None
    profile, timed = run_of([[1, 0]], [[0, 0]])
    cast(Any, profile).first = None
    assert sharing_of(profile, timed) is None


def test_imbalance_and_idleness_of_a_phase_are_means_over_its_time() -> None:
    """Two threads: equal; one has three quarters; one has all. CPU time of two, one and a half, and one processor."""
    run = run_of(
        [[5, 0], [5, 0], [5, 0]], [[5, 0], [5, 0], [0, 0]], cpu=[2.0, 1.5, 2.0], seconds=[1.0, 1.0, 2.0],
        by_thread=[[10, 10], [30, 10], [0, 20]],
    )  # fmt: skip
    sharing = known(sharing_of(*run))
    assert sharing.imbalance is not None and sharing.imbalance.tolist() == pytest.approx([0.0, 2 / 3, 1.0])
    assert sharing.waiting.tolist() == pytest.approx([0.0, 0.25, 0.5])
    whole, first, last = sharing.record(), sharing.record(np.array([0, 1])), sharing.record(np.array([2]))
    assert (whole.imbalance, whole.waiting) == pytest.approx(((2 / 3 + 2) / 4, (0.25 + 1.0) / 4), abs=1e-6)
    assert (first.imbalance, first.waiting) == pytest.approx((1 / 3, 0.125), abs=1e-6)
    assert (last.imbalance, last.waiting, last.marking, last.alone) == (1.0, 0.5, 1.0, 1.0)
    said = notes_of_sharing(sharing, [phase(0, 0, 1, 2)])[-1]
    assert said == "threads at work, interval by interval: imbalance 67%, not running for 31% of their time"


def test_more_slots_than_threads_that_work_are_idle_helpers() -> None:
    """The third has nearly nothing: two that are equal stay equal."""
    run = run_of([[5, 0]], [[5, 0]], by_thread=[[1000, 1000, 1]])
    found = known(sharing_of(*run)).imbalance
    assert found is not None and found[0] == pytest.approx(0.0, abs=1e-9)


def test_intervals_joined_add_up_the_threads_work() -> None:
    run = run_of(
        [[5, 9], [5, 9], [5, 9]], [[0, 0], [0, 9], [0, 0]], joined=[0, 2, 3], by_thread=[[9, 0], [0, 9], [9, 0]]
    )
    found = known(sharing_of(*run)).imbalance
    assert found is not None and found.tolist() == [0.0, 1.0]


def test_never_alone_is_no_bound() -> None:
    sharing = known(sharing_of(*run_of([[5, 0], [5, 0]], [[5, 0], [5, 0]])))
    assert sharing.fastest == math.inf
    note, _ = notes_of_sharing(sharing, [phase(0, 0, 1)])
    assert note == "the thread that tells places executes 50% of the counted instructions, and hardly ever works alone"


def test_many_phases_alone_are_not_all_named() -> None:
    sharing = known(sharing_of(*run_of([[5, 0]] * 9 + [[5, 5]], [[0, 0]] * 9 + [[5, 5]])))
    note, _ = notes_of_sharing(sharing, [phase(number, number) for number in range(10)])
    assert "(phases 0, 1, 2, 3, 4, 5, 6, 7, ...): more threads" in note


def test_a_thread_that_only_hands_out_work_is_warned_of() -> None:
    """It does 1 % of the work of two; at 5 % it takes part."""
    (said,) = doubts_of_sharing(known(sharing_of(*run_of([[1, 0]], [[99, 0]]))))
    assert "does 1.00% of the work, and hands out the rest" in said
    assert doubts_of_sharing(known(sharing_of(*run_of([[5, 0]], [[95, 0]])))) == []


@given(st.lists(st.tuples(st.floats(0.01, 10), st.booleans()), min_size=1, max_size=30))
def test_the_bound_is_what_is_left_with_any_number_of_threads(intervals: list[tuple[float, bool]]) -> None:
    """Where all but what one thread does alone takes no time."""
    seconds, alone = np.array([s for s, _ in intervals]), np.array([a for _, a in intervals])
    none = np.zeros(len(seconds))
    sharing = Sharing(2, 0.5, alone, seconds, none, none, None, none)
    left = float(seconds[alone].sum())
    assert sharing.fastest == (pytest.approx(float(seconds.sum()) / left) if left else math.inf)
