# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of one capture run, below a folder: taking them, and what restoring one needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from checkpoint.criu.tool import Criu
from checkpoint.process.program import Program
from checkpoint.restore.criu_restore import RestoreJob
from probe.formats.profile import Profile
from probe.formats.timing import TimedProfile
from probe.pipeline.capture import CapturedPhase, RegionPlan, capture
from probe.pipeline.carried_files import copy_written_files
from probe.pipeline.reference import output_streams

_RUN = "capture"


def captured_outputs(folder: Path) -> tuple[str, str]:
    """Files for the output of the capture run whose checkpoints are below `folder`."""
    return str(folder / f"{_RUN}.stdout"), str(folder / f"{_RUN}.stderr")


def take_checkpoints(
    profile: Profile,
    timed: TimedProfile,
    plans: list[RegionPlan],
    *,
    criu: Criu,
    folder: Path,
    cpu: int | None,
    progress: Callable[[float], None],
) -> list[CapturedPhase]:
    """One capture run: every plan's checkpoint, and copies of the files it was writing, below `folder`.

    `progress` gets the share done. Raises as `capture` does.
    """
    begun = time.time()
    return capture(
        profile,
        plans,
        criu=criu,
        folder=folder,
        streams=output_streams(folder, _RUN),
        expected_seconds=timed.wall_seconds,
        cpu=cpu,
        progress=lambda done: progress(done / len(plans)),
        on_dump=lambda plan, images: copy_written_files(
            images, folder / f"written-{plan.phase}", captured_outputs(folder), since=begun
        ),
    )


def written_copies(folder: Path, phase: CapturedPhase) -> dict[str, Path]:
    """Copies of the files that `phase` had open for writing, by their paths."""
    return {path: folder / copy for path, copy in phase.written.items()}


def restore_job(program: Program, timed: TimedProfile, folder: Path, phase: CapturedPhase, images: str) -> RestoreJob:
    """What it takes to restore `phase`, captured below `folder`, from the folder `images` in it."""
    seconds = timed.seconds[phase.interval - phase.warmup : phase.interval + 1].sum()
    return RestoreJob(
        phase=phase.phase,
        images=folder / images,
        outputs=captured_outputs(folder),
        folders=(program.cwd,),
        binds=(),
        written=[(str(copy), path) for path, copy in written_copies(folder, phase).items()],
        warm_event=phase.warm_event,
        start_event=phase.start_event,
        end_event=phase.end_event,
        expected_seconds=float(seconds),
    )
