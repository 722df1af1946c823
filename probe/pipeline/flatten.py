# SPDX-License-Identifier: Apache-2.0
"""Flatten every phase into the image from which an ordinary user can restore it, where that is possible."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from checkpoint.compiled import restorer
from checkpoint.flat.image import NAME as IMAGE_NAME
from checkpoint.flat.image import decode
from checkpoint.flow.watching import FlowWatcher
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.direct_restore import pages_image
from probe.contents.captured_files import restore_job
from probe.contents.flat_phase import flat_phase
from probe.flow.recording import record_flow
from probe.flow.stored import PhaseFlow, as_json, from_json
from probe.formats.checkpoints import FlatPhase
from probe.pipeline.runs.plan import FullRuns
from probe.pipeline.stage import LEAST_COVERAGE, Build
from probe.progress import Report
from probe.selection.substitute import without_phases
from probe.work_folder import each
from reducer.packed_image import pages_in_place

NAME = "flatten"
OPTIONS = ("records_flow",)
FILES = ("flat.json", "flow.json", "flatten-seconds.json", "phase-*/direct.img")
"""Not the contents of deleted files, which direct capture leaves beside the pages."""

_THREADS = "several threads work in it: what they execute together is not the same in two runs"

_RESULT, _FLOW, _SECONDS = "flat.json", "flow.json", "flatten-seconds.json"


def flatten_phases(
    jobs: Sequence[tuple[RestoreJob, Sequence[tuple[int, int]]]],
    *,
    folder: Path,
    cpu: int | None,
    progress: Callable[[float], None],
) -> list[FlatPhase]:
    """Put a flat image beside each job's images; with a job come the address ranges that had huge pages. Phases run on
    processor `cpu` (None: on any).

    A phase that cannot be restored from it says why, and keeps none.
    """
    done = []
    for number, (job, huge) in enumerate(jobs):
        with pages_in_place(job.images):
            done.append(flat_phase(job, huge, folder, cpu))
        progress((number + 1) / len(jobs))
    return done


def runs(_plan: FullRuns) -> int:
    """None."""
    return 0


def run(build: Build, report: Report) -> None:
    """Flatten all phases. Raises StorageError."""
    folder = build.folder.path
    jobs = [
        (restore_job(build.program, build.timed, folder, phase, reduced.folder), phase.huge)
        for phase, reduced in zip(build.captured, build.reduced, strict=True)
    ]
    begun = time.monotonic()
    both = 2 if build.options.records_flow else 1
    build.flat = flatten_phases(jobs, folder=folder, cpu=build.cpu, progress=lambda share: report(share / both))
    flattened = time.monotonic()
    if build.options.records_flow:
        for number, ((job, _), flat) in enumerate(zip(jobs, build.flat, strict=True)):
            with pages_in_place(job.images):
                build.flow[flat.phase] = _flow(job, flat, folder, build.cpu)
            report((1 + (number + 1) / len(jobs)) / both)
    build.flatten_seconds = flattened - begun, time.monotonic() - flattened


def _flow(job: RestoreJob, flat: FlatPhase, folder: Path, cpu: int | None) -> PhaseFlow:
    if flat.refused:
        return PhaseFlow(None, 0, flat.refused)
    image = decode(job.images / IMAGE_NAME)
    if image.threads:
        return PhaseFlow(None, 0, _THREADS)
    return record_flow(FlowWatcher(job, image, pages_image(job, image), restorer(), scratch=folder, cpu=cpu))


def doubts(build: Build) -> list[str]:
    """Do without phases that nothing can restore, where the others hold enough of the time; else packing says why. The
    probe itself names the phases that CRIU alone can restore."""
    if build.criu is not None:
        return []
    shares = {phase.id: phase.time_share for phase in build.selection.phases}
    lost = {flat.phase: flat.refused for flat in build.flat if flat.refused}
    if not lost or sum(shares[phase] for phase in shares.keys() - lost.keys()) < LEAST_COVERAGE:
        return []
    build.captured = [one for one in build.captured if one.phase not in lost]
    build.reduced = [one for one in build.reduced if one.phase not in lost]
    build.flat = [one for one in build.flat if one.phase not in lost]
    build.selection = without_phases(build.selection, lost)
    return [
        f"phase {phase}, with {shares[phase]:.1%} of the time, is left out: {why.removeprefix(f'phase {phase}: ')}"
        for phase, why in lost.items()
    ]


def save(build: Build) -> None:
    build.folder.write_json(_RESULT, [phase.to_json() for phase in build.flat])
    if build.options.records_flow:
        build.folder.write_json(_FLOW, as_json(build.flow))
        build.folder.write_json(_SECONDS, build.flatten_seconds)


def load(build: Build) -> None:
    build.flat = build.folder.read(_RESULT, each(FlatPhase.from_json))
    if build.options.records_flow:
        build.flow = build.folder.read(_FLOW, from_json)
        # The version before did not keep them.
        if build.folder.file(_SECONDS).exists():
            build.flatten_seconds = build.folder.read(_SECONDS, _two)


def _two(value: Any) -> tuple[float, float]:
    images, flow = map(float, value)
    return images, flow
