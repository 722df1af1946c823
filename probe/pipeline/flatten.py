# SPDX-License-Identifier: Apache-2.0
"""The flatten stage: every phase gets the image with which an ordinary user can restore it, where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from checkpoint.compiled import restorer
from checkpoint.criu.images import read_checkpoint
from checkpoint.errors import NodeUnfit, PhaseFailed
from checkpoint.flat.convert import NotFlat, flatten
from checkpoint.flat.image import NAME, encode
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.recorded_calls import record_calls
from probe.pipeline.reduce import touched_file


@dataclass(frozen=True)
class FlatPhase:
    """What the stage found out about a phase. `refused`: why only CRIU can restore it ("" if that is not so);
    `opened`: files that it opens by their paths while it runs; `calls`: (number, times) of its system calls, `seen`:
    (address, times) of its code (checkpoint.restore.recorded_calls); `all_calls`: whether none is missing in these
    two."""

    phase: int
    refused: str
    opened: tuple[str, ...] = ()
    calls: tuple[tuple[int, int], ...] = ()
    seen: tuple[tuple[int, int], ...] = ()
    all_calls: bool = False

    @property
    def calls_made(self) -> int:
        """How many system calls it makes, at least; -1 if they could not be watched."""
        return -1 if self.refused else sum(times for _, times in self.calls)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> FlatPhase:
        pairs = {name: tuple((int(a), int(b)) for a, b in value.get(name, ())) for name in ("calls", "seen")}
        return FlatPhase(
            int(value["phase"]),
            str(value["refused"]),
            tuple(value["opened"]),
            all_calls=bool(value.get("all_calls", False)),
            **pairs,
        )


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
        done.append(_flatten(job, huge, folder, cpu))
        progress((number + 1) / len(jobs))
    return done


def _flatten(job: RestoreJob, huge: Sequence[tuple[int, int]], folder: Path, cpu: int | None) -> FlatPhase:
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
        calls = record_calls(job, flat, images.pages_image, restorer(), scratch=folder, cpu=cpu)
        flat.calls = sorted(calls.numbers) if calls.complete else []
        flat.opened = calls.opened
        flat.header.calls_made = calls.made
        flat.header.changes_paths = calls.changes_paths
        target.write_bytes(encode(flat))
        return FlatPhase(
            job.phase,
            "",
            tuple(flat.opened),
            tuple(sorted(calls.counts.items())),
            tuple(sorted(calls.seen.items())),
            calls.complete,
        )
    except (NotFlat, PhaseFailed, NodeUnfit, ValueError) as error:
        target.unlink(missing_ok=True)
        return FlatPhase(job.phase, str(error))


def _touched(folder: Path, phase: int) -> list[int]:
    path = touched_file(folder, phase)
    if not path.exists():
        return []
    return [int(address) for address in np.frombuffer(path.read_bytes(), dtype="<u8") & ~np.uint64(4095)]
