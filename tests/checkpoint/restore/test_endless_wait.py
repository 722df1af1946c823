# SPDX-License-Identifier: Apache-2.0
"""A phase whose only thread waits for another is given up at once, whoever restores it; what may yet go on is not."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from direct_runs import flat_job
from direct_state import timed
from regions import captured_regions
from tracing import compile_small

from checkpoint.capture.stored import read_state
from checkpoint.compiled import restorer
from checkpoint.errors import PhaseFailed
from checkpoint.flat.image import FlatImage
from checkpoint.process.waiting import WAITS_FOR_EVER, EndlessWait
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.recorded_calls import record_calls
from reducer.touched_set import record_touched_directly

AT_ONCE_SECONDS = 20.0
"""A region is given up after thirty in any case."""

SOURCE = r"""
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "site.h"

static int word;

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
    if (!strcmp(how, "work"))
        for (uint64_t state = 1;;)
            state = work(state);
    if (!strcmp(how, "alarm"))
        signal(SIGALRM, wakes);
    if (!strcmp(how, "beside") && pthread_create(&other, NULL, sleeps, NULL))
        _exit(2);
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, strcmp(how, "limit") ? NULL : &limit);
}

/* With the name of a file it waits in its region once there is such a file, as no phase does when it is captured. */
int main(int argc, char **argv)
{
    if (argc > 2)
        wait_for(argv[2]);
    work(1);
    region_warm();
    region_start();
    if (!access(argv[1], F_OK))
        wait_for("alone");
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
    for how in ("limit", "beside", "alarm", "pause", "work"):
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


@pytest.mark.parametrize("how", RESTORES)
def test_a_phase_that_waits_for_ever_is_given_up_at_once(
    how: str, region: tuple[RestoreJob, FlatImage, Path], tmp_path: Path
) -> None:
    job, flat, there = region
    RESTORES[how](job, flat, tmp_path)
    begun = time.monotonic()
    there.touch()
    try:
        with pytest.raises(PhaseFailed, match=WAITS_FOR_EVER):
            RESTORES[how](job, flat, tmp_path)
    finally:
        there.unlink()
    assert time.monotonic() - begun < AT_ONCE_SECONDS
