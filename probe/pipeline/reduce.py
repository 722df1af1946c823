# SPDX-License-Identifier: Apache-2.0
"""Reduce every phase to the pages that it touches, and try it once without the others."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from checkpoint.criu.tool import Criu
from checkpoint.errors import CriuError, NodeUnfit, PhaseFailed
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.state.stored import read_state
from probe.formats.checkpoints import ReducedPhase
from probe.pipeline.capture import restore_job
from probe.pipeline.stage import Build
from probe.pipeline.work_folder import each
from probe.progress import Report
from reducer.choices import Reduction
from reducer.reduction import reduce_checkpoint
from reducer.touched_set import check_reduced, pages_to_keep, record_touched_set

NAME = "reduce"
OPTIONS = ("reduce",)
FILES = ("reduced.json", "phase-*-reduced", "touched-*.bin")

_RESULT = "reduced.json"

_HARMLESS = (PhaseFailed, CriuError, NodeUnfit)
"""What costs a phase its reduction, but not the probe: the self-check says whether it restores at all."""


def touched_file(folder: Path, phase: int) -> Path:
    """Where the stage leaves a phase's touched pages: little-endian 64-bit addresses in order of first touch."""
    return folder / f"touched-{phase}.bin"


def reduce_phases(
    jobs: Sequence[tuple[RestoreJob, float]],
    criu: Criu,
    *,
    how: Reduction,
    folder: Path,
    progress: Callable[[float], None],
) -> list[ReducedPhase]:
    """Reduce every phase; the second part of a job is its region's seconds.

    A phase that fails while it is observed, or asks for a page that was taken out, is kept whole and says why.
    """
    done = []
    for number, (job, seconds) in enumerate(jobs):
        done.append(_reduce(job, seconds, criu, how, folder))
        progress((number + 1) / len(jobs))
    return done


def _reduce(job: RestoreJob, seconds: float, criu: Criu, how: Reduction, folder: Path) -> ReducedPhase:
    images = read_state(job.images)
    raw = sum(path.stat().st_size for path in job.images.glob("*.img"))
    whole = ReducedPhase(job.phase, job.images.name, raw, images.pages, images.pages, 0, "as asked (--reduce none)")
    if how == "none":
        return whole
    target = folder / f"{job.images.name}-reduced"
    shutil.rmtree(target, ignore_errors=True)
    try:
        touched = record_touched_set(job, images, criu, scratch=folder, region_seconds=seconds)
    except _HARMLESS as error:
        return replace(whole, whole=f"its touched set could not be recorded: {error}")
    touched_file(folder, job.phase).write_bytes(touched.address.astype("<u8").tobytes())
    keep = pages_to_keep(images, touched)
    reduced = reduce_checkpoint(images, keep, target, how)
    try:
        job = replace(job, images=target)
        check_reduced(job, read_state(target), reduced.dropped, criu, scratch=folder)
    except _HARMLESS as error:
        shutil.rmtree(target, ignore_errors=True)
        return replace(whole, touched=len(touched), whole=f"it failed without its untouched pages: {error}")
    return ReducedPhase(job.phase, target.name, raw, images.pages, int(np.count_nonzero(keep)), len(touched), "")


def run(build: Build, report: Report) -> None:
    """Reduce all phases. Raises StorageError."""
    folder, timed = build.folder.path, build.timed
    jobs = [
        (restore_job(build.program, timed, folder, phase, phase.folder), float(timed.seconds[phase.interval]))
        for phase in build.captured
    ]
    build.reduced = reduce_phases(jobs, build.criu, how=build.options.reduce, folder=folder, progress=report)


def save(build: Build) -> None:
    build.folder.write_json(_RESULT, [phase.to_json() for phase in build.reduced])


def load(build: Build) -> None:
    build.reduced = build.folder.read(_RESULT, each(ReducedPhase.from_json))


def doubts(build: Build) -> list[str]:
    if build.options.reduce == "none":
        return []
    return [f"phase {phase.phase} was kept whole: {phase.whole}" for phase in build.reduced if phase.whole]
