# SPDX-License-Identifier: Apache-2.0
"""Make a captured phase's flat image, learn what its region calls, and drop what it cannot read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from checkpoint.capture.stored import read_state
from checkpoint.compiled import restorer
from checkpoint.errors import NodeUnfit, PhaseFailed
from checkpoint.flat.descriptors import NotFlat, is_appended
from checkpoint.flat.image import NAME as IMAGE_NAME
from checkpoint.flat.image import FlatImage, encode
from checkpoint.linux import PAGE_SIZE
from checkpoint.private_file import keep_length_alone, write_private
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.flat_image import write_flat_image
from checkpoint.restore.recorded_calls import RecordedCalls, record_calls
from checkpoint.state.process_state import ProcessState
from probe.contents.captured_files import touched_file
from probe.formats.checkpoints import FlatPhase


def flat_phase(job: RestoreJob, huge: Sequence[tuple[int, int]], folder: Path, cpu: int | None) -> FlatPhase:
    """Put a flat image beside the job's images, whose pages are in place; `huge`: address ranges that had huge pages.

    Of files that the region only appends to the length alone stays. A phase that cannot be restored from the image says
    why, and keeps none.
    """
    target = job.images / IMAGE_NAME
    target.unlink(missing_ok=True)
    images = read_state(job.images)
    try:
        flat, calls = _watched(job, images, huge, folder, cpu)
        # The first thread alone is watched: of calls that others make nobody knows.
        flat.calls = sorted(calls.numbers) if calls.complete and not flat.threads else []
        flat.opened = calls.opened
        flat.header.calls_made = calls.made
        flat.header.changes_paths = calls.changes_paths
        write_private(target, encode(flat))
        keep_lengths_alone(job, flat, calls)
        return FlatPhase(
            job.phase,
            "",
            tuple(flat.opened),
            tuple(sorted(calls.counts.items())),
            tuple(sorted(calls.seen.items())),
            calls.counted,
        )
    except (NotFlat, PhaseFailed, NodeUnfit, ValueError) as error:
        target.unlink(missing_ok=True)
        return FlatPhase(job.phase, str(error))


def keep_lengths_alone(job: RestoreJob, flat: FlatImage, calls: RecordedCalls) -> None:
    """Of files that the region appends to, and reads nothing of, keep how long they were: a hole of that length."""
    # Of what threads beside the first open nobody knows.
    if not calls.complete or flat.threads:
        return
    for source, path in job.written:
        if path not in calls.read and is_appended(flat, path, Path(source).stat().st_size):
            keep_length_alone(Path(source))


def _watched(
    job: RestoreJob, images: ProcessState, huge: Sequence[tuple[int, int]], folder: Path, cpu: int | None
) -> tuple[FlatImage, RecordedCalls]:
    """The phase's flat image and its calls. Where the kernel is to wait until a time of the program's clocks, these
    are the node's; a phase that fails may have waited for such a time. Raises PhaseFailed with its first reason."""
    flat = write_flat_image(job, images, huge, _touched(folder, job.phase))
    go_on = bool(flat.clocks and images.clocks) and not images.others
    try:
        calls = record_calls(job, flat, images.pages_image, restorer(), scratch=folder, cpu=cpu)
        if not (go_on and calls.deadlines):
            return flat, calls
        failed = None
    except PhaseFailed as error:
        if not go_on:
            raise
        failed = error
    try:
        return _watched(job, replace(images, clocks=()), huge, folder, cpu)
    except PhaseFailed as error:
        raise failed or error from None


def _touched(folder: Path, phase: int) -> list[int]:
    path = touched_file(folder, phase)
    if not path.exists():
        return []
    return [int(address) for address in np.frombuffer(path.read_bytes(), dtype="<u8") & ~np.uint64(PAGE_SIZE - 1)]
