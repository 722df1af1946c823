# SPDX-License-Identifier: Apache-2.0
"""Check the phases where they were made: each restored and timed, the whole program by turns with them."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from checkpoint.compiled import restorer
from checkpoint.errors import NoPrediction
from probe.contents.captured_files import restore_job
from probe.formats.choices import RANDOM
from probe.formats.intervals import interval_times, outside_share, work
from probe.formats.phase_record import DIRECT
from probe.formats.profile import Profile
from probe.formats.reference import Reference
from probe.formats.selection import Selection
from probe.formats.timing import IntervalRun, TimedProfile
from probe.node.measuring import MeasuredPhase, PhaseToMeasure, Restorers, measure_phases
from probe.node.yardsticks import Yardsticks
from probe.pipeline import validate
from probe.pipeline.outputs import compare_few, note_run
from probe.pipeline.reference import SpreadRuns, early_run_names
from probe.pipeline.runs.plan import EARLY_RUNS, FullRuns, between_runs, trusted
from probe.pipeline.stage import Build
from probe.pipeline.validate import interval_run
from probe.prediction.estimators import PhaseTiming, Prediction, ReferenceRun, predict
from probe.prediction.spending import FULL_RUNS, Means
from probe.prediction.target_error import ON_BOTH_SIDES, Narrowed, spend
from probe.progress import Report
from probe.selection.retiming import retimed
from reducer.packed_image import pages_in_place

NAME = "self-check"
OPTIONS = ("runs", "repeats", "target_error", "budget", "best_effort")

MOST_RUNS = 20
"""Full runs for ET_ref, whatever the budget."""

BETWEEN_KEPT = 2
"""Plain runs whose output is kept apart: enough to see which of it a program does not repeat."""

_PATIENCE_SECONDS, _PATIENCE_RUNS = 40.0, 6.5
"""What a build may take altogether for a width that nobody asked for: so many seconds, and so many runs of the
program. That is a minute for a program of 3 s, and four for one of 30 s."""

_LEAST_SHARE, _LEAST_SECONDS = 0.25, 30.0
"""What it may take even if that is over: a share of the time until then, and no more than these seconds. Three full
runs of a short program, one of which was disturbed, make an interval that nobody can decide by."""


@dataclass(frozen=True)
class SelfCheck:
    """What was measured: repeats of all phases in every way of restoring, ET_ref, and how a wanted width was met."""

    measured: list[MeasuredPhase]
    reference: Reference
    narrowed: Narrowed | None


def judged_by(measured: Sequence[MeasuredPhase]) -> dict[int, MeasuredPhase]:
    """Of each phase that has times those of direct restoring, or by CRIU where there are no others; by phase."""
    found: dict[int, MeasuredPhase] = {}
    for one in measured:
        if one.times and (one.restorer == DIRECT or one.phase not in found):
            found[one.phase] = one
    return found


def between_name(number: int) -> str:
    """Name of the output of a plain run; of the last ones that of one."""
    return f"between-{min(number, BETWEEN_KEPT)}"


def unasked_budget(so_far: float, run_seconds: float) -> float:
    """Seconds for a width that nobody asked for: as long as the build took so far, within a user's patience.

    `run_seconds`: of a full run, which is what the patience goes by.
    """
    patience = _PATIENCE_SECONDS + _PATIENCE_RUNS * run_seconds - so_far
    return min(so_far, max(patience, min(_LEAST_SHARE * so_far, _LEAST_SECONDS)))


@dataclass(frozen=True)
class Known:
    """What earlier stages say of the phases."""

    profile: Profile
    timed: TimedProfile
    selection: Selection

    def full_runs(self, reference: Reference) -> ReferenceRun:
        """ET_ref with its error. Of time, as of nothing, there is no direct estimate."""
        amount = 0.0 if self.profile.thin else float(work(self.profile, self.timed).sum())
        outside = outside_share(self.timed, reference)
        return ReferenceRun(
            reference.runs, amount, voted=reference.level, outside=outside, all_runs=reference.all_runs
        )  # fmt: skip

    def timings(self, measured: Sequence[MeasuredPhase], clock: str) -> list[PhaseTiming]:
        """Each phase as if this node were the candidate as well, restored directly where that works."""
        amounts, run = work(self.profile, self.timed), self.timed.levels(clock)
        by_phase = judged_by(measured)
        found = []
        for phase in self.selection.phases:
            if phase.id not in by_phase:
                continue
            repeats = tuple(t.cpu if clock == "cpu" else t.wall for t in by_phase[phase.id].times)
            at = phase.representative
            found.append(
                PhaseTiming(
                    phase.id,
                    phase.weight,
                    phase.time_share,
                    float(amounts[at]),
                    repeats,
                    repeats,
                    max(float(run[at]), 1e-9),
                    phase.seconds_spread,
                    stratum=phase.stratum,
                )
            )
        return found


def self_check(
    phases: Sequence[PhaseToMeasure],
    restorers: Restorers,
    runs: SpreadRuns,
    early: Reference,
    known: Known,
    *,
    repeats: int,
    target_error: float | None,
    budget: Callable[[float], float],
    scratch: Path,
    cpu: int | None,
    progress: Callable[[float], None],
    yardsticks: Yardsticks | None = None,
) -> SelfCheck:
    """Time every phase `repeats` times, in rounds, with `runs` in between; more often where `target_error` asks for it.

    `budget`: seconds that may then be spent on more rounds and more full runs, from the seconds of such a run; asked
    for when the first are over. The width judged is that of a prediction for this node. Raises what measuring and the
    program's runs raise.
    """

    def first() -> list[MeasuredPhase]:
        return measure_phases(
            phases, restorers, repeats=repeats, scratch=scratch, cpu=cpu, progress=progress,
            after_round=runs.after_round, yardsticks=yardsticks,
        )  # fmt: skip

    def again(count: int) -> list[MeasuredPhase]:
        return measure_phases(
            judged, restorers, repeats=count, scratch=scratch, cpu=cpu, progress=lambda _: None, yardsticks=yardsticks
        )

    def predicted(measured: list[MeasuredPhase]) -> Prediction:
        reference = runs.reference(early)
        return predict(known.full_runs(reference), known.timings(measured, reference.clock))

    def more_runs(count: int) -> None:
        for _ in range(count):
            runs.more()

    begun = time.monotonic()
    measured, narrowed = first(), None
    ways = {phase: one.restorer for phase, one in judged_by(measured).items()}
    judged = [one for one in phases if ways.get(one.job.phase) == one.restorer]
    # Where phases cannot be restored there is nothing to narrow: packing says which and why.
    if target_error is not None and judged and runs.voting:
        run_seconds = statistics.median(one.wall for one in runs.voting)
        took = time.monotonic() - begun - sum(one.wall for one in runs.done)
        more = Means((FULL_RUNS,), len(runs.voting), MOST_RUNS, run_seconds, more_runs) if runs.on_demand else None
        with contextlib.suppress(NoPrediction):
            measured, narrowed = spend(
                measured, target_error, budget(run_seconds), repeats=repeats, predicted=predicted, again=again,
                round_seconds=took / repeats * len(judged) / len(phases), clock=time.monotonic, causes=ON_BOTH_SIDES,
                full_runs=more,
            )  # fmt: skip
    return SelfCheck(measured, runs.reference(early), narrowed)


def runs(plan: FullRuns) -> int:
    """Plain runs between the rounds."""
    return plan.between


def run(build: Build, report: Report) -> None:
    """Time the phases as they will be timed elsewhere, in both ways of restoring. Raises as `self_check` does."""
    folder, options, begun = build.folder.path, build.options, time.monotonic()
    unasked = options.budget is None and options.best_effort

    def budget(run_seconds: float) -> float:
        so_far = build.folder.seconds + time.monotonic() - begun
        if unasked:
            return unasked_budget(so_far, run_seconds)
        return so_far if options.budget is None else options.budget

    def between(number: int) -> IntervalRun:
        name = between_name(number)
        made = interval_run(build.profile, build.timed, folder, name, build.cpu)
        note_run(folder, name, build.profile.written)
        return made

    plan, stamped = build.plan, build.timed.stamped_share
    wanted = between_runs(plan, options.runs, stamped)
    if plan.few and not trusted(stamped):
        build.notes.append(
            f"ET_ref comes from {wanted} plain runs alone: stamps may have cost {stamped:.0%} of the timing run, which "
            "does not tell how long the program takes"
        )
    votes = trusted(stamped) and (plan.few or not wanted)
    runs = SpreadRuns(
        between,
        runs=wanted,
        rounds=options.repeats,
        timing=build.timed.unstamped() if votes else None,
        on_demand=not (unasked and (plan.few or options.runs is not None)),
    )
    with Yardsticks(build.cpu) as yardsticks:
        done = self_check(
            _phases(build),
            Restorers(restorer(), build.criu),
            runs,
            build.reference,
            Known(build.profile, build.timed, build.selection),
            repeats=options.repeats,
            target_error=options.target_error,
            budget=budget,
            scratch=folder,
            cpu=build.cpu,
            progress=report,
            yardsticks=yardsticks,
        )
    build.between = len(runs.done)
    build.measured, build.reference, build.narrowed = done.measured, done.reference, done.narrowed
    if build.narrowed is not None:
        build.narrowed = replace(build.narrowed, asked=not options.best_effort)
    build.timed = build.timed.with_runs(runs.done)
    if not options.points and options.selection.method != RANDOM:
        build.selection = retimed(
            build.selection, work(build.profile, build.timed), interval_times(build.timed, build.reference)
        )


def _phases(build: Build) -> list[PhaseToMeasure]:
    phases = []
    for phase, reduced, flat in zip(build.captured, build.reduced, build.flat, strict=True):
        job = restore_job(build.program, build.timed, build.folder.path, phase, reduced.folder)
        if build.criu is not None:
            phases.append(PhaseToMeasure(job))
        if not flat.refused:
            phases.append(PhaseToMeasure(job, DIRECT, there=partial(pages_in_place, job.images)))
    return phases


def doubts(build: Build) -> list[str]:
    """Doubts about what runs printed where few were made, and where ET_ref is no plain run's; and where a wanted width
    was not reached: the user is told in any case."""
    found = _doubts_of_few(build)
    if build.narrowed is None:
        return found
    said = build.narrowed.sentence()
    build.display.note(said)
    if not build.narrowed.limit:
        return found
    if build.options.best_effort:
        build.notes.append(said)
        return found
    return [*found, said]


def _doubts_of_few(build: Build) -> list[str]:
    plain = [*early_run_names(build.reference), *map(between_name, range(min(build.between, BETWEEN_KEPT)))]
    found = []
    if len(early_run_names(build.reference)) < EARLY_RUNS:
        compared = compare_few(build.folder.path, plain, {"trace": "the traced run", validate.NAME: "the timing run"})
        build.notes += compared.notes
        found += compared.warnings
    if not build.between:
        found.append(
            "ET_ref is the time of the timing run less what its stamps should cost: no plain run was made between the "
            "rounds; --runs 1 makes one"
        )
    return found
