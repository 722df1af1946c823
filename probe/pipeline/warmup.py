# SPDX-License-Identifier: Apache-2.0
"""Choose how long phases run before their regions: tried on the phases with most time (`--warmup auto`).

A checkpoint fixes where its phase's warm-up starts, so a phase is captured once for each length that is tried.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from checkpoint.compiled import restorer
from checkpoint.criu.tool import Criu
from checkpoint.process.program import Program
from probe.contents.captured_files import restore_job
from probe.formats.checkpoints import CapturedPhase, WarmupChoice
from probe.formats.choices import DEFAULT_WARMUP
from probe.formats.manifest import WarmupTrial
from probe.formats.phase_record import CRIU, DIRECT
from probe.formats.profile import Profile
from probe.formats.reference import Clock
from probe.formats.selection import Phase, Selection
from probe.formats.timing import TimedProfile
from probe.node.measuring import PhaseToMeasure, Restorers, measure_phases
from probe.pipeline.capture import Lost, take_checkpoints
from probe.pipeline.flatten import flatten_phases
from probe.pipeline.reduce import reduced_at_once
from probe.pipeline.runs.boundaries import RegionPlan, plan_region
from probe.pipeline.runs.plan import FullRuns
from probe.pipeline.stage import Build
from probe.prediction.inputs import PredictionOptions
from probe.prediction.location import median_factor, relative_variance
from probe.progress import Report
from reducer.packed_image import pages_in_place

NAME = "warm-up"
OPTIONS = ("warmup",)
FILES = ("warmup.json", "warmup")

_RESULT = "warmup.json"

TRIED = (0, 1, 2, 4)
"""Intervals of warm-up that are tried; the last is what the others are compared with."""

SAMPLED = 3
"""Phases that are tried: each costs as many checkpoints on disk as there are lengths."""

TOLERANCE = 0.01
"""A region time that is nearer than this to the longest warm-up's has stopped moving, and so has one whose distance
cannot be told from noise. Where the noise (one standard error) is larger than this nothing can be told."""


@dataclass(frozen=True)
class TriedPhase:
    """One phase's region, restored behind every length of warm-up.

    share: of the run's time. t_run: seconds of the region in the timing run. times: seconds of the repeats by intervals
    of warm-up.
    """

    share: float
    t_run: float
    times: Mapping[int, Sequence[float]]


def try_warmups(
    program: Program,
    profile: Profile,
    timed: TimedProfile,
    selection: Selection,
    clock: Clock,
    *,
    criu: Criu | None,
    folder: Path,
    repeats: int,
    cpu: int | None,
    progress: Callable[[float], None],
    on_captured: Callable[[CapturedPhase], CapturedPhase] = lambda phase: phase,
) -> WarmupChoice:
    """Capture the SAMPLED phases with most time once per length in TRIED, time them, and choose.

    Runs the program once more. All repeats are made in rounds, so that every length meets the same node. `folder` is
    made, and removed; `on_captured` as for `capture`. A phase that no probe can hold there is left out. Raises what
    capturing raises.
    """
    sampled = sampled_phases(timed, selection)
    if not sampled:
        return WarmupChoice(
            DEFAULT_WARMUP,
            (),
            doubt=f"no phase begins {TRIED[-1]} intervals after the start: {DEFAULT_WARMUP} is taken",
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        plans, of = _plans(profile, timed, sampled)
        captured = take_checkpoints(
            profile, timed, plans, criu=criu, folder=folder, cpu=cpu, on_captured=on_captured, lost=Lost(),
            progress=lambda share: progress(share / 4),
        )  # fmt: skip
        jobs = [
            phase
            for phase in _to_measure(program, timed, folder, captured, cpu, lambda share: progress((1 + share) / 4))
            if criu is not None or phase.restorer == DIRECT
        ]
        measured = measure_phases(
            jobs, Restorers(restorer(), criu), repeats=repeats, scratch=folder, cpu=cpu,
            progress=lambda share: progress((1 + share) / 2),
        )  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    times = {of[m.phase]: tuple(t.cpu if clock == "cpu" else t.wall for t in m.times) for m in measured}
    run = timed.cpu if clock == "cpu" else timed.seconds
    tried = {
        p.id: TriedPhase(p.time_share, float(run[p.representative]), {w: times[p.id, w] for w in TRIED})
        for p in sampled
        if all(times.get((p.id, w)) for w in TRIED)
    }
    return choose_warmup(tried)


def sampled_phases(timed: TimedProfile, selection: Selection) -> list[Phase]:
    """The phases with most time of those that begin late enough, and far enough from children, for the longest
    warm-up."""
    late = [p for p in selection.phases if timed.room_before(p.representative) >= TRIED[-1]]
    return sorted(late, key=lambda p: (-p.time_share, p.id))[:SAMPLED]


def _plans(
    profile: Profile, timed: TimedProfile, sampled: Sequence[Phase]
) -> tuple[list[RegionPlan], dict[int, tuple[int, int]]]:
    """A plan for every phase and length under a number of its own, and which (phase, length) each number is."""
    of = dict(enumerate((p.id, w) for p in sampled for w in TRIED))
    at = {p.id: p.representative for p in sampled}
    return [plan_region(profile, timed, number, at[phase], warmup) for number, (phase, warmup) in of.items()], of


def _to_measure(
    program: Program,
    timed: TimedProfile,
    folder: Path,
    captured: Sequence[CapturedPhase],
    cpu: int | None,
    progress: Callable[[float], None],
) -> list[PhaseToMeasure]:
    """As `probe run` would restore them: directly where that works."""
    jobs = [restore_job(program, timed, folder, phase, phase.folder) for phase in captured]
    huge = [phase.huge for phase in captured]
    flat = flatten_phases(list(zip(jobs, huge, strict=True)), folder=folder, cpu=cpu, progress=progress)
    return [
        PhaseToMeasure(job, CRIU if f.refused else DIRECT, there=partial(pages_in_place, job.images))
        for job, f in zip(jobs, flat, strict=True)
    ]


def choose_warmup(tried: Mapping[int, TriedPhase]) -> WarmupChoice:
    """The shortest warm-up from which on the region times no longer move, by phase id.

    Judged by the mean of the phases' ratios, weighted by their shares: caches that are too cold only ever add time, so
    that phases do not cancel.
    """
    if not tried:
        doubt = f"no phase could be restored behind every warm-up: {DEFAULT_WARMUP} is taken"
        return WarmupChoice(DEFAULT_WARMUP, (), doubt=doubt)
    trials = tuple(_trial(warmup, tuple(tried.values())) for warmup in TRIED)
    phases = tuple(sorted(tried))
    noise = max(trial.error for trial in trials)
    if noise > TOLERANCE:
        doubt = (
            f"repeats differ too much to tell how long it has to be (standard error {noise:.1%}): "
            f"the longest tried, {TRIED[-1]}, is taken"
        )
        return WarmupChoice(TRIED[-1], trials, phases, doubt)
    chosen = TRIED[-1]
    for trial in reversed(trials):
        if abs(trial.relative - 1.0) > max(TOLERANCE, 2.0 * trial.error):
            break
        chosen = trial.warmup
    return WarmupChoice(chosen, trials, phases)


def _trial(warmup: int, tried: Sequence[TriedPhase]) -> WarmupTrial:
    shares = np.array([phase.share for phase in tried])
    shares /= shares.sum()
    here = np.array([np.median(phase.times[warmup]) for phase in tried])
    longest = np.array([np.median(phase.times[TRIED[-1]]) for phase in tried])
    ratios = here / longest
    noise = np.array([_error_squared(p.times[warmup]) + _error_squared(p.times[TRIED[-1]]) for p in tried])
    return WarmupTrial(
        warmup=warmup,
        relative=float((shares * ratios).sum()),
        error=0.0 if warmup == TRIED[-1] else math.sqrt(float((shares**2 * ratios**2 * noise).sum())),
        against_run=float((shares * here / np.array([phase.t_run for phase in tried])).sum()),
    )


def _error_squared(times: Sequence[float]) -> float:
    """Squared relative standard error of the median; without repeats as much as a prediction assumes then."""
    if len(times) < 2:
        return PredictionOptions().unrepeated_spread ** 2
    return relative_variance(np.asarray(times, dtype=np.float64)) * median_factor(len(times)) / len(times)


def runs(_plan: FullRuns) -> int:
    """A capture run of its own."""
    return 1


def run(build: Build, report: Report) -> None:
    """Try the warm-ups. Raises what capturing raises."""
    folder = build.folder.file("warmup")
    build.warmup = try_warmups(
        build.program,
        build.profile,
        build.timed,
        build.selection,
        build.reference.clock,
        criu=build.criu,
        folder=folder,
        repeats=build.options.repeats,
        cpu=build.cpu,
        progress=report,
        on_captured=lambda phase: reduced_at_once(build, phase, folder),
    )


def save(build: Build) -> None:
    build.folder.write_json(_RESULT, build.warmup.to_json())


def load(build: Build) -> None:
    build.warmup = build.folder.read(_RESULT, WarmupChoice.from_json)


def doubts(build: Build) -> list[str]:
    return [f"--warmup auto: {build.warmup.doubt}"] if build.warmup.doubt else []
