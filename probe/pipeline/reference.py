# SPDX-License-Identifier: Apache-2.0
"""Run the whole program by itself on the reference node: the runs that ET_ref is made of."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from checkpoint.process.exit_status import exit_status
from checkpoint.process.plain_run import PlainRun, run_plain
from checkpoint.process.program import Program
from probe.formats.arrays import FloatArray
from probe.formats.reference import Reference
from probe.formats.timing import IntervalRun
from probe.pipeline.options import BuildOptions
from probe.pipeline.outputs import compare_run, note_run, output_streams
from probe.pipeline.stage import Build
from probe.prediction.level import level_of_sum
from probe.prediction.limits import doubts_of_reference
from probe.progress import Report

NAME = "reference"
OPTIONS: tuple[str, ...] = ()
FILES = ("reference.json", "plain-*", "own-environment.*")

_RESULT = "reference.json"

EARLY_RUNS = 2
"""Plain runs before anything else: enough to see which of its output a program does not repeat."""

CPU_BOUND_BLOCKED = 0.01
"""A program that sleeps for less than this share of its run is timed by its CPU clock."""


def plain_run_names(runs: int) -> list[str]:
    return [f"plain-{i}" for i in range(runs)]


def plain_run(
    program: Program,
    folder: Path,
    name: str,
    *,
    cpu: int | None,
    expected: int,
    environment: Mapping[str, str] | None = None,
    others: bool = False,
) -> PlainRun:
    """One full run whose output stays in `folder` under `name`. Raises ProgramFailed, and Diverged where it exits with
    another status than `expected`."""
    streams = output_streams(folder, name)
    result = run_plain(program, streams, environment=environment, cpu=cpu, others=others)
    exit_status(program, result.status, streams, expected)
    return result


class SpreadRuns:
    """Full runs spread between the rounds of the self-check, so that ET_ref and T_ref meet the same machine: its
    speed drifts by several percent within minutes. `make` makes one of them."""

    def __init__(self, make: Callable[[], IntervalRun], *, runs: int, rounds: int) -> None:
        self._make = make
        self._runs, self._rounds = runs, rounds
        self.done: list[IntervalRun] = []

    def after_round(self, rounds: int) -> None:
        """Make the runs that are due after so many rounds. Raises ProgramFailed."""
        while len(self.done) < rounds * self._runs // self._rounds:
            self.more()

    def more(self) -> None:
        """Make one more. Raises ProgramFailed."""
        self.done.append(self._make())

    def reference(self, early: Reference) -> Reference:
        """`early` with ET_ref from these runs, interval by interval."""
        voted = [
            level_of_sum(_parts(getattr(run, clock), getattr(run, f"interval_{clock}")) for run in self.done)
            for clock in ("wall", "cpu")
        ]
        known = len(self.done) > 1
        return replace(
            early,
            wall=tuple(r.wall for r in self.done),
            cpu=tuple(r.cpu for r in self.done),
            voted=tuple(one.seconds for one in voted) if known else (),
            voted_error=tuple(one.error for one in voted) if known else (),
            voted_noise=tuple(one.noise for one in voted) if known else (),
        )


def _parts(whole: float, intervals: FloatArray) -> FloatArray:
    """The parts of one run: its intervals, and what was outside them."""
    return np.append(intervals, whole - intervals.sum())


def measure_reference(
    program: Program,
    *,
    folder: Path,
    cpu: int | None = None,
    expected: int = 0,
    others: bool = False,
    progress: Callable[[float], None] | None = None,
    after_run: Callable[[str], None] | None = None,
) -> Reference:
    """Run the program EARLY_RUNS times plainly, and once more in the caller's own environment.

    Each exits with status `expected`; `others`: it starts processes. Outputs stay in `folder` for comparison.
    `after_run` gets the name of each run when it is over, `progress` the share done. Raises ProgramFailed, Diverged.
    """
    done = []
    for name in plain_run_names(EARLY_RUNS):
        done.append(plain_run(program, folder, name, cpu=cpu, expected=expected, others=others))
        if after_run:
            after_run(name)
        if progress:
            progress(len(done) / (EARLY_RUNS + 1))
    own = plain_run(
        program, folder, "own-environment", cpu=cpu, expected=expected, environment=program.env, others=others
    )
    blocked = statistics.median(r.blocked / r.wall for r in done)
    return Reference(
        wall=tuple(r.wall for r in done),
        cpu=tuple(r.cpu for r in done),
        blocked_share=blocked,
        plain_environment=(own.wall, own.cpu),
        # The CPU time of threads that share the work says nothing of how long it takes.
        clock="cpu" if blocked < CPU_BOUND_BLOCKED and program.threads == 1 else "wall",
        early_wall=tuple(r.wall for r in done),
        early_cpu=tuple(r.cpu for r in done),
        waited_share=statistics.median(min(1.0, r.waited / r.wall / program.threads) for r in done),
    )


def runs(_options: BuildOptions) -> int:
    """Plain runs, and the run in the caller's own environment."""
    return EARLY_RUNS + 1


def run(build: Build, report: Report) -> None:
    """The early runs. Raises ProgramFailed."""
    folder = build.folder.path
    build.reference = measure_reference(
        build.program,
        folder=folder,
        cpu=build.cpu,
        expected=build.profile.exit_status,
        others=bool(build.profile.processes),
        progress=report,
        after_run=lambda run: note_run(folder, run, build.profile.written),
    )


def save(build: Build) -> None:
    build.folder.write_json(_RESULT, build.reference.to_json())


def load(build: Build) -> None:
    build.reference = build.folder.read(_RESULT, Reference.from_json)


def doubts(build: Build) -> list[str]:
    """Doubts about the runs themselves, and about the traced run, now that there are plain ones to compare it with."""
    if build.profile.exit_status:
        build.notes.append(f"every run exited with status {build.profile.exit_status}")
    compared = compare_run(build.folder.path, plain_run_names(EARLY_RUNS), "trace", "the traced run")
    build.notes += compared.notes
    return doubts_of_reference(build.reference) + compared.warnings
