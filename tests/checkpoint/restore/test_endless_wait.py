# SPDX-License-Identifier: Apache-2.0
"""A phase whose only thread waits for another is given up at once, whoever restores it; what may yet go on is not."""

from __future__ import annotations

import dataclasses
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from direct_runs import flat_job
from direct_state import timed
from regions import captured_regions
from tracing import compile_small

from checkpoint.binary.syscall_names import call_number
from checkpoint.capture.stored import read_state
from checkpoint.compiled import restorer
from checkpoint.errors import PhaseFailed
from checkpoint.flat.image import FlatImage
from checkpoint.process import waiting
from checkpoint.process.waiting import WAITS_FOR_EVER, EndlessWait, EndlessYield
from checkpoint.restore import criu_restore
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.recorded_calls import record_calls
from probe.pipeline.reduce import PhaseToReduce, reduce_phase
from probe.pipeline.runs.standing import Unfit
from reducer.touched_set import record_touched_directly

AT_ONCE_SECONDS = 20.0
"""A region is given up after thirty in any case."""

SOURCE = r"""
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "site.h"

static int word;
static char yields[4096];

__attribute__((noipa)) static void region_warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void region_start(void) { SITE(site_start); }
__attribute__((noipa)) static void region_end(void) { SITE(site_end); }

static void wakes(int number) { (void)number; }

static void *sleeps(void *unused)
{
    sleep(600);
    return unused;
}

static void wait_for(const char *how)
{
    struct timespec limit = {600, 0};
    pthread_t other;
    if (!strcmp(how, "pause"))
        pause();
    while (!strcmp(how, "yield"))
        sched_yield();
    if (!strcmp(how, "work"))
        for (uint64_t state = 1;;)
            state = work(state);
    if (!strcmp(how, "alarm"))
        signal(SIGALRM, wakes);
    if (!strcmp(how, "beside") && pthread_create(&other, NULL, sleeps, NULL))
        _exit(2);
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, strcmp(how, "limit") ? NULL : &limit);
}

/* With the name of a file it waits in its region once there is such a file, as no phase does when it is captured; it
   yields where there is one with "y" behind the name. */
int main(int argc, char **argv)
{
    if (argc > 2)
        wait_for(argv[2]);
    work(1);
    region_warm();
    region_start();
    if (!access(argv[1], F_OK))
        wait_for("alone");
    strcat(strcpy(yields, argv[1]), "y");
    if (!access(yields, F_OK))
        wait_for("yield");
    region_end();
    return 0;
}
"""


def compiled(folder: Path) -> Path:
    programs = Path(__file__).parents[2] / "programs"
    return compile_small(folder, "waits", SOURCE, "-pthread", f"-I{programs}")


def found_within(seconds: float, program: Path, how: str) -> bool:
    with subprocess.Popen([program, "-", how], stdin=subprocess.DEVNULL) as process:
        try:
            wait, until = EndlessWait(process.pid), time.monotonic() + seconds
            while not (found := wait.is_found()) and time.monotonic() < until:
                time.sleep(0.01)
            return found
        finally:
            process.kill()


def test_one_that_nobody_can_wake_is_told_from_others(tmp_path: Path) -> None:
    program = compiled(tmp_path)
    assert found_within(AT_ONCE_SECONDS, program, "alone")
    for how in ("limit", "beside", "alarm", "pause", "work", "yield"):
        assert not found_within(2.5, program, how), how


def test_one_that_is_gone_is_not_found() -> None:
    assert not EndlessWait(2**22 - 1).is_found()


Restore = Callable[[RestoreJob, FlatImage, Path], object]
RESTORES: dict[str, Restore] = {
    "timed": lambda job, flat, folder: timed(job, folder),
    "calls": lambda job, flat, folder: record_calls(
        job, flat, read_state(job.images).pages_image, restorer(), scratch=folder
    ),
    "pages": lambda job, flat, folder: record_touched_directly(
        job, read_state(job.images), flat, restorer(), scratch=folder, region_seconds=0.01
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> tuple[RestoreJob, FlatImage, Path]:
    """A region that ends unless the file is there."""
    folder = tmp_path_factory.mktemp("waits")
    there = folder / "there"
    (job,) = captured_regions(compiled(folder), str(there), folder=folder / "work", direct=True)
    return job, flat_job(job, folder), there


@contextmanager
def given(path: Path) -> Iterator[None]:
    """With the file that makes the region wait, or yield."""
    path.touch()
    try:
        yield
    finally:
        path.unlink()


def to_yield(there: Path) -> Path:
    return there.with_name(f"{there.name}y")


@pytest.mark.parametrize("how", RESTORES)
def test_a_phase_that_waits_for_ever_is_given_up_at_once(
    how: str, region: tuple[RestoreJob, FlatImage, Path], tmp_path: Path
) -> None:
    job, flat, there = region
    RESTORES[how](job, flat, tmp_path)
    begun = time.monotonic()
    with given(there), pytest.raises(PhaseFailed, match=WAITS_FOR_EVER):
        RESTORES[how](job, flat, tmp_path)
    assert time.monotonic() - begun < AT_ONCE_SECONDS


def test_a_phase_that_yields_for_ever_is_given_up_at_once(
    region: tuple[RestoreJob, FlatImage, Path], tmp_path: Path
) -> None:
    """The calls show it. To its clock, its pages and its state it computes."""
    job, flat, there = region
    begun = time.monotonic()
    with given(to_yield(there)), pytest.raises(PhaseFailed, match=WAITS_FOR_EVER):
        RESTORES["calls"](job, flat, tmp_path)
    assert time.monotonic() - begun < AT_ONCE_SECONDS


def test_who_yields_now_and_then_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(waiting, "is_left_alone", lambda _: True)
    yields, number = EndlessYield(1, 30.0), call_number("sched_yield")
    for call in range(20_000):
        now[0] += 0.001
        assert not yields.is_found(number if call % 1500 else 0)
    found = [at for at in range(5_000) if (now.append(now.pop() + 0.001), yields.is_found(number))[1]]
    assert found and found[0] * 0.001 < 3.0


@pytest.mark.parametrize("how", ["calls", "pages"])
def test_a_region_is_given_up_by_its_own_limit(
    how: str, region: tuple[RestoreJob, FlatImage, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is restored: the time for that is longer."""
    job, flat, there = region
    monkeypatch.setattr(criu_restore, "_LEAST_REGION_SECONDS", 0.5)
    short = dataclasses.replace(job, expected_seconds=0.0)
    begun = time.monotonic()
    with given(to_yield(there)), pytest.raises(PhaseFailed, match="its region did not end"):
        RESTORES[how](short, flat, tmp_path)
    assert time.monotonic() - begun < AT_ONCE_SECONDS


def test_another_interval_is_to_stand_for_a_phase_that_waits_for_ever(
    region: tuple[RestoreJob, FlatImage, Path], tmp_path: Path
) -> None:
    """Where there is another: else it is kept whole, and says why."""
    job, _, there = region
    phase = PhaseToReduce(job, 0.01)
    assert not reduce_phase(phase, None, how="drop", folder=tmp_path, has_others=True).whole
    with given(there):
        with pytest.raises(Unfit, match="a wait that has no end"):
            reduce_phase(phase, None, how="drop", folder=tmp_path, has_others=True)
        assert WAITS_FOR_EVER in reduce_phase(phase, None, how="drop", folder=tmp_path).whole
