# SPDX-License-Identifier: Apache-2.0
"""Waits: bounds that hold as often as they say, and a queue simulated as EASY backfilling has it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lublin import load

from checkpoint.errors import NoPrediction, ProbeError
from probe.scaling.backfilling import Job, Running, simulate
from probe.scaling.waiting import Wait, bound, least_waits, like, quantile_bound


def test_fourteen_waits_are_needed() -> None:
    """0.8^14 is 0.044."""
    assert (least_waits(0.8), least_waits(0.5), least_waits(0.95)) == (14, 5, 59)
    with pytest.raises(NoPrediction, match=r"13 like jobs are in the history; .* needs 14"):
        quantile_bound([1.0] * 13, 0.8)
    assert quantile_bound([float(n) for n in range(14)], 0.8) == 13


@given(st.integers(14, 400), st.sampled_from([0.5, 0.8]))
def test_the_bound_is_the_least_order_statistic_that_is_certain_enough(count: int, probability: float) -> None:
    """By the sum of the binomial distribution."""
    position = quantile_bound([float(n) for n in range(1, count + 1)], probability)
    below = [math.comb(count, k) * probability**k * (1 - probability) ** (count - k) for k in range(count + 1)]
    assert sum(below[: int(position)]) >= 0.95 - 1e-9
    assert sum(below[: int(position) - 1]) < 0.95 + 1e-9


def test_bounds_hold_95_times_in_100() -> None:
    """Of a quantile that is known: of 400 bounds 380, and fewer than 367 are chance in 1000."""
    generator = np.random.default_rng(1)
    true = -math.log(0.2)
    held = sum(quantile_bound(generator.exponential(size=60).tolist(), 0.8) >= true for _ in range(400))
    assert held >= 367


def test_like_jobs() -> None:
    history = [Wait(float(n), 1.0, cores, 600.0) for n, cores in enumerate([1, 4, 8, 16, 64] * 20)]
    assert {one.cores for one in like(history, 8, 600.0)} == {4, 8, 16}
    few = [Wait(1.0, 1.0, 8, 7200.0)]
    assert len(like([*history, *few], 8, 7200.0)) == 61, "too few of this limit: of this size, then"


def test_jobs_that_still_wait_are_no_empty_queue() -> None:
    """Twenty waits of a second, and ten jobs that have waited for an hour by now."""
    started = [Wait(float(n), 1.0, 8, 600.0) for n in range(20)]
    stuck = [Wait(100.0 + n, 3600.0, 8, 600.0, ended=False) for n in range(10)]
    assert bound(started, 8, 600.0, 0.8).seconds == 1
    assert bound([*started, *stuck], 8, 600.0, 0.8).seconds == 3600
    fresh = [Wait(100.0 + n, 0.5, 8, 600.0, ended=False) for n in range(10)]
    assert bound([*started, *fresh], 8, 600.0, 0.8).seconds == 1


def test_backfilling_does_not_delay_the_first_in_line() -> None:
    """Four cores, two of them busy until 10: a job of four waits for these, short ones go before it, a long one not."""
    running = [Running(2, 10.0, 10.0)]
    jobs = [
        Job("large", 0.0, 4, 5.0, 5.0),
        Job("short", 0.0, 2, 10.0, 10.0),
        Job("long", 0.0, 1, 11.0, 11.0),
    ]
    assert simulate(jobs, 4, running=running) == {"short": 0.0, "large": 10.0, "long": 15.0}
    narrow = [Job("large", 0.0, 3, 5.0, 5.0), Job("long", 0.0, 1, 100.0, 100.0)]
    assert simulate(narrow, 4, running=running) == {"long": 0.0, "large": 10.0}, "one core stays free for it"


def test_priority_goes_before_submission() -> None:
    jobs = [Job("first", 0.0, 4, 5.0, 5.0), Job("urgent", 0.0, 4, 5.0, 5.0, priority=9)]
    assert simulate(jobs, 4) == {"urgent": 0.0, "first": 5.0}


def test_a_job_that_never_fits() -> None:
    with pytest.raises(ProbeError, match="never starts"):
        simulate([Job("huge", 0.0, 5, 1.0, 1.0)], 4)
    assert simulate([Job("a", 0.0, 4, 1.0, 1.0)], 4, running=[]) == {"a": 0.0}


jobs_lists = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 8), st.integers(1, 20), st.floats(1, 3)), min_size=1, max_size=30
)


@given(jobs_lists)
def test_never_more_cores_than_there_are(said: list[tuple[int, int, int, float]]) -> None:
    jobs = [Job(f"j{n}", float(a), c, float(s), s * f) for n, (a, c, s, f) in enumerate(said)]
    starts = simulate(jobs, 8)
    assert starts.keys() == {job.name for job in jobs}
    for job in jobs:
        assert starts[job.name] >= job.submitted
        moment = starts[job.name]
        busy = sum(o.cores for o in jobs if starts[o.name] <= moment < starts[o.name] + o.seconds)
        assert busy <= 8


@given(jobs_lists)
def test_some_job_starts_whenever_the_first_one_fits(said: list[tuple[int, int, int, float]]) -> None:
    """The first in line never waits while its cores are free."""
    jobs = [Job(f"j{n}", float(a), c, float(s), s * f) for n, (a, c, s, f) in enumerate(said)]
    starts = simulate(jobs, 8)
    ends = sorted({starts[job.name] + job.seconds for job in jobs})
    for moment in ends:
        waiting = sorted(
            (job for job in jobs if job.submitted <= moment < starts[job.name]), key=lambda job: job.submitted
        )
        if waiting:
            busy = sum(o.cores for o in jobs if starts[o.name] <= moment < starts[o.name] + o.seconds)
            assert waiting[0].cores > 8 - busy


def test_80_percent_bounds_hold_on_a_lublin_load() -> None:
    """Waits of 3,000 jobs on 64 cores under EASY backfilling: each is judged by those that came before it."""
    given_load = list(load(3000, 64, 3, arrivals=1.2))
    jobs = [Job(str(n), one.arrival, one.cores, one.seconds, one.limit) for n, one in enumerate(given_load)]
    starts = simulate(jobs, 64)
    waits = [Wait(job.submitted, starts[job.name] - job.submitted, job.cores, job.limit) for job in jobs]
    held = judged = 0
    for position in range(1500, 3000, 5):
        mine = waits[position]
        now = mine.submitted
        before = [w for w in waits[max(0, position - 800) : position]]
        seen = [w if w.submitted + w.seconds <= now else Wait(w.submitted, now - w.submitted, w.cores, w.limit, False)
                for w in before]  # fmt: skip
        try:
            found = bound(seen, mine.cores, mine.limit, 0.8)
        except NoPrediction:
            continue
        judged += 1
        held += mine.seconds <= found.seconds + 1e-9
    assert judged > 250 and np.mean([w.seconds > 1 for w in waits]) > 0.3, "a queue that is worth asking about"
    assert 0.75 <= held / judged <= 0.95, held / judged
