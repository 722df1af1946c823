# SPDX-License-Identifier: Apache-2.0
"""Looks that take long are made less often where they take a processor from the program, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from functools import partial

import pytest

from probe.tracers.look_pauses import LookPauses

INTERVAL, PAUSE = 0.01, 0.005
TAKES = 0.003


@pytest.fixture
def program() -> Iterator[int]:
    """A process that waits."""
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process.pid
        process.kill()


def look(seconds: float = TAKES) -> bool:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return True


def pause(pid: int, threads: int) -> float:
    """From one look to the next, after some that took long."""
    pauses = LookPauses(pid, threads)
    assert pauses.seconds(INTERVAL) == PAUSE
    assert all(pauses.timed(look) for _ in range(3))
    return pauses.seconds(INTERVAL)


def test_where_all_processors_are_wanted_looks_take_little_of_one(program: int) -> None:
    processors = len(os.sched_getaffinity(0))
    assert 9 * TAKES <= pause(program, processors) <= 0.05
    assert pause(program, processors - 1) == PAUSE


@pytest.fixture
def processors() -> Iterator[list[int]]:
    """Those that this process may use, which it gets back."""
    ours = os.sched_getaffinity(0)
    yield sorted(ours)
    os.sched_setaffinity(0, ours)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no other processor to look from")
def test_a_program_on_its_own_processor_loses_none(program: int, processors: list[int]) -> None:
    os.sched_setaffinity(program, processors[:1])
    os.sched_setaffinity(0, processors[1:])
    assert pause(program, 1) == PAUSE


def test_a_program_that_shares_its_only_processor_is_looked_at_less_often(program: int, processors: list[int]) -> None:
    os.sched_setaffinity(program, processors[:1])
    os.sched_setaffinity(0, processors[:1])
    assert pause(program, 1) >= 9 * TAKES


def test_pauses_follow_what_looks_take(program: int) -> None:
    pauses = LookPauses(program, len(os.sched_getaffinity(0)))
    pauses.timed(look)
    longest = pauses.seconds(INTERVAL)
    for _ in range(50):
        pauses.timed(lambda: False)
    assert pauses.seconds(INTERVAL) == PAUSE < longest
    assert pauses.seconds(1.0) == 0.25


def test_pauses_have_a_bound(program: int) -> None:
    pauses = LookPauses(program, len(os.sched_getaffinity(0)))
    assert pauses.row(INTERVAL) == INTERVAL
    pauses.timed(partial(look, 0.1))
    assert pauses.seconds(INTERVAL) == pauses.row(INTERVAL) == 0.05 and pauses.row(0.3) == 0.3
