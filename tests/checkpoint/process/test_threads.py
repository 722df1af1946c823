# SPDX-License-Identifier: Apache-2.0
"""Threads beside the first: followed, asleep at every stop, and gone with their process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from programs import build
from tracees import started
from tracing import SECONDS

from checkpoint.errors import ProgramUnsupported
from checkpoint.linux import WALL
from checkpoint.process.loader import LoadWatch
from checkpoint.process.threads import WorkingThreads
from checkpoint.process.tracee import Tracee, What
from checkpoint.process.waiting import process_state


def threads_of(tracee: Tracee) -> list[int]:
    return [int(entry.name) for entry in Path(f"/proc/{tracee.pid}/task").iterdir()]


def run_for(tracee: Tracee, seconds: float) -> None:
    """Let it run, and stop it."""
    tracee.resume()
    assert tracee.wait(seconds).what is What.TIMEOUT
    tracee.request_pause()
    assert tracee.wait(SECONDS).what is What.PAUSED


def test_they_sleep_at_every_stop(builds: Path) -> None:
    with started(build("waiters", builds), "60000", "tick") as tracee:
        awake = 0
        for _ in range(20):
            run_for(tracee, 0.03)
            assert len(tracee.helpers.all) == 3
            awake += tracee.helpers.awake()
        # Their clock may wake them again between the stop and the question.
        assert awake < 10
        assert len(threads_of(tracee)) == 4
    assert process_state(tracee.pid) == "" and not Path(f"/proc/{tracee.pid}").exists()


def test_when_they_run_is_noted(builds: Path) -> None:
    with started(build("waiters", builds), "60000", "idle") as tracee:
        run_for(tracee, 0.3)
        at_first = len(tracee.helpers.active)
        run_for(tracee, 0.3)
        assert 0 < len(tracee.helpers.active) == at_first
    with started(build("waiters", builds), "60000", "tick") as tracee:
        run_for(tracee, 0.5)
        assert len(tracee.helpers.active) > 20
        assert all(began <= ended for began, ended in tracee.helpers.active)


def test_a_program_ends_with_its_threads(builds: Path) -> None:
    with started(build("waiters", builds), "200", "idle") as tracee:
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.EXITING
        assert tracee.own_cpu > 0 and 0 <= tracee.helpers_cpu < 0.05 * tracee.own_cpu
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.ENDED
        assert os.WEXITSTATUS(tracee.status or 0) == 0
        assert tracee.helpers.names() == ("thread waiters",) * 3 and not tracee.helpers.watched


def test_a_thread_not_yet_known_does_not_outlive(builds: Path) -> None:
    """The process is stopped at the very start of a thread when it is ended."""
    with started(build("waiters", builds), "60000", "idle") as tracee:
        tracee.resume()
        os.waitid(os.P_PID, tracee.pid, os.WSTOPPED | os.WNOWAIT | WALL)
        assert not tracee.helpers.all and len(threads_of(tracee)) == 2
        begun = time.monotonic()
    assert time.monotonic() - begun < SECONDS / 2 and not Path(f"/proc/{tracee.pid}").exists()


def test_a_thread_may_end_before_its_program(builds: Path) -> None:
    with started(build("waiters", builds), "60000", "ends") as tracee:
        run_for(tracee, 1.0)
        assert len(tracee.helpers.all) == 3 and not tracee.helpers.watched
        assert threads_of(tracee) == [tracee.pid]


def test_the_time_of_threads_is_told_from_the_firsts(builds: Path) -> None:
    with started(build("waiters", builds), "300", "busy") as tracee:
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.EXITING
        assert tracee.helpers_cpu > 0.3 * tracee.own_cpu


def test_threads_are_counted_by_most_of_a_wait(builds: Path) -> None:
    """A third one is awake at the end of it."""
    with started(build("waiters", builds), "60000", "late-third") as tracee:
        end = time.monotonic() + SECONDS
        with pytest.raises(WorkingThreads, match="works on by itself") as raised:
            while time.monotonic() < end:
                run_for(tracee, 0.05)
        assert raised.value.threads == 2 and tracee.helpers.awake()


@pytest.mark.parametrize(("how", "words"), [("busy", "works on by itself"), ("fork", "starts a process")])
def test_what_only_the_first_may_do(how: str, words: str, builds: Path) -> None:
    with (
        started(build("waiters", builds), "60000", how) as tracee,
        pytest.raises(ProgramUnsupported, match=f"beside its first one {words}.*OMP_NUM_THREADS"),
    ):
        LoadWatch(tracee).arm()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            run_for(tracee, 0.2)
    assert not Path(f"/proc/{tracee.pid}").exists()
