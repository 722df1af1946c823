# SPDX-License-Identifier: Apache-2.0
"""Threads that share the work: each with counters of its own, all stopped together, none lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from programs import build
from tracing import SECONDS, program_of, streams_of

from checkpoint import processors as processors_module
from checkpoint.errors import ProgramUnsupported
from checkpoint.process import team as team_module
from checkpoint.process.children import Child
from checkpoint.process.loader import LoadWatch
from checkpoint.process.plain_run import run_plain
from checkpoint.process.program import Lineage
from checkpoint.process.ptrace import GsBases, registers_of
from checkpoint.process.team import SLOT_BYTES, Team
from checkpoint.process.threads import HelperThreads
from checkpoint.process.tracee import Tracee, What
from checkpoint.process.waiting import process_state, threads_of
from checkpoint.processors import core, processors
from checkpoint.stubs.counters import SiteCounters
from probe.tracers.team import refuse_orphans

ROUNDS = "150"
OFTEN = 2000
"""Executions of what works, and not of what looks after it."""


@contextmanager
def started(
    builds: Path, how: str, threads: int = 2, rounds: str = ROUNDS, *, name: str = "team", marks: Sequence[Lineage] = ()
) -> Iterator[tuple[Tracee, Team]]:
    program = program_of(build(name, builds), rounds, how, str(threads))
    program = replace(program, threads=threads, marking=tuple(marks))
    with streams_of() as streams, Tracee.start(program, streams) as tracee:
        assert tracee.team is not None
        yield tracee, tracee.team


def installed(tracee: Tracee) -> SiteCounters:
    """Counters at every site that there is so far."""
    watch, counters = LoadWatch(tracee), SiteCounters(tracee)
    for loaded in watch.new_images():
        counters.install(loaded)
    return counters


def to_the_end(tracee: Tracee) -> None:
    """The running program at its exit event."""
    while (occurrence := tracee.wait(SECONDS)).what is not What.EXITING:
        assert occurrence.what is What.PAUSED
        tracee.resume()


def counted(tracee: Tracee) -> SiteCounters:
    """Counters at every site, and the program at its exit event."""
    counters = installed(tracee)
    tracee.resume()
    to_the_end(tracee)
    return counters


def run_for(tracee: Tracee, seconds: float) -> None:
    """Let it run, and stop it."""
    tracee.resume()
    assert tracee.wait(seconds).what is What.TIMEOUT
    tracee.request_pause()
    assert tracee.wait(SECONDS).what is What.PAUSED


def await_stop(number: int) -> None:
    """Until a thread stands at a stop, whether or not anybody has asked for it."""
    deadline = time.monotonic() + SECONDS
    while process_state(number) != "t":
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("threads", [2, 5])
def test_each_thread_counts_for_itself(threads: int, builds: Path) -> None:
    """All execute the same, but for what the first does besides."""
    with started(builds, "barrier", threads) as (tracee, team):
        counters = counted(tracee)
        whole, first = (counts.of_all(counters.columns) for counts in counters.read_both())
        assert team.slots == threads
        work, per_block = counters.work, np.concatenate([image.sites.block_instructions for image in counters.images])
    # `work` has a loop that all execute equally often; what each thread executes is most of the run.
    shared = (whole == threads * first) & (first > 0)
    assert whole[shared].sum() > 0.99 * whole.sum()
    assert (whole >= first).all() and (whole > first).any()
    assert work.sum() == whole @ per_block and work[0] == first @ per_block
    assert len(work) == threads and work[1:] == pytest.approx(work[0], rel=0.01)


def test_counts_repeat(builds: Path) -> None:
    found = []
    for _ in range(2):
        with started(builds, "barrier") as (tracee, _):
            counters = counted(tracee)
            found.append([counts.of_all(counters.columns) for counts in counters.read_both()])
    assert all((one == other).all() for one, other in zip(*found, strict=True))


def test_all_are_stopped_at_every_stop(builds: Path) -> None:
    with started(builds, "lock", 4, "60000") as (tracee, team):
        for _ in range(15):
            run_for(tracee, 0.02)
            assert {process_state(number) for number in threads_of(tracee.pid)} == {"t"}
        assert [registers_of(n).gs_base for n in team.stopped()] == [SLOT_BYTES, 2 * SLOT_BYTES, 3 * SLOT_BYTES]
        assert registers_of(tracee.pid).gs_base == 0
    assert process_state(tracee.pid) == "" and not Path(f"/proc/{tracee.pid}").exists()


def test_a_thread_that_was_killed_before_it_got_a_base_is_not_accused(builds: Path) -> None:
    """It still has that of the thread which started it."""
    with started(builds, "lock", 2, "60000") as (tracee, team):
        run_for(tracee, 0.02)
        (other,) = team.stopped()
        bases = GsBases(tracee.pid)
        assert registers_of(other).gs_base == SLOT_BYTES and bases.kept(other, 0) and bases.kept(tracee.pid, 0)
        bases.give(tracee.pid, SLOT_BYTES)
        assert not GsBases(tracee.pid).kept(tracee.pid, 0)


def test_threads_that_end_while_all_are_stopped(builds: Path) -> None:
    with started(builds, "short", rounds="60000") as (tracee, team):
        for _ in range(60):
            run_for(tracee, 0.002)
            assert {process_state(number) for number in threads_of(tracee.pid)} <= {"t", "Z", "X"}
        assert len(team.started) > 3


def test_a_signal_like_a_breakpoint_reaches_its_thread(builds: Path) -> None:
    with started(builds, "trap", rounds="60") as (tracee, _):
        counted(tracee)
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.ENDED and tracee.status == 0


def test_all_of_many_threads_count_as_working() -> None:
    """Each of 64 has less than two hundredths of the CPU time."""
    helpers = HelperThreads("many", os.getpid())
    helpers.all = [Child(0, None, True, 0.0, ended=9.0, own_cpu=seconds) for seconds in (*[1.0] * 64, 0.01)]
    assert helpers.working(64.01) == 64


def test_slots_of_ended_threads_are_used_again(builds: Path) -> None:
    with started(builds, "short", rounds="20") as (tracee, team):
        counted(tracee)
        # That a thread has ended may be seen a little after its successor began.
        assert len(team.started) == 60 and team.slots < 10


def test_ends_of_marking_threads_are_no_starts(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No phase lies where either is. Eight crews of two are started."""
    monkeypatch.setattr(team_module, "MOST_STARTS", 16)
    with started(builds, "crews", name="crews", marks=[(n,) for n in range(0, 16, 2)]) as (tracee, team):
        counted(tracee)
        assert team.starts == 16 and len(team.started) == 24


def test_a_first_thread_that_ends_while_another_that_marks_is_stopped(builds: Path) -> None:
    """What it may not do is said when all go on, not waited for."""
    with started(builds, "leave", name="crews", rounds="2000", marks=[(0,)]) as (tracee, team):
        tracee.resume()
        while team.starts < 2:
            assert tracee.wait(0.01).what is What.TIMEOUT
        marking = tracee.marking
        await_stop(tracee.pid)
        tracee.request_pause()
        await_stop(marking)
        assert tracee.wait(SECONDS).what is What.PAUSED and tracee.marking == marking != tracee.pid
        assert {process_state(number) for number in threads_of(tracee.pid)} == {"t"}
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.EXITING and tracee.marking == tracee.pid
        with pytest.raises(ProgramUnsupported, match="its first thread ends before the others"):
            refuse_orphans(tracee)


def test_a_thread_that_another_has_started_marks(builds: Path) -> None:
    """The first is stopped for it wherever it is, and counts for itself from there on. Where it stands already, and
    that was told, it marks until all go on."""
    found = []
    for stands in (False, True):
        with started(builds, "boss", name="crews", marks=[(0, 0)]) as (tracee, team):
            counters = installed(tracee)
            tracee.resume()
            while team.starts < 1:
                assert tracee.wait(0.005).what is What.TIMEOUT
            (boss,) = threads_of(tracee.pid) - {tracee.pid}
            if stands:
                tracee.request_pause()
                await_stop(tracee.pid)
                await_stop(boss)
                assert tracee.wait(SECONDS).what is What.PAUSED
                assert team.starts == 2 and tracee.marking == tracee.pid
                tracee.resume()
            while team.starts < 3 or tracee.marking == tracee.pid:
                assert tracee.wait(0.005).what is What.TIMEOUT
            assert tracee.marking != boss
            to_the_end(tracee)
            whole, of_marking = (counts.of_all(counters.columns) for counts in counters.read_both())
            often = whole > OFTEN
            assert of_marking[often].sum() > 0.4 * whole[often].sum()
            assert tracee.marking == tracee.pid and len(team.started) == 5
            found.append(of_marking[often])
    assert len(found[0]) > 1 and found[0].tolist() == found[1].tolist()


def test_the_first_thread_may_replace_the_program_while_another_marks(builds: Path) -> None:
    """The new program has one thread, which marks."""
    with started(builds, "execute", name="crews", rounds="2000", marks=[(0,)]) as (tracee, team):
        tracee.resume()
        while team.starts < 2:
            assert tracee.wait(0.01).what is What.TIMEOUT
        assert tracee.marking != tracee.pid
        assert tracee.wait(SECONDS).what is What.EXECUTED and tracee.marking == tracee.pid
        assert not team.watched and registers_of(tracee.pid).gs_base == 0
        tracee.run_to_entry()
        counted(tracee)
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.ENDED and tracee.status == 0


def test_more_threads_than_slots_are_refused(builds: Path) -> None:
    with started(builds, "barrier", 40) as (tracee, team):
        team.most = 32
        with pytest.raises(ProgramUnsupported, match="more than 32 threads at the same time"):
            counted(tracee)


@pytest.mark.parametrize(
    ("how", "who"),
    [
        ("gs", "thread 1 (team)"),
        ("gs-instruction", "thread 1 (team)"),
        ("gs-near", "thread 1 (team)"),
        ("gs-handled", "thread 1 (team)"),
        ("gs-first", "first thread"),
        ("gs-first-near", "first thread"),
    ],
)
def test_a_thread_with_a_gs_base_of_its_own_is_named(how: str, who: str, builds: Path) -> None:
    """It faults where it counts; or, *near*, it counts in the first thread's counters, and nothing else shows it."""
    said = f"/team: its {who} uses the GS register itself, by which a probe tells threads apart; run it with one thread"
    with started(builds, how) as (tracee, _), pytest.raises(ProgramUnsupported, match=re.escape(said)):
        counted(tracee)


def test_a_first_thread_with_a_gs_base_of_its_own_is_named_while_another_marks(builds: Path) -> None:
    with (
        started(builds, "gs", name="crews", marks=[(0,)]) as (tracee, _),
        pytest.raises(ProgramUnsupported, match="/crews: its first thread uses the GS register itself"),
    ):
        counted(tracee)


def test_a_program_with_a_gs_base_of_its_own_is_refused(builds: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "probe", "trace", "-q", "-o", "out", "--", build("team", builds), "600", "gs"],
        capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 4 and "its thread 1 (team) uses the GS register itself" in done.stderr


def test_a_process_is_the_first_threads_to_start(builds: Path) -> None:
    with started(builds, "fork") as (tracee, _), pytest.raises(ProgramUnsupported, match="in a probe only the first"):
        counted(tracee)


def test_signals_of_threads_reach_them(builds: Path) -> None:
    with started(builds, "alternate") as (tracee, _):
        counted(tracee)
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.ENDED and tracee.status == 0


@pytest.mark.timed
@pytest.mark.parametrize("way", ["alone", "beside a process", "in a wrapper"])
def test_waiting_of_threads_for_a_processor_is_told(way: str, builds: Path) -> None:
    """Of four threads on one processor three wait for it at any time: together longer than the run takes."""
    path, others = build("crews", builds), way != "alone"
    program = program_of(path, ROUNDS, "apart", "4")
    if way == "in a wrapper":
        program = program_of(Path("/bin/sh"), "-c", f"{path} {ROUNDS} apart 4; :")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with streams_of() as streams:
            plain = run_plain(replace(program, threads=4), streams, others=others)
    finally:
        os.sched_setaffinity(0, before)
    assert plain.status == 0 and 1.5 * plain.wall < plain.waited <= 4 * plain.wall


def test_processors_are_the_measured_one_and_those_next_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4, 6})
    monkeypatch.setattr(processors_module, "core", str)
    assert processors(7, 1) == [7]
    assert processors(7, 3) == [7, 6, 4]
    assert processors(2, 3) == [2, 0, 4]
    assert processors(7, 9) == [7, 6, 4, 2, 0]


def test_second_processors_of_cores_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(processors_module, "core", lambda cpu: str(cpu // 2))
    assert processors(7, 4) == [7, 5, 3, 1] and processors(4, 3) == [4, 3, 1]
    assert processors(7, 6) == [7, 5, 3, 1, 6, 4]


def test_processors_of_this_machine_are_told_apart() -> None:
    """As /proc/cpuinfo does."""
    said = Path("/proc/cpuinfo").read_text().split("\n\n")
    blocks = [dict(map(str.strip, line.split(":", 1)) for line in one.splitlines()) for one in said if one.strip()]
    by_hand = {int(one["processor"]): (one.get("physical id"), one.get("core id")) for one in blocks}
    for one in by_hand:
        for other in by_hand:
            assert (core(one) == core(other)) == (by_hand[one] == by_hand[other] and None not in by_hand[one])


def test_one_processor_is_too_few(builds: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "probe", "trace", "-q", "-o", "out", "--", build("team", builds), "600", "lock"],
        capture_output=True, text=True, timeout=SECONDS * 4, cwd=tmp_path,
        preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    )  # fmt: skip
    assert done.returncode == 14 and "2 threads, but 1 processors allowed here (taskset" in done.stderr
