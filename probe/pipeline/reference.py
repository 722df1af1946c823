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
from probe.formats.choices import SECONDS
from probe.formats.profile import Profile
from probe.formats.reference import Clock, Reference
from probe.formats.timing import LEAST_SECONDS, IntervalRun, TimedProfile
from probe.pipeline.outputs import compare_run, keep_printed_once, note_run, output_streams
from probe.pipeline.runs.plan import EARLY_RUNS, VOTING, FullRuns, full_runs_for, length, trusted
from probe.pipeline.stage import Build
from probe.prediction.level import level_of_sum
from probe.prediction.limits import doubts_of_draws, doubts_of_reference, doubts_of_stubs
from probe.progress import Report

NAME = "reference"
OPTIONS: tuple[str, ...] = ()
FILES = ("reference.json", "plain-*", "own-environment.*")

_RESULT = "reference.json"

CPU_BOUND_BLOCKED = 0.01
"""A program that sleeps for less than this share of its run is timed by its CPU clock."""


def plain_run_name(number: int) -> str:
    """Name of the output of an early run."""
    return f"plain-{number}"


def early_run_names(reference: Reference) -> list[str]:
    """Names of the outputs of all of them."""
    return [plain_run_name(number) for number in range(len(reference.early_wall))]


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
    speed drifts by several percent within minutes. `make` makes one of them, from how many there are.

    `timing`: the timing run as a plain one, which votes where fewer than VOTING others are made. `on_demand`: whether
    more may be made for a narrower interval.
    """

    def __init__(
        self,
        make: Callable[[int], IntervalRun],
        *,
        runs: int,
        rounds: int,
        timing: IntervalRun | None = None,
        on_demand: bool = True,
    ) -> None:
        self._make, self._timing = make, timing
        self._runs, self._rounds = runs, rounds
        self.on_demand = on_demand
        self.done: list[IntervalRun] = []

    @property
    def voting(self) -> list[IntervalRun]:
        """The runs that ET_ref comes from."""
        return [self._timing, *self.done] if self._timing and len(self.done) < VOTING else self.done

    def after_round(self, rounds: int) -> None:
        """Make the runs that are due after so many rounds: with rounds on both sides. Raises ProgramFailed."""
        while len(self.done) < (rounds * self._runs + self._rounds // 2) // self._rounds:
            self.more()

    def more(self) -> None:
        """Make one more. Raises ProgramFailed."""
        self.done.append(self._make(len(self.done)))

    def reference(self, early: Reference) -> Reference:
        """`early` with ET_ref from these runs, interval by interval; `early` where none was made."""
        runs = self.voting
        if not runs:
            return early
        voted = [
            level_of_sum(_parts(getattr(run, clock), getattr(run, f"interval_{clock}")) for run in runs)
            for clock in ("wall", "cpu")
        ]
        known = len(runs) > 1
        return replace(
            early,
            wall=tuple(r.wall for r in runs),
            cpu=tuple(r.cpu for r in runs),
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
    plan: FullRuns | None,
    folder: Path,
    cpu: int | None = None,
    expected: int = 0,
    others: bool = False,
    progress: Callable[[float], None] | None = None,
    after_run: Callable[[str], None] | None = None,
) -> Reference:
    """Run the program `plan.early` times plainly, at least once, and `plan.own` times in the caller's own environment.

    `plan`: None where the first of these runs has to tell how long the program takes. Each exits with status
    `expected`; `others`: it starts processes. Outputs stay in `folder` for comparison.
    `after_run` gets the name of each run when it is over, `progress` the share done. Raises ProgramFailed, Diverged.
    """
    done: list[PlainRun] = []
    while plan is None or len(done) < plan.early:
        name = plain_run_name(len(done))
        done.append(plain_run(program, folder, name, cpu=cpu, expected=expected, others=others))
        if after_run:
            after_run(name)
        plan = plan or full_runs_for(length(done[0].wall, done[0].cpu), by_itself=False)
        if progress:
            progress(len(done) / (plan.early + plan.own))
    own = [
        plain_run(
            program, folder, "own-environment", cpu=cpu, expected=expected, environment=program.env, others=others
        )
        for _ in range(plan.own)
    ]
    blocked = statistics.median(r.blocked / r.wall for r in done)
    return Reference(
        wall=tuple(r.wall for r in done),
        cpu=tuple(r.cpu for r in done),
        blocked_share=blocked,
        plain_environment=tuple(seconds for r in own for seconds in (r.wall, r.cpu)),
        clock=_clock(blocked, program.threads),
        early_wall=tuple(r.wall for r in done),
        early_cpu=tuple(r.cpu for r in done),
        waited_share=statistics.median(min(1.0, r.waited / r.wall / program.threads) for r in done),
    )


def _clock(blocked: float, threads: int) -> Clock:
    """What the program is timed by, which sleeps for that share of its run."""
    # The CPU time of threads that share the work says nothing of how long it takes.
    return "cpu" if blocked < CPU_BOUND_BLOCKED and threads == 1 else "wall"


def seen_in_trace(profile: Profile) -> Reference:
    """What the traced run says of the program's time until the timing run says it."""
    seconds = (max(float(profile.seconds.sum()), LEAST_SECONDS),)
    return Reference(seconds, seconds, 0.0, (), "wall", (), ())


def seen_in_timing_run(early: Reference, timed: TimedProfile, threads: int) -> Reference:
    """`early`, and where no plain run came before it what the timing run says of a program of so many threads."""
    if early.early_wall:
        return early
    run = timed.unstamped()
    return replace(
        early,
        wall=(run.wall,),
        cpu=(run.cpu,),
        blocked_share=timed.blocked_share,
        waited_share=timed.waited_share,
        clock=_clock(timed.blocked_share, threads),
    )


def runs(plan: FullRuns) -> int:
    """Plain runs, and the run in the caller's own environment."""
    return plan.early + plan.own


def run(build: Build, report: Report) -> None:
    """The early runs, if any; else the timing run has said what they say. Raises ProgramFailed."""
    folder, plan = build.folder.path, build.planned()
    if plan is not None and not runs(plan):
        return
    build.reference = measure_reference(
        build.program,
        plan=plan,
        folder=folder,
        cpu=build.cpu,
        expected=build.profile.exit_status,
        others=bool(build.profile.processes),
        progress=report,
        after_run=lambda run: note_run(folder, run, build.profile.written),
    )
    # The run in the caller's environment is noted by nobody.
    keep_printed_once(folder)


def save(build: Build) -> None:
    build.folder.write_json(_RESULT, build.reference.to_json())


def load(build: Build) -> None:
    found = build.folder.read(_RESULT, Reference.from_json)
    # Without plain runs, a folder of an earlier version has here what the traced run said.
    build.reference = found if found.early_wall else seen_in_timing_run(found, build.timed, build.program.threads)


def _comparable(build: Build) -> bool:
    """Whether runs with stubs and without should take equally long. By the wall clock the tracer's stops count, too;
    a single run with stubs that are often executed takes longer than anybody knows; and of an exact trace the runs with
    stubs are still to come."""
    if build.profile.unit != SECONDS or build.reference.clock != "cpu":
        return False
    told = len(build.timed.again_wall) > 0 or trusted(build.timed.stamped_share)
    return told and len(build.reference.early_wall) >= EARLY_RUNS


def doubts(build: Build) -> list[str]:
    """Doubts about the runs themselves, and about what the runs before them printed and wrote."""
    if build.profile.exit_status:
        build.notes.append(f"every run exited with status {build.profile.exit_status}")
    found = doubts_of_reference(build.reference) if build.reference.early_wall else []
    if _comparable(build):
        doubt = doubts_of_draws if build.profile.is_random else doubts_of_stubs
        found += doubt(build.reference, build.timed.fastest(build.reference.clock))
    if len(early := early_run_names(build.reference)) < EARLY_RUNS:
        return found  # the self-check compares, when all runs are made
    before = {"trace": "the traced run"}
    if build.profile.unit == SECONDS:
        before["validate"] = "the timing run"
    for run, what in before.items():
        compared = compare_run(build.folder.path, early, run, what)
        build.notes += compared.notes
        found += compared.warnings
    return found
