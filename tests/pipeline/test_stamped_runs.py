# SPDX-License-Identifier: Apache-2.0
"""Plain runs with stamps: interval by interval as long as the timing run, and as long in all as without stamps."""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from native_profiles import made, profile_of
from programs import build
from tracing import streams_of

from checkpoint.process.children import Child
from checkpoint.process.plain_run import run_plain
from probe.formats.timing import Outside, TimedProfile
from probe.node.measuring import away_from
from probe.pipeline.reference import plain_run
from probe.pipeline.runs.boundaries import StampedRun, candidates, cheap_boundaries, split
from probe.pipeline.runs.sound_boundaries import merge_bad_boundaries
from probe.pipeline.validate import interval_run, validate
from probe.tracers.hot_sites import SAVING_SECONDS

MARKERS = 3


def timed_of(intervals: int = 10) -> TimedProfile:
    """Intervals of 50 ms each, after a start of 0.2 s."""
    profile = made(np.full((intervals, MARKERS), 200, dtype=np.int64))
    wanted = candidates(profile)
    wall = np.array([100 + 0.05 * c.boundary for c in wanted])
    run = StampedRun(wall, wall - 99.8, 100.0, 100 + 0.05 * intervals, 0.2 + 0.05 * intervals, {}, 0.2)
    return merge_bad_boundaries(profile, wanted, run)


def test_a_run_is_split_at_its_stamps() -> None:
    timed = timed_of()
    at = np.arange(9)
    wall = 10 + np.array([1, 2, 4, 5, 6, 7, 8, 9, 10]) * 0.05
    run = split(timed, at, StampedRun(wall, wall - 9.8, 10.0, 10.55, 0.75, {}, 0.2))
    assert run.interval_wall == pytest.approx([0.05, 0.05, 0.1, *[0.05] * 7])
    assert run.interval_cpu == pytest.approx(run.interval_wall)
    # The start is in the run, and in no interval.
    assert (run.wall, run.cpu) == pytest.approx((0.75, 0.75))


def test_intervals_between_two_stamps_share_their_time() -> None:
    timed = replace(timed_of(), seconds=np.array([0.05, 0.15, *[0.05] * 8]))
    run = split(timed, np.array([1]), StampedRun(np.array([10.4]), np.array([0.6]), 10.0, 11.2, 1.4, {}, 0.2))
    assert run.interval_wall == pytest.approx([0.1, 0.3, *[0.1] * 8])
    # Stamps that are missing, or came out of order, leave their intervals together.
    lost = StampedRun(np.array([10.4, np.nan, 10.3]), np.full(3, 0.6), 10.0, 11.2, 1.4, {}, 0.2)
    assert split(timed, np.array([1, 2, 4]), lost).interval_wall.sum() == pytest.approx(1.2)
    assert (split(timed, np.array([1, 2, 4]), lost).interval_wall > 0).all()


def test_the_time_of_other_processes_is_in_the_run_and_in_no_interval() -> None:
    timed = timed_of()
    wall = 10 + np.array([1, 2, 4, 5, 6, 7, 8, 9, 10]) * 0.05
    cpu = 0.2 + np.array([1, 2, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5]) * 0.05
    # A child lives in the third interval, for three quarters of it; its wrapper takes 0.3 s around the program.
    child = Child(1, None, False, began=10.125, ended=10.2, gone=10.2)
    plain = StampedRun(wall, cpu, 10.0, 10.55, 0.675, {}, 0.2)
    run = replace(plain, children=(child,), others=Outside(0.3, 0.07, ("child", "wrapper")), executed_cpu=0.15)
    found = split(timed, np.arange(9), run)
    assert found.interval_wall == pytest.approx([0.05, 0.05, 0.025, *[0.05] * 7])
    assert found.interval_cpu == pytest.approx(found.interval_wall)
    # What the worker's process computed before its execve is the wrapper's, and in its time already.
    assert (found.wall, found.cpu) == pytest.approx((0.55 + 0.3 + 0.05, 0.675 + 0.07))
    assert split(timed, np.arange(9), plain).interval_wall[2] == pytest.approx(0.1)


def test_markers_that_cost_time_are_left_out() -> None:
    timed = timed_of()
    cheap = made(np.full((10, MARKERS), 200, dtype=np.int64))
    assert len(cheap_boundaries(cheap, timed)) == 9
    hot = made(np.full((10, MARKERS), int(0.002 / SAVING_SECONDS), dtype=np.int64))
    assert len(cheap_boundaries(hot, timed)) == 0


@pytest.mark.timed
@pytest.mark.alone("compares times")
def test_stamps_cost_a_real_program_nothing(builds: Path, tmp_path: Path) -> None:
    profile = profile_of(build("nbody", builds), "150")
    with streams_of() as streams:
        timed = validate(profile, streams=streams)
    stamped, plain = [], []
    for _ in range(5):
        stamped.append(interval_run(profile, timed, tmp_path, "again", None))
        with streams_of() as streams:
            plain.append(run_plain(profile.program, streams).cpu)
    assert all(len(run.interval_cpu) == timed.intervals for run in stamped)
    assert min(run.cpu for run in stamped) < 1.05 * min(plain)
    for run in stamped:
        assert run.interval_cpu.sum() == pytest.approx(run.cpu, rel=0.1)
    best = np.min([run.interval_cpu for run in stamped], axis=0)
    assert np.median(np.abs(best / timed.cpu - 1)) < 0.5


@pytest.mark.alone("compares times of one processor, which it keeps busy")
@pytest.mark.timed
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no other processor to write from")
def test_code_written_from_another_processor_runs_as_fast(builds: Path, tmp_path: Path) -> None:
    """By turns with plain runs: on some virtual machines most such runs took a quarter longer."""
    profile = profile_of(build("nbody", builds), "150")
    with streams_of() as streams:
        timed = validate(profile, streams=streams)
    cpu = max(os.sched_getaffinity(0))
    stamped, plain = [], []
    with away_from(cpu):
        for number in range(10):
            stamped.append(interval_run(profile, timed, tmp_path, f"stamped-{number}", cpu).cpu)
            plain.append(plain_run(profile.program, tmp_path, f"plain-{number}", cpu=cpu, expected=0).cpu)
    slow = [seconds for seconds in stamped if seconds > 1.12 * statistics.median(plain)]
    assert len(slow) < 2, (stamped, plain)
