# SPDX-License-Identifier: Apache-2.0
"""Running the whole program on the reference node, by itself: what ET_ref is made of."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from checkpoint.process.exit_status import check_exit
from checkpoint.process.plain_run import PlainRun, run_plain
from checkpoint.process.program import Program, Streams
from probe.formats.reference import Reference

EARLY_RUNS = 2
"""Plain runs before anything else: enough to see which of its output a program does not repeat."""

CPU_BOUND_BLOCKED = 0.01
"""A program that sleeps for less than this share of its run is timed by its CPU clock."""


def output_streams(folder: Path, run: str) -> Streams:
    """Fresh files for the output of one run."""
    streams = Streams(folder / f"{run}.stdout", folder / f"{run}.stderr")
    for path in (streams.stdout, streams.stderr):
        path.unlink(missing_ok=True)
    return streams


def plain_run_names(runs: int) -> list[str]:
    return [f"plain-{i}" for i in range(runs)]


def plain_run(
    program: Program, folder: Path, name: str, *, cpu: int | None, environment: Mapping[str, str] | None = None
) -> PlainRun:
    """One full run whose output stays in `folder` under `name`. Raises ProgramFailed."""
    streams = output_streams(folder, name)
    result = run_plain(program, streams, environment=environment, cpu=cpu)
    check_exit(program, result.status, streams)
    return result


class SpreadRuns:
    """Plain runs spread between the rounds of the self-check, so that ET_ref and T_ref meet the same machine: its
    speed drifts by several percent within minutes."""

    def __init__(self, program: Program, folder: Path, *, runs: int, rounds: int, cpu: int | None) -> None:
        self._program, self._folder, self._cpu = program, folder, cpu
        self._runs, self._rounds = runs, rounds
        self._done: list[PlainRun] = []

    def after_round(self, rounds: int) -> None:
        """Make the runs that are due after so many rounds. Raises ProgramFailed."""
        while len(self._done) < rounds * self._runs // self._rounds:
            self._done.append(plain_run(self._program, self._folder, "between", cpu=self._cpu))

    def reference(self, early: Reference) -> Reference:
        """`early` with ET_ref from these runs."""
        return replace(early, wall=tuple(r.wall for r in self._done), cpu=tuple(r.cpu for r in self._done))


def measure_reference(
    program: Program,
    *,
    folder: Path,
    cpu: int | None = None,
    progress: Callable[[float], None] | None = None,
    after_run: Callable[[str], None] | None = None,
) -> Reference:
    """Run the program EARLY_RUNS times plainly, and once more in the caller's own environment.

    Outputs stay in `folder` for comparison; `after_run` gets the name of each run when it is over. Raises
    ProgramFailed. `progress` gets the share done.
    """
    done = []
    for name in plain_run_names(EARLY_RUNS):
        done.append(plain_run(program, folder, name, cpu=cpu))
        if after_run:
            after_run(name)
        if progress:
            progress(len(done) / (EARLY_RUNS + 1))
    own = plain_run(program, folder, "own-environment", cpu=cpu, environment=program.env)
    blocked = statistics.median(r.blocked / r.wall for r in done)
    return Reference(
        wall=tuple(r.wall for r in done),
        cpu=tuple(r.cpu for r in done),
        blocked_share=blocked,
        plain_environment=(own.wall, own.cpu),
        clock="cpu" if blocked < CPU_BOUND_BLOCKED else "wall",
        early_wall=tuple(r.wall for r in done),
        early_cpu=tuple(r.cpu for r in done),
        waited_share=statistics.median(r.waited / r.wall for r in done),
    )
