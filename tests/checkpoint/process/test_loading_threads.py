# SPDX-License-Identifier: Apache-2.0
"""Threads beside the first load libraries: all are stopped for it, and what is loaded is seen before it runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from programs import build
from tracees import program_of
from tracing import SECONDS, streams_of

from checkpoint.errors import ProgramNotRunnable, ProgramUnsupported
from checkpoint.process.loader import LoadWatch
from checkpoint.process.tracee import Tracee, What
from checkpoint.process.waiting import process_state

HELPERS, TEAM = "waiters", "team"
FREE = 0x1_0000_0000


@contextmanager
def started(builds: Path, name: str, how: str, size: str = "60000") -> Iterator[Tracee]:
    program = replace(program_of(build(name, builds), size, how), threads=2 if name == TEAM else 1)
    with streams_of() as streams, Tracee.start(program, streams) as tracee:
        yield tracee


def running(tracee: Tracee) -> LoadWatch:
    """The program, with the loader's breakpoint in it."""
    watch = LoadWatch(tracee)
    assert watch.arm()
    tracee.resume()
    return watch


def loaded(tracee: Tracee) -> int:
    """Mappings of the library that one of the threads loads."""
    return sum("libutil" in (one.path or "") for one in tracee.mappings())


@pytest.mark.parametrize(("name", "size"), [(HELPERS, "60000"), (TEAM, "400")])
def test_a_library_is_seen_before_it_runs(name: str, size: str, builds: Path) -> None:
    with started(builds, name, "load", size) as tracee:
        watch = running(tracee)
        found = []
        while len(found) < 2:
            assert tracee.wait(SECONDS).what is What.BREAKPOINT
            assert {process_state(int(one.name)) for one in Path(f"/proc/{tracee.pid}/task").iterdir()} <= {"t", "S"}
            found.append(loaded(tracee))
            # What is put there for a new library, at a stop that is not the first thread's.
            tracee.map_memory(FREE << len(found), 4096, executable=False)
            tracee.write(FREE << len(found), b"here")
            watch.step_over()
            tracee.resume()
        assert all(found)
        assert tracee.wait(0.3).what is What.TIMEOUT
        assert loaded(tracee) and tracee.read(FREE << 2, 4) == b"here"
        tracee.request_pause()
        assert tracee.wait(SECONDS).what is What.PAUSED


def test_a_pause_is_answered_by_it(builds: Path) -> None:
    """No second stop follows the one for the library."""
    with started(builds, HELPERS, "load") as tracee:
        watch = running(tracee)
        tracee.request_pause()
        first = tracee.wait(SECONDS).what
        seen = [first]
        deadline = time.monotonic() + SECONDS
        while seen.count(What.BREAKPOINT) < 2:
            if seen[-1] is What.BREAKPOINT:
                watch.step_over()
            tracee.resume()
            seen.append(tracee.wait(max(0.0, deadline - time.monotonic())).what)
        assert seen.count(What.PAUSED) <= 1 and set(seen) <= {What.PAUSED, What.BREAKPOINT}


def test_it_stands_there_again_where_nobody_acts(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another stop came first: it executes the breakpoint once more."""
    with started(builds, HELPERS, "load") as tracee:
        watch = running(tracee)
        held(tracee, monkeypatch)
        tracee.helpers.release()
        assert not tracee.helpers.meet_breakpoint
        assert tracee.wait(SECONDS).what is What.BREAKPOINT
        watch.step_over()


def held(tracee: Tracee, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread stands at the loader's breakpoint, and nobody acts."""
    monkeypatch.setattr(tracee, "_is_needed", lambda: False)
    deadline = time.monotonic() + SECONDS
    while not tracee.helpers.meet_breakpoint:
        assert tracee.wait(0.01).what is What.TIMEOUT and time.monotonic() < deadline
    monkeypatch.undo()


def test_a_breakpoint_that_was_taken_out_is_none(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread goes on with what had been there."""
    with started(builds, HELPERS, "load") as tracee:
        watch = running(tracee)
        held(tracee, monkeypatch)
        watch.disarm()
        assert tracee.wait(0.5).what is What.TIMEOUT and not tracee.helpers.meet_breakpoint
        assert loaded(tracee)
        tracee.request_pause()
        assert tracee.wait(SECONDS).what is What.PAUSED


def test_a_thread_that_dies_there_is_forgotten(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(builds, HELPERS, "load") as tracee:
        running(tracee)
        held(tracee, monkeypatch)
        os.kill(tracee.pid, signal.SIGKILL)
        while (occurrence := tracee.wait(SECONDS)).what is not What.ENDED:
            assert occurrence.what is What.EXITING
            tracee.resume()
    assert not tracee.helpers.meet_breakpoint


def test_who_goes_on_from_a_stop_is_waited_for(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread at a stop that nobody has looked at counts as asleep, until a look lets it go on."""
    with started(builds, HELPERS, "idle") as tracee:
        tracee.resume()
        assert tracee.wait(0.3).what is What.TIMEOUT
        seen = iter([0, 2, 1, 0, 0])
        monkeypatch.setattr("checkpoint.process.threads.awake", lambda _: next(seen))
        tracee.request_pause()
        assert tracee.wait(SECONDS).what is What.PAUSED
        assert list(seen) == []


def test_a_breakpoint_of_its_own_is_refused(builds: Path) -> None:
    with started(builds, HELPERS, "int3") as tracee:
        watch = running(tracee)
        assert tracee.wait(SECONDS).what is What.BREAKPOINT
        with pytest.raises(ProgramNotRunnable, match="a breakpoint instruction of its own"):
            watch.step_over()


def test_nobody_acts_when_the_first_has_ended(builds: Path) -> None:
    """It cannot be stopped for another any more: the other stood there for ever."""
    with started(builds, HELPERS, "leave") as tracee:
        watch = running(tracee)
        while (occurrence := tracee.wait(SECONDS)).what is What.BREAKPOINT:  # pthread_exit loads a library, too
            watch.step_over()
            tracee.resume()
        assert occurrence.what is What.EXITING
        tracee.resume()
        with pytest.raises(ProgramUnsupported, match="loads a library when the first has ended"):
            tracee.wait(SECONDS)
