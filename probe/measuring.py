# SPDX-License-Identifier: Apache-2.0
"""Restoring and timing the phases of a probe on this machine, one after the other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from checkpoint.criu import Criu
from checkpoint.errors import PhaseFailed, ProbeError
from checkpoint.restore import RegionTime, RestoreJob, time_phase


@dataclass(frozen=True)
class MeasuredPhase:
    """Repeats of one phase; none where it failed, `failure` says why."""

    phase: int
    times: tuple[RegionTime, ...]
    failure: str = ""
    error: ProbeError | None = None


def measuring_cpu() -> int | None:
    """The processor to pin measured processes to: the last one allowed, None on a single-processor machine."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[-1] if len(allowed) > 1 else None


@contextmanager
def away_from(cpu: int | None) -> Iterator[None]:
    """Keep this process off the processor that is measured on."""
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before - {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure_phases(
    jobs: Sequence[tuple[RestoreJob, Callable[[Path], None] | None]],
    criu: Criu,
    *,
    repeats: int,
    scratch: Path,
    cpu: int | None,
    progress: Callable[[float], None],
) -> list[MeasuredPhase]:
    """Time every phase. A job's images are first unpacked by its second part (None: they are there already).

    A phase that fails does not stop the others; what is wrong with this machine (no privilege, no CRIU) does.
    """
    results = []
    for number, (job, unpack) in enumerate(jobs):
        try:
            if unpack is not None:
                unpack(job.images)
            times = time_phase(job, criu, repeats=repeats, scratch=scratch, cpu=cpu)
            results.append(MeasuredPhase(job.phase, tuple(times)))
        except PhaseFailed as error:
            results.append(MeasuredPhase(job.phase, (), str(error), error))
        finally:
            if unpack is not None:
                shutil.rmtree(job.images, ignore_errors=True)
        progress((number + 1) / len(jobs))
    return results
