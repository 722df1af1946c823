# SPDX-License-Identifier: Apache-2.0
"""Programs that keep their entries in /proc from their own user (PR_SET_DUMPABLE), captured by that user."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from direct_runs import as_nobody, flat_job
from direct_state import timed
from ordinary_user import home_for_anybody
from programs import build
from regions import captured_regions
from tracing import count_run, program_of

from checkpoint.capture.stored import read_state
from checkpoint.compiled import ANSWERS, WALL_CLOCK
from checkpoint.errors import ProgramUnsupported
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.stubs.encode import assembled, templates


@pytest.fixture
def program(builds: Path) -> Iterator[Path]:
    """In a folder of the user's own."""
    with home_for_anybody() as home:
        yield Path(shutil.copy(build("traps", builds), home / "traps"))


def captured_by_its_user(program: Path, scenario: str, regions: int = 1) -> RestoreJob:
    """Its first region."""
    # What is compiled is compiled for root, whose folders the user cannot read.
    templates()
    for recipe in (ANSWERS, WALL_CLOCK):
        assembled(recipe)
    folder = program.parent / "work"

    def as_user() -> list[int]:
        job = captured_regions(program, scenario, folder=folder, regions=regions, direct=True)[0]
        return [job.warm_event, job.start_event, job.end_event]

    warm, start, end = as_nobody(as_user)
    return RestoreJob(
        phase=1, images=folder / "phase-1", outputs=(str(folder / "stdout"), str(folder / "stderr")),
        folders=(str(program.parent),), binds=(), written=[], warm_event=warm, start_event=start, end_event=end,
        expected_seconds=0.1,
    )  # fmt: skip


@pytest.mark.parametrize(("scenario", "regions"), [("nondumpable", 1), ("opening", 2)])
def test_its_own_user_captures_it(scenario: str, regions: int, program: Path, tmp_path: Path) -> None:
    """Between two regions the program asks the kernel whether it still is as it was."""
    job = captured_by_its_user(program, scenario, regions)
    assert read_state(job.images).pages > 16
    flat_job(job, tmp_path, watched=False)
    assert timed(job, tmp_path).wall > 0


def test_what_it_holds_is_seen_as_well(program: Path) -> None:
    with pytest.raises(AssertionError, match=rf"{ProgramUnsupported.__name__}.* a socket \(descriptor 3\)"):
        captured_by_its_user(program, "connected")


def test_a_library_that_it_opens_is_found(program: Path) -> None:
    """The mappings are read at each opening, after the program has closed them to its user."""
    templates()

    def as_user() -> int:
        tempfile.tempdir = str(program.parent)
        return count_run(program_of(program, "opening")).end.status

    assert as_nobody(as_user) == 0
