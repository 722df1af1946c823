# SPDX-License-Identifier: Apache-2.0
"""Files of captured phases in a work folder, and the jobs that restore the phases from them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from checkpoint.capture.stored import read_state
from checkpoint.process.program import Program
from checkpoint.restore.criu_restore import RestoreJob
from probe.contents.carried_files import needed_files
from probe.formats.checkpoints import CapturedPhase
from probe.formats.timing import TimedProfile
from reducer.archive import ContainedFile

CAPTURE_RUN = "capture"
"""Name of the run that the checkpoints are taken from."""


def captured_outputs(folder: Path) -> tuple[str, str]:
    """Files for the output of the capture run whose checkpoints are below `folder`, as the kernel names them: a link to
    the folder is not in the program's descriptors."""
    real = os.path.realpath(folder)
    return f"{real}/{CAPTURE_RUN}.stdout", f"{real}/{CAPTURE_RUN}.stderr"


def written_copies(folder: Path, phase: CapturedPhase) -> dict[str, Path]:
    """Copies of the files that `phase` had open for writing, by their paths."""
    return {path: folder / copy for path, copy in phase.written.items()}


def touched_file(folder: Path, phase: int) -> Path:
    """Where reducing leaves a phase's touched pages: little-endian 64-bit addresses in order of first touch."""
    return folder / f"touched-{phase}.bin"


def restore_job(program: Program, timed: TimedProfile, folder: Path, phase: CapturedPhase, images: str) -> RestoreJob:
    """What it takes to restore `phase`, captured below `folder`, from the folder `images` in it."""
    seconds = timed.seconds[phase.interval - phase.warmup : phase.interval + 1].sum()
    return RestoreJob(
        phase=phase.phase,
        images=folder / images,
        outputs=captured_outputs(folder),
        folders=(program.probed_cwd,),
        binds=(),
        written=[(str(copy), path) for path, copy in written_copies(folder, phase).items()],
        warm_event=phase.warm_event,
        start_event=phase.start_event,
        end_event=phase.end_event,
        expected_seconds=float(seconds),
        threads=program.threads,
    )


def checkpoint_files(
    folder: Path,
    program: Program,
    captured: Sequence[CapturedPhase],
    outputs: tuple[str, ...],
    opened: Sequence[str] = (),
) -> list[ContainedFile]:
    """The files that the checkpoints below `folder` map or read, or open (`opened`) while they run."""
    images = [(read_state(folder / c.folder), c.written) for c in captured]
    return needed_files(images, os.path.realpath(program.probed_executable), outputs, opened)
