# SPDX-License-Identifier: Apache-2.0
"""A control group with less memory than a program or its restored copy takes: whom the kernel ends is told so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from control_group import group_with_memory, join
from direct_runs import as_user, flat_job
from programs import build
from regions import captured_regions

import checkpoint.memory_shortage as shortage
from checkpoint.capture.stored import read_state
from checkpoint.compiled import restorer
from checkpoint.errors import ProbeError
from checkpoint.flat.image import NAME, decode
from checkpoint.linux import PAGE_SIZE
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.direct_restore import DirectAgent
from checkpoint.restore.recorded_calls import record_calls
from probe.pipeline.reduce import PhaseToReduce, reduce_phase


def resident() -> int:
    """Bytes that this process has: of those that a group has, the kernel ends the one with most."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_SIZE


def limit() -> int:
    """Of a group, in bytes: our own processes take less."""
    return 2 * resident() + (64 << 20)


def arguments() -> tuple[str, ...]:
    """Of a program that takes twice as much."""
    return "40", "block", str(2 * limit() // PAGE_SIZE)


_WANT = "the kernel ended it, most likely for want of memory"


def said_by(action: Callable[[], object]) -> str:
    """What an error of ours says: "" where there is none."""
    try:
        action()
    except ProbeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_program_that_the_kernel_ends_is_no_program_that_crashed(builds: Path, tmp_path: Path) -> None:
    """Its run to the checkpoint: the markers are not reached, and that is not because they differ between runs."""
    program = build("crowd", builds)

    def captured() -> str:
        return said_by(lambda: captured_regions(program, *arguments(), folder=tmp_path / "work", direct=True))

    with group_with_memory(limit()) as group:
        said = as_user(0, captured, lambda: join(group))
    assert said.startswith("ProgramFailed: ") and "was killed by the kernel for want of memory" in said


@pytest.fixture(scope="module")
def job(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> RestoreJob:
    """A phase of twice the limit."""
    folder = tmp_path_factory.mktemp("short-of-memory")
    (job,) = captured_regions(build("crowd", builds), *arguments(), folder=folder, direct=True)
    flat_job(job, folder, watched=False)
    return job


def test_a_restored_phase_that_the_kernel_ends_is_named(job: RestoreJob, tmp_path: Path) -> None:
    def restored() -> str:
        with DirectAgent(job, restorer(), scratch=tmp_path) as agent:
            return said_by(agent.repeat)

    with group_with_memory(limit()) as group:
        said = as_user(0, restored, lambda: join(group))
    assert said.startswith("PhaseFailed: phase 1: ") and "SIGKILL" in said and _WANT in said


def test_a_phase_that_the_kernel_ends_while_its_calls_are_watched_is_named(job: RestoreJob, tmp_path: Path) -> None:
    images, flat = read_state(job.images), decode(job.images / NAME)

    def watched() -> str:
        return said_by(lambda: record_calls(job, flat, images.pages_image, restorer(), scratch=tmp_path))

    with group_with_memory(limit()) as group:
        said = as_user(0, watched, lambda: join(group))
    assert said.startswith("PhaseFailed: phase 1: ") and _WANT in said


def test_a_phase_larger_than_the_group_is_reduced(job: RestoreJob, tmp_path: Path) -> None:
    """Watched, it takes what it touches alone."""

    def reduced() -> tuple[str, int]:
        done = reduce_phase(PhaseToReduce(job, 0.001), None, how="drop", folder=tmp_path)
        return done.whole, done.kept_pages

    with group_with_memory(limit()) as group:
        whole, kept = as_user(0, reduced, lambda: join(group))
    assert whole == "" and kept < 2000


def test_who_is_killed_by_others_is_not_short_of_memory() -> None:
    shortage.note_start()
    assert not shortage.killed_for_memory(9) and not shortage.killed_for_memory(11)
