# SPDX-License-Identifier: Apache-2.0
"""The timing run of programs that start processes, and of a wrapper's worker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from native_profiles import INTERVAL, totals
from programs import build
from tracing import program_of, streams_of

from checkpoint.process.plain_run import PlainRun, run_plain
from checkpoint.process.program import Program, Worker
from probe.formats.intervals import outside_share
from probe.formats.profile import Profile
from probe.formats.reference import Reference
from probe.formats.timing import IntervalRun, TimedProfile, load_timing, save_timing
from probe.pipeline.runs.boundaries import candidates, plan_region
from probe.pipeline.runs.stamped import stamped_run
from probe.pipeline.select import _room_for
from probe.pipeline.validate import interval_run, validate
from probe.tracers.native import trace


def traced_and_timed(program: Program) -> tuple[Profile, TimedProfile]:
    with streams_of() as streams:
        profile = trace(program, interval=INTERVAL, streams=streams)
    with streams_of() as streams:
        return profile, validate(profile, streams=streams)


def timed_of(program: Program) -> TimedProfile:
    return traced_and_timed(program)[1]


@pytest.mark.parametrize(("mode", "least", "most"), [("start", 0, 0.1), ("fork", 0.1, 0.3), ("beside", 0.1, 0.3)])
def test_the_time_of_children_is_in_no_interval(mode: str, least: float, most: float, builds: Path) -> None:
    program = program_of(build("helpers", builds), "400", mode, "100")
    timed = timed_of(program)
    with streams_of() as streams:
        plain = run_plain(program, streams)
    own, outside = timed.cpu.sum(), timed.outside
    assert own + outside.cpu == pytest.approx(plain.cpu, rel=0.2)
    assert least <= outside.cpu / (own + outside.cpu) <= most
    assert timed.seconds.sum() + outside.wall == pytest.approx(timed.wall_seconds)
    assert 0 < timed.beside.sum() < timed.intervals and (timed.seconds > 0).all()
    assert (timed.cpu < 0.5 * timed.cpu.sum()).all(), "a child's time is in an interval"


def test_a_child_that_has_ended_is_beside_where_it_is_waited_for(builds: Path) -> None:
    timed = timed_of(program_of(build("helpers", builds), "400", "later"))
    done = np.cumsum(timed.counts.sum(axis=1)) / timed.counts.sum()
    found = done[timed.beside]
    assert 0.5 < found[-1] < 0.9 and ((found < 0.2) | (found > 0.6)).all()
    assert timed.beside.sum() < 0.2 * timed.intervals


def timed_stamped_and_plain(program: Program, folder: Path) -> tuple[TimedProfile, IntervalRun, PlainRun]:
    """The program's timing run, a run with stamps where they cost nothing, and a plain one."""
    profile, timed = traced_and_timed(program)
    run = interval_run(profile, timed, folder, "again", None)
    with streams_of() as streams:
        return timed, run, run_plain(program, streams)


@pytest.mark.timed
def test_stamped_runs_leave_out_children_and_take_as_long_as_plain_ones(builds: Path, tmp_path: Path) -> None:
    program = program_of(build("helpers", builds), "400", "fork", "100")
    timed, run, plain = timed_stamped_and_plain(program, tmp_path)
    assert run.cpu == pytest.approx(plain.cpu, rel=0.2)
    assert run.interval_cpu.sum() == pytest.approx(timed.cpu.sum(), rel=0.2)
    assert run.interval_wall.sum() == pytest.approx(timed.seconds.sum(), rel=0.2)
    outside = run.cpu - run.interval_cpu.sum()
    assert 0.1 * run.cpu <= outside <= 0.3 * run.cpu, "the children's fifth"


def test_children_are_kept_with_the_times(builds: Path, tmp_path: Path) -> None:
    timed = timed_of(program_of(build("helpers", builds), "200", "system", "60"))
    save_timing(timed, tmp_path / "timing.npz")
    loaded = load_timing(tmp_path / "timing.npz")
    assert loaded.outside == timed.outside and (loaded.beside == timed.beside).all()
    assert set(timed.outside.commands) == {"sh -c uname -s >/dev/null; :", "uname -s"}


def times(beside: str) -> TimedProfile:
    """Intervals of a second, with an x where a child lived."""
    ones = np.ones(len(beside))
    none, row = np.zeros(0, dtype=np.int64), np.zeros(len(beside) - 1, dtype=np.int64)
    held = np.array([c == "x" for c in beside])
    return TimedProfile(none, ones, ones, row, np.arange(1, len(beside)), none, 9.0, 0, 0, 0, 0, 0, beside=held)


def test_no_warm_up_reaches_back_to_a_child() -> None:
    timed = times("...x....")
    assert [timed.room_before(k) for k in range(1, 8)] == [0, 1, 2, 0, 1, 2, 3][:7]
    assert [timed.room_before(k) for k in (4, 5, 7)] == [0, 1, 3]
    assert times("........").room_before(7) == 6, "the first interval has no beginning"


def test_no_phase_is_placed_beside_a_child_or_right_behind_it() -> None:
    def room(beside: str, warmup: int | str) -> str:
        return "".join("x" if not able else "." for able in _room_for(times(beside), warmup))

    assert room("..x...", 1) == "..xx.." and room("..x...", "auto") == "..xx.."
    assert room("..x...", 0) == "..x..."
    assert room(".x.x.x.", 1) == ".x.x.x.", "better without warm-up than not at all"
    assert room("xxxx", 1) == "xxxx" and room("....", 1) == "...."


def test_a_region_behind_a_child_has_less_warm_up(builds: Path) -> None:
    program = program_of(build("helpers", builds), "200", "start")
    with streams_of() as streams:
        profile = trace(program, interval=INTERVAL, streams=streams)
    timed = replace(times("...x...."), columns=np.zeros(7, dtype=np.int64))
    assert [plan_region(profile, timed, 0, k, 2).warmup for k in (3, 4, 5, 6)] == [2, 0, 1, 2]


def test_the_share_is_by_the_programs_clock() -> None:
    timed = replace(times("...."), outside=replace(times("....").outside, wall=1.0, cpu=4.0, commands=("a",)))
    runs = Reference((1.0,), (1.0,), 0.0, (1.0, 1.0), "cpu", (1.0,), (1.0,))
    assert outside_share(timed, runs) == pytest.approx(0.5)
    assert outside_share(timed, replace(runs, clock="wall")) == pytest.approx(0.2)


def wrapped(builds: Path, tmp_path: Path, *, more: str = "", executed: int = 0) -> Program:
    """A shell script that runs helpers, as the `executed`-th execve of it."""
    path = build("helpers", builds)
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/sh\n{more}\n{path} 200 start > {tmp_path}/out\nsleep 0.1\ncat {tmp_path}/out\n")
    script.chmod(0o755)
    worker = Worker(str(path), executed, (str(path), "200", "start"), str(tmp_path))
    return replace(program_of(script), worker=worker)


@pytest.mark.timed
def test_a_worker_is_traced_inside_its_wrapper(builds: Path, tmp_path: Path) -> None:
    program = wrapped(builds, tmp_path, more=f"{build('helpers', builds)} 50 start > /dev/null", executed=1)
    with streams_of() as streams:
        profile = trace(program, interval=INTERVAL, streams=streams)
        assert "count site_work 200000" in streams.stdout.read_text(), "the wrapper went on to its end"
    assert [image for image, _ in profile.images] == [str(build("helpers", builds))]
    assert 200_000 in totals(profile).tolist()
    with streams_of() as streams:
        timed = validate(profile, streams=streams)
    with streams_of() as streams:
        plain = run_plain(program, streams)
    assert timed.cpu.sum() + timed.outside.cpu == pytest.approx(plain.cpu, rel=0.2)
    assert timed.outside.cpu == pytest.approx(0.2 * plain.cpu, rel=0.4), "the first helpers, a fifth of the work"
    assert timed.outside.wall > 0.1, "the wrapper's own sleep"
    assert timed.seconds.sum() + timed.outside.wall == pytest.approx(timed.wall_seconds)
    assert any("sleep" in command for command in timed.outside.commands)


@pytest.mark.timed
def test_a_stamped_run_of_a_worker_is_the_whole_wrapper(builds: Path, tmp_path: Path) -> None:
    program = wrapped(builds, tmp_path, more=f"{build('helpers', builds)} 50 start > /dev/null", executed=1)
    _, run, plain = timed_stamped_and_plain(program, tmp_path)
    assert run.cpu == pytest.approx(plain.cpu, rel=0.2)
    assert run.wall == pytest.approx(plain.wall, rel=0.2)
    assert run.interval_wall.sum() < run.wall - 0.1, "the wrapper's own sleep"


def test_two_runs_of_a_worker_agree(builds: Path, tmp_path: Path) -> None:
    program = wrapped(builds, tmp_path)
    with streams_of() as streams:
        profile = trace(program, interval=INTERVAL, streams=streams)
    runs = []
    for _ in range(2):
        with streams_of() as streams:
            runs.append(stamped_run(profile, candidates(profile), streams=streams))
    assert runs[0].totals == runs[1].totals and np.isfinite(runs[0].wall).all()
