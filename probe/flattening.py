# SPDX-License-Identifier: Apache-2.0
"""The flatten stage: every phase gets the image with which an ordinary user can restore it, where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from checkpoint.errors import NodeUnfit, PhaseFailed
from checkpoint.flat_image import NAME, encode
from checkpoint.flatten import NotFlat, flatten
from checkpoint.images import read_checkpoint
from checkpoint.native import restorer
from checkpoint.recorded_calls import record_calls
from checkpoint.restore import RestoreJob
from probe.reducing import touched_file


@dataclass(frozen=True)
class FlatPhase:
    """What the stage found out about a phase. `refused`: why only CRIU can restore it ("" if that is not so);
    `opened`: files that it opens by their paths while it runs; `calls`: system calls of warm-up and region, -1 if
    they could not be watched."""

    phase: int
    refused: str
    opened: tuple[str, ...] = ()
    calls: int = -1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> FlatPhase:
        return FlatPhase(
            int(value["phase"]), str(value["refused"]), tuple(value["opened"]), int(value.get("calls", -1))
        )


def flatten_phases(
    jobs: Sequence[tuple[RestoreJob, Sequence[tuple[int, int]]]],
    *,
    folder: Path,
    progress: Callable[[float], None],
) -> list[FlatPhase]:
    """Put a flat image beside each job's images; with a job come the address ranges that had huge pages.

    A phase that cannot be restored from it says why, and keeps none.
    """
    done = []
    for number, (job, huge) in enumerate(jobs):
        done.append(_flatten(job, huge, folder))
        progress((number + 1) / len(jobs))
    return done


def _flatten(job: RestoreJob, huge: Sequence[tuple[int, int]], folder: Path) -> FlatPhase:
    target = job.images / NAME
    target.unlink(missing_ok=True)
    images = read_checkpoint(job.images)
    try:
        flat = flatten(
            images,
            (job.warm_event, job.start_event, job.end_event),
            outputs=job.outputs,
            written=[path for _, path in job.written],
            huge=huge,
            touched=_touched(folder, job.phase),
        )
        target.write_bytes(encode(flat))
        calls = record_calls(job, flat, images.pages_image, restorer(), scratch=folder)
        flat.calls = sorted(calls.numbers) if calls.complete else []
        flat.opened = calls.opened
        flat.header.calls_made = calls.made
        flat.header.changes_paths = calls.changes_paths
        target.write_bytes(encode(flat))
        return FlatPhase(job.phase, "", tuple(flat.opened), calls.made)
    except (NotFlat, PhaseFailed, NodeUnfit, ValueError) as error:
        target.unlink(missing_ok=True)
        return FlatPhase(job.phase, str(error))


def _touched(folder: Path, phase: int) -> list[int]:
    path = touched_file(folder, phase)
    if not path.exists():
        return []
    return [int(address) for address in np.frombuffer(path.read_bytes(), dtype="<u8") & ~np.uint64(4095)]
