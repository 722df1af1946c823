# SPDX-License-Identifier: Apache-2.0
"""A program is told the time of day as another run was told it, by whatever function of the vDSO."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tracing import SECONDS, compile_small, program_of, streams_of

from checkpoint.capture.process_facts import clocks_of
from checkpoint.process.tracee import Tracee, What
from checkpoint.stubs.answers import repeat_answers
from checkpoint.stubs.wall_clock import _whole_instructions

# Prints what each function tells, the one that is named first.
TELLS = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct { const char *name; clockid_t clock; } clocks[] = {
    {"realtime", CLOCK_REALTIME}, {"coarse", CLOCK_REALTIME_COARSE}, {"tai", CLOCK_TAI},
    {"monotonic", CLOCK_MONOTONIC}, {"steady", CLOCK_MONOTONIC_COARSE}, {"boot", CLOCK_BOOTTIME},
    {"raw", CLOCK_MONOTONIC_RAW}, {"cpu", CLOCK_PROCESS_CPUTIME_ID},
};
enum { CLOCKS = sizeof clocks / sizeof *clocks };

static int tell(const char *which, const char *as)
{
    struct timespec at = {0, 0};
    struct timeval day = {0, 0};
    struct timezone zone = {77, 77};
    struct timeval *volatile none = NULL; /* the header allows none */
    for (int i = 0; i < CLOCKS; i++)
        if (!strcmp(which, clocks[i].name)) {
            if (clock_gettime(clocks[i].clock, &at))
                return 1;
            printf("%s %ld%09ld\n", as, at.tv_sec, at.tv_nsec);
            return 0;
        }
    if (!strcmp(which, "time")) {
        time_t now, same = time(&now);
        printf("%s %ld000000000\n", as, (long)now);
        return now != same;
    }
    if (gettimeofday(&day, &zone) || zone.tz_minuteswest == 77)
        return 2;
    if (gettimeofday(none, NULL) || gettimeofday(none, &zone))
        return 3;
    printf("%s %ld%06ld000\n", as, (long)day.tv_sec, (long)day.tv_usec);
    return 0;
}

int main(int argc, char **argv)
{
    if (tell(argv[1], "first"))
        return 1;
    for (int i = 0; i < CLOCKS; i++)
        if (tell(clocks[i].name, clocks[i].name))
            return 2;
    if (tell("time", "time") || tell("day", "day"))
        return 3;
    struct timespec at;
    if (clock_gettime(99, &at) != -1 || errno != EINVAL)
        return 4;
    if (time(NULL) == 0)
        return 5;
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        int failed = tell("realtime", "child");
        fflush(stdout);
        _exit(failed);
    }
    int status = 1;
    return waitpid(child, &status, 0) != child || status;
}
"""

SECOND = 10**9
EARLIER = 1_700_000_000_123_456_789
OF_THE_DAY = {"realtime", "coarse", "tai", "time", "day"}
LEAST = {"time": SECOND, "day": 1000}
"""Nanoseconds that these tell at a time."""


@dataclass
class Told:
    """What the program printed by the function that told it, what was read of it at its end, and the node's clocks."""

    said: dict[str, int]
    first: int
    shift: int
    captured: tuple[int, ...]
    before: dict[str, int]
    after: dict[str, int]


@pytest.fixture(scope="module")
def tells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_small(tmp_path_factory.mktemp("tells"), "tells", TELLS)


def node() -> dict[str, int]:
    clocks = {
        "realtime": time.CLOCK_REALTIME, "coarse": 5, "tai": time.CLOCK_TAI, "monotonic": time.CLOCK_MONOTONIC,
        "steady": 6, "boot": time.CLOCK_BOOTTIME, "raw": time.CLOCK_MONOTONIC_RAW,
    }  # fmt: skip
    told = {name: time.clock_gettime_ns(clock) for name, clock in clocks.items()}
    return told | {"time": told["coarse"], "day": told["realtime"]}


def run(path: Path, which: str, *, began: int, threads: int = 1) -> Told:
    program, before = replace(program_of(path, which), began=began), node()
    with streams_of() as streams, Tracee.start(program, streams) as tracee:
        tracee.program = replace(program, threads=threads)
        answers, shift, captured = repeat_answers(tracee), 0, (0,)
        real = clocks_of(tracee.pid, tracee.wall_clock_shift())[0]
        told = began if began and threads == 1 else time.time_ns()
        assert 0 <= real - told < SECOND, "a checkpoint before the first question"
        while True:
            tracee.resume()
            occurrence = tracee.wait(SECONDS)
            if occurrence.what is What.EXITING:
                answers.read()
                shift, captured = tracee.wall_clock_shift(), clocks_of(tracee.pid, tracee.wall_clock_shift())
            if occurrence.what is What.ENDED:
                break
            assert occurrence.what is not What.TIMEOUT, "it hangs"
        assert occurrence.status == 0, occurrence
        lines = [line.split() for line in streams.stdout.read_text().splitlines()]
        return Told({name: int(value) for name, value in lines}, answers.began, shift, captured, before, node())


def cut(value: int, name: str) -> int:
    return value - value % LEAST.get(name, 1)


@pytest.mark.parametrize("which", sorted(OF_THE_DAY))
def test_the_first_answer_is_the_one_given(which: str, tells: Path) -> None:
    told = run(tells, which, began=EARLIER)
    assert told.said["first"] == cut(EARLIER, which) and told.first == EARLIER
    took = told.after["monotonic"] - told.before["monotonic"]
    of_tai = told.after["tai"] - told.after["realtime"]
    for name in OF_THE_DAY:
        ahead = of_tai * ((name == "tai") - (which == "tai"))
        # A coarse clock is as old as the last tick.
        assert cut(EARLIER + ahead - SECOND // 10, name) <= told.said[name] <= EARLIER + ahead + took + SECOND // 10
    assert told.before["realtime"] <= told.said["child"] <= told.after["realtime"]


@pytest.mark.parametrize("began", [0, EARLIER])
def test_other_clocks_are_the_nodes(began: int, tells: Path) -> None:
    told = run(tells, "time", began=began)
    for name in told.before.keys() - OF_THE_DAY:
        assert told.before[name] - SECOND // 10 <= told.said[name] <= told.after[name] + SECOND // 10
    assert 0 < told.said["cpu"] < told.after["monotonic"] - told.before["monotonic"]


@pytest.mark.parametrize("which", sorted(OF_THE_DAY))
def test_where_none_is_given_the_first_is_written_down(which: str, tells: Path) -> None:
    told = run(tells, which, began=0)
    assert told.shift == 0
    assert cut(told.first, which) == told.said["first"]
    for name in OF_THE_DAY & told.before.keys():
        assert cut(told.before[name] - SECOND // 10, name) <= told.said[name] <= told.after[name]
    assert run(tells, which, began=told.first).said["first"] == told.said["first"]


def test_a_program_of_several_threads_is_told_the_nodes(tells: Path) -> None:
    """Its threads may wait for a time of day, which the kernel compares with its own."""
    told = run(tells, "realtime", began=EARLIER, threads=2)
    assert told.before["realtime"] <= told.said["first"] <= told.after["realtime"]


def test_a_checkpoint_goes_on_from_the_time_that_was_told(tells: Path) -> None:
    told = run(tells, "realtime", began=EARLIER)
    real, monotonic, *_, atomic = told.captured
    assert EARLIER < real < EARLIER + 60 * SECOND and abs(told.shift - (EARLIER - told.after["realtime"])) < 60 * SECOND
    assert monotonic > told.before["monotonic"]
    assert atomic - real == pytest.approx(told.after["tai"] - told.after["realtime"], abs=SECOND // 10)


def test_without_a_first_answer_nothing_is_known(tmp_path: Path) -> None:
    silent = compile_small(tmp_path, "silent", "int main(void) { return 0; }\n")
    with streams_of() as streams, Tracee.start(program_of(silent), streams) as tracee:
        answers = repeat_answers(tracee)
        tracee.resume()
        while (occurrence := tracee.wait(SECONDS)).what is not What.EXITING:
            tracee.resume()
        answers.read()
        assert occurrence.what is What.EXITING and answers.began == tracee.wall_clock_shift() == 0


def test_instructions_that_know_their_place_stay_there() -> None:
    assert _whole_instructions(bytes.fromhex("55 4889e5 4156 53")) == bytes.fromhex("55 4889e5 4156")
    assert _whole_instructions(bytes.fromhex("4883ec7883ff17")) == bytes.fromhex("4883ec7883ff17")
    for fixed in ("55 eb10 9090909090", "813d3a9599ffffffff7f", "55 e800000000 9090", "4154", "06 9090909090"):
        with pytest.raises(LookupError):
            _whole_instructions(bytes.fromhex(fixed))
