# SPDX-License-Identifier: Apache-2.0
"""Estimate what a build takes, from one plain run of the program: runs, time, room on the disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoint.process.exit_status import exit_status
from checkpoint.process.plain_run import children_of, run_plain
from checkpoint.process.program import resolve_program
from checkpoint.process.waiting import peak_resident, threads_of
from probe.formats.choices import SECONDS, unit_of
from probe.pipeline.at_once import most_captured
from probe.pipeline.build import capture_here, full_runs
from probe.pipeline.options import BuildOptions
from probe.pipeline.outputs import bounded_outputs, output_streams
from probe.pipeline.reduce import most_copies
from probe.pipeline.runs.plan import FullRuns, full_runs_for, length


@dataclass(frozen=True)
class BuildEstimate:
    """One plain run, and what follows from it.

    seconds, cpu   of that run
    resident       bytes that its fullest process had
    runs           full runs of the program by stage
    phases         most phases
    room           bytes that the work folder takes at most, with so many phases
    folder, free   where the work folder will be, and the bytes that are free there
    """

    seconds: float
    cpu: float
    resident: int
    runs: Mapping[str, int]
    phases: int
    room: int
    folder: Path
    free: int

    @property
    def run_seconds(self) -> float:
        """Of all full runs together. Phases are restored besides."""
        return self.seconds * sum(self.runs.values())


def estimate_build(
    argv: Sequence[str], options: BuildOptions, *, stdin: str = "/dev/null", work: Path | None = None
) -> BuildEstimate:
    """Run `argv` once, plainly, and say what building takes. Raises ProgramNotRunnable, ProgramFailed, StorageError."""
    program = resolve_program(argv, isa=options.isa, stdin=stdin, cwd=None, env=os.environ)
    fullest, many = 0, False

    def look(pid: int) -> None:
        nonlocal fullest, many
        fullest = max(fullest, peak_resident(pid))
        with contextlib.suppress(OSError):
            many |= len(threads_of(pid)) > 1
        for child in children_of(pid):
            many = True
            look(child)

    with tempfile.TemporaryDirectory(prefix="probe-estimate-") as name:
        streams = output_streams(Path(name), "estimate")
        with bounded_outputs(Path(name)):
            run = run_plain(program, streams, look=look)
        exit_status(program, run.status, streams)
    folder = _existing(work) if work is not None else Path(tempfile.gettempdir())
    phases, plan = options.selection.max_phases, _plan(options, length(run.wall, run.cpu), many=many)
    return BuildEstimate(
        run.wall,
        run.cpu,
        fullest,
        full_runs(options, plan),
        phases,
        fullest * most_copies(most_captured(phases) if plan.at_once else phases, fullest),
        folder,
        shutil.disk_usage(folder).free,
    )


def _plan(options: BuildOptions, seconds: float, *, many: bool) -> FullRuns:
    """`many`: whether the program had other processes or threads."""
    return full_runs_for(
        seconds,
        options.runs,
        by_itself=not many and unit_of(options.tracer) == SECONDS,
        apart=replace(options, capture=capture_here(options)).captures_apart,
    )


def _existing(path: Path) -> Path:
    """The nearest folder that is there already."""
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.is_dir())
