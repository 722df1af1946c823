# SPDX-License-Identifier: Apache-2.0
"""Inputs of a prediction: full reference runs, and the repeats of each phase's region.

Repeats disturbed by other load are left out here, where wall and CPU time tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from checkpoint.errors import ProbeError
from probe.formats.arrays import FloatArray
from probe.node.quietness import DISTURBED
from probe.prediction.location import MEDIAN, Location, relative_variance

_FEWEST_RUNS = 4


@dataclass(frozen=True)
class PredictionOptions:
    """All numbers of the prediction.

    confidence: probability that the interval holds the time of one full run.
    min_coverage: smallest time share of measured phases a prediction is made from.
    disagreement: relative difference between two estimators from which on a warning is given.
    wide: relative half width of the interval from which on a warning is given.
    disturbed: a repeat whose wall / CPU time exceeds the reference's by this share was disturbed.
    min_runs: fewer reference runs give a warning: one has no spread.
    min_repeats: repeats that must remain for disturbed ones to be left out; fewer repeats give a warning.
    unrepeated_spread: relative standard deviation assumed where nothing was repeated.
    session_spread: relative standard deviation of the median times of a session (a probe run, a self-check) between
        sessions, beyond what the repeats in it explain. Measured: docs/estimators.md, "Between sessions".
    session_freedom: degrees of freedom that it was measured with.
    outside_spread: relative standard deviation of the ratio of other processes' time (children, wrapper),
        assumed beside the differences between phases.
    outside_change: the same, as a part of the logarithm of the ratio of the program's own time.
    mix_freedom: fewest degrees of freedom given to the differences between phases.
    direct_spread: relative standard deviation assumed of the direct estimate, beyond the selection's error for
        intervals held out: restored regions against those in the run, and region lengths. docs/estimators.md, "The
        combined estimate".
    direct_freedom: degrees of freedom assumed of it.
    """

    confidence: float = 0.95
    min_coverage: float = 0.9
    disagreement: float = 0.1
    wide: float = 0.1
    disturbed: float = DISTURBED
    min_repeats: int = 3
    min_runs: int = 2
    unrepeated_spread: float = 0.05
    session_spread: float = 0.004
    session_freedom: float = 10.0
    outside_spread: float = 0.1
    outside_change: float = 0.5
    mix_freedom: float = 2.0
    direct_spread: float = 0.015
    direct_freedom: float = 10.0


@dataclass(frozen=True)
class Scatter:
    """Of full runs, one against the other: relative variance of one, and its degrees of freedom."""

    variance: float
    freedom: float


def scatter_of(runs: Sequence[float]) -> Scatter | None:
    """None for fewer than four runs: of three, one that was disturbed would be a third of all there is to know."""
    if len(runs) < _FEWEST_RUNS:
        return None
    return Scatter(relative_variance(np.asarray(runs, dtype=np.float64)), len(runs) - 1.0)


@dataclass(frozen=True)
class ReferenceRun:
    """Plain native runs of the whole program on the reference node.

    runs: seconds of each run, under the environment the phases were captured in.
    total_work: amount of work of the run, in `work_unit` (as in PhaseTiming.work).
    noise: instrumented / plain reference time (thesis, equation 4.3).
    voted: level of the run, interval by interval from several runs, and its relative standard error and
        the noise of one run.
    selection_error: relative error of a direct estimate for intervals held out; None where the direct estimate is not
        to be trusted, and then it has no part in the prediction.
    outside: share of these seconds in other processes than the one with the phases.
    all_runs: seconds of these runs and of others before them, all that tell how much equal runs differ.
    """

    runs: Sequence[float]
    total_work: float
    noise: float = 1.0
    work_unit: str = "counted instructions"
    voted: tuple[float, float, float] | None = None
    selection_error: float | None = None
    outside: float = 0.0
    all_runs: Sequence[float] = ()

    @property
    def scatter(self) -> Scatter | None:
        """How much full runs minutes apart differ; None where too few were made to tell."""
        return scatter_of(self.all_runs or self.runs)

    @property
    def et_ref_seconds(self) -> float:
        if self.voted is not None:
            return self.voted[0]
        return float(np.median(np.asarray(self.runs, dtype=np.float64)))


@dataclass(frozen=True)
class PhaseTiming:
    """One phase, with the times of its region. Sequences hold one value per repeat, in seconds.

    weight: share of the run's work in the phase (W_c).
    time_share: share of the interval times in the phase (S_c).
    work: amount of work in the region itself, in the unit of ReferenceRun.total_work (n_c).
    t_ref, t_cand: region time restored on the reference and on the candidate node.
    t_run: the region's time inside the timing run.
    spread: standard deviation of log seconds per work inside the stratum.
    cpu_ref, cpu_cand: CPU seconds of the same repeats, or empty if they were not taken.
    clock: which of the two predicts. A program that never sleeps takes as much wall time as CPU time on an idle
        node, and its CPU time is what other load disturbs least.
    stratum: phases with the same number are parts of one stratum; below 0, the phase is all of it.
    """

    id: int
    weight: float
    time_share: float
    work: float
    t_ref: Sequence[float]
    t_cand: Sequence[float]
    t_run: float
    spread: float = 0.0
    status: Literal["ok", "failed"] = "ok"
    cpu_ref: Sequence[float] = ()
    cpu_cand: Sequence[float] = ()
    clock: Literal["wall", "cpu"] = "wall"
    stratum: int = -1


@dataclass(frozen=True)
class Repeats:
    """Location of one region's repeats, the relative variance of one repeat, and its degrees of freedom.

    error: relative variance of the location. values: the repeats that were kept, seconds, in order.
    """

    seconds: float
    error: float
    variance: float
    freedom: float
    values: FloatArray
    left_out: int

    @property
    def count(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Measured:
    phase: PhaseTiming
    ref: Repeats
    cand: Repeats

    @property
    def ratio(self) -> float:
        return self.cand.seconds / self.ref.seconds


def check_reference(reference: ReferenceRun) -> None:
    runs = np.asarray(reference.runs, dtype=np.float64)
    if runs.size == 0 or not (np.isfinite(runs).all() and (runs > 0).all()):
        raise ProbeError("the reference needs at least one full run, each finite and above zero: build again")
    if not 0.0 <= reference.outside < 1.0:
        raise ProbeError(f"outside of the reference run is {reference.outside}: the probe is damaged, build it again")
    for name, value in (("total_work", reference.total_work), ("noise", reference.noise)):
        lowest_allowed = value >= 0 if name == "total_work" else value > 0
        if not (math.isfinite(value) and lowest_allowed):
            raise ProbeError(f"{name} of the reference run is {value}: the probe is damaged, build it again")


def check_phase(phase: PhaseTiming) -> None:
    for name in ("t_ref", "t_cand", "cpu_ref", "cpu_cand"):
        values = np.asarray(getattr(phase, name), dtype=np.float64)
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise ProbeError(f"{name} of phase {phase.id} holds a time that is not finite and above zero")
    for wall, cpu in (("t_ref", "cpu_ref"), ("t_cand", "cpu_cand")):
        if len(getattr(phase, cpu)) not in (0, len(getattr(phase, wall))):
            raise ProbeError(f"phase {phase.id} has {wall} and {cpu} of different lengths")
    if not (math.isfinite(phase.t_run) and phase.t_run > 0):
        raise ProbeError(f"t_run of phase {phase.id} is {phase.t_run}: it must be finite and above zero")
    for name in ("weight", "time_share", "work", "spread"):
        value = getattr(phase, name)
        if not (math.isfinite(value) and value >= 0):
            raise ProbeError(f"{name} of phase {phase.id} is {value}: it must be finite and not negative")


def _undisturbed(
    wall: Sequence[float], cpu: Sequence[float], usual: float, clock: str, options: PredictionOptions
) -> tuple[FloatArray, int]:
    """Repeats whose wall / CPU is within the limit of `usual`, if enough are, and how many were left out."""
    if not len(cpu):
        return np.asarray(wall, dtype=np.float64), 0
    times = np.asarray(cpu if clock == "cpu" else wall, dtype=np.float64)
    keep = np.asarray(wall, dtype=np.float64) / np.asarray(cpu, dtype=np.float64) <= usual * (1.0 + options.disturbed)
    if int(keep.sum()) < options.min_repeats:
        return times, 0
    return times[keep], int((~keep).sum())


def usual_stretch(phase: PhaseTiming) -> float:
    """Wall / CPU time of the region on the reference node (median over repeats), 1 if CPU time is unknown."""
    if not len(phase.cpu_ref):
        return 1.0
    if phase.clock == "cpu":
        return 1.0
    return float(np.median(np.asarray(phase.t_ref) / np.asarray(phase.cpu_ref)))


def measure(
    phases: Sequence[PhaseTiming], options: PredictionOptions, here: Location = MEDIAN, there: Location = MEDIAN
) -> list[Measured]:
    """The phases with their repeats located: by `there` on the reference node, by `here` on the candidate."""
    kept = [
        (
            _undisturbed(p.t_ref, p.cpu_ref, usual_stretch(p), p.clock, options),
            _undisturbed(p.t_cand, p.cpu_cand, usual_stretch(p), p.clock, options),
        )
        for p in phases
    ]
    sides = [_repeats([one[side] for one in kept], location, options) for side, location in ((0, there), (1, here))]
    return [Measured(p, ref, cand) for p, ref, cand in zip(phases, sides[0], sides[1], strict=True)]


def _repeats(series: Sequence[tuple[FloatArray, int]], location: Location, options: PredictionOptions) -> list[Repeats]:
    """What the repeats of each phase say, on one node. A phase without repeats takes the others' spread."""
    known = [(relative_variance(values), len(values) - 1) for values, _ in series if len(values) > 1]
    if known:
        freedom = float(sum(n for _, n in known))
        pooled = math.fsum(v * n for v, n in known) / freedom
    else:
        pooled, freedom = options.unrepeated_spread**2, math.inf
    found = []
    for values, left_out in series:
        count = len(values)
        variance = relative_variance(values) if count > 1 else pooled
        own = float(count - 1) if count > 1 else freedom
        error = location.own_error(values, variance)
        found.append(Repeats(location.of(values), error, variance, own, values, left_out))
    return found
