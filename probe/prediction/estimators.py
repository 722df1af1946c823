# SPDX-License-Identifier: Apache-2.0
"""Prediction of a whole run from the phases' times on reference and candidate, with a confidence interval.

The three estimators and the interval are derived in docs/estimators.md, with the names used here (S_c, W_c).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from checkpoint.errors import NoPrediction, ProbeError
from probe.prediction.combination import Combined, combine
from probe.prediction.inputs import (
    Measured,
    PhaseTiming,
    PredictionOptions,
    ReferenceRun,
    check_phase,
    check_reference,
    measure,
    usual_stretch,
)
from probe.prediction.location import LEVEL, MEAN, MEDIAN, Location
from probe.prediction.variance import CAUSES, Term, reach, variance_terms, welch_satterthwaite

__all__ = ["PhaseTiming", "Prediction", "PredictionOptions", "ReferenceRun", "predict"]


@dataclass(frozen=True)
class Undisturbed:
    """Seconds of one full run on the candidate node with nothing else on it, with the 95 % interval low..high."""

    seconds: float
    low: float
    high: float


@dataclass(frozen=True)
class Prediction:
    """Seconds of one full run on the candidate node as it was met, with its confidence interval low..high.

    coverage: time share of the phases measured.
    estimators: seconds by each of calibrated, direct and strube (NaN where one cannot be formed), and combined, which
        is the answer.
    variances: relative variance by cause: repeats_candidate, repeats_reference, reference_runs,
        within_strata, uncovered, outside, minimum, load, direct. Their sum is the squared relative standard error.
    undisturbed: the same for the node with nothing else on it; None where the reference's runs were not stamped.
    degrees_of_freedom: of that sum (Welch-Satterthwaite).
    disturbed: number of repeats left out, by phase id.
    terms: the parts of the variance, phase by phase where they are, with their degrees of freedom.
    """

    seconds: float
    low: float
    high: float
    coverage: float
    estimators: dict[str, float]
    variances: dict[str, float]
    degrees_of_freedom: float
    disturbed: dict[int, int]
    warnings: tuple[str, ...]
    terms: tuple[Term, ...] = field(default=(), repr=False)
    undisturbed: Undisturbed | None = None

    @property
    def half_width(self) -> float:
        """How far the interval reaches above the prediction, relative to it."""
        return self.high / self.seconds - 1.0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, by the keys `probe run --json` uses; an estimator that is NaN becomes None."""
        return {
            "prediction": {
                "seconds": self.seconds,
                "low": self.low,
                "high": self.high,
                "coverage": self.coverage,
            },
            "undisturbed": asdict(self.undisturbed) if self.undisturbed is not None else {},
            "estimators": {k: v if math.isfinite(v) else None for k, v in self.estimators.items()},
            "variances": dict(self.variances),
            "degrees_of_freedom": self.degrees_of_freedom,
            "disturbed": {str(phase): count for phase, count in self.disturbed.items()},
            "warnings": list(self.warnings),
        }


def predict(
    reference: ReferenceRun,
    phases: Sequence[PhaseTiming],
    *,
    min_coverage: float | None = None,
    options: PredictionOptions | None = None,
) -> Prediction:
    """Predict the seconds of one full run on the candidate node, by the combined estimator.

    Failed phases, and those without a time on either node, are extrapolated over. `min_coverage` overrides
    the option of that name. Raises NoPrediction below it, ProbeError for times not finite and positive.
    """
    options = options or PredictionOptions()
    need = options.min_coverage if min_coverage is None else min_coverage
    check_reference(reference)
    usable = [p for p in phases if p.status == "ok" and len(p.t_ref) and len(p.t_cand)]
    for phase in usable:
        check_phase(phase)
    coverage = math.fsum(p.time_share for p in usable)
    if coverage > 1.0 + 1e-6:
        raise ProbeError(f"the time shares of the phases add up to {coverage:.6f}: the probe is damaged")
    if not usable or coverage <= 0 or coverage < need:
        failed = sorted({p.id for p in phases} - {p.id for p in usable})
        raise NoPrediction(
            f"only {coverage:.1%} of the run's time was measured, {need:.1%} are needed"
            + (f": phases {failed} failed or have no time" if failed else "")
            + "; see the status of each phase, repair its cause and run the probe again"
        )
    # Without stamped runs the reference is known by its median alone, and like is compared with like.
    here, there = (MEDIAN, MEDIAN) if reference.voted is None else (MEAN, LEVEL)
    met = _located(reference, usable, coverage, options, here, there)
    alone = None if reference.voted is None else _located(reference, usable, coverage, options, LEVEL, LEVEL)
    estimators = {**met.estimators, "combined": met.combined.seconds}
    terms = met.combined.terms
    far = reach(terms, options.confidence)
    left_out = {m.phase.id: m.ref.left_out + m.cand.left_out for m in met.measured}
    return Prediction(
        seconds=met.combined.seconds,
        low=met.combined.seconds * math.exp(-far),
        high=met.combined.seconds * math.exp(far),
        coverage=coverage,
        estimators=estimators,
        variances={c: math.fsum(t.variance for t in terms if t.cause == c) for c in CAUSES},
        degrees_of_freedom=welch_satterthwaite(terms),
        disturbed={phase: count for phase, count in left_out.items() if count},
        warnings=tuple(_warnings(reference, phases, met.measured, estimators, far, options)),
        terms=terms,
        undisturbed=_undisturbed(alone, options) if alone is not None else None,
    )


@dataclass(frozen=True)
class _Located:
    """The estimates from repeats that are located in one way."""

    measured: Sequence[Measured]
    estimators: dict[str, float]
    combined: Combined


def _located(
    reference: ReferenceRun,
    phases: Sequence[PhaseTiming],
    coverage: float,
    options: PredictionOptions,
    here: Location,
    there: Location,
) -> _Located:
    measured = measure(phases, options, here, there)
    found = _estimators(reference, measured, coverage)
    terms = variance_terms(reference, measured, coverage, options, here, there)
    own = None
    if reference.selection_error is not None:
        own = math.hypot(reference.selection_error, options.direct_spread)
    combined = combine(found["calibrated"], found["direct"], terms, own, options.direct_freedom, reference.outside)
    return _Located(measured, found, combined)


def _undisturbed(alone: _Located, options: PredictionOptions) -> Undisturbed:
    far, seconds = reach(alone.combined.terms, options.confidence), alone.combined.seconds
    return Undisturbed(seconds, seconds * math.exp(-far), seconds * math.exp(far))


def _estimators(reference: ReferenceRun, measured: Sequence[Measured], coverage: float) -> dict[str, float]:
    """The three estimators, extrapolated over what was not measured."""
    et_ref = reference.et_ref_seconds
    calibrated = et_ref * math.fsum(m.phase.time_share * m.ratio for m in measured) / coverage

    worked = [m for m in measured if m.phase.work > 0]
    weight = math.fsum(m.phase.weight for m in worked)
    direct = strube = math.nan
    if weight > 0 and reference.total_work > 0:
        seconds = math.fsum(m.phase.weight * m.cand.seconds / m.phase.work for m in worked)
        # Phases without counted work have no time per work: they enter by their time share.
        rest = math.fsum(m.phase.time_share * m.ratio for m in measured if m.phase.work <= 0)
        own = 1.0 - reference.outside
        direct = seconds * reference.total_work / weight + et_ref * own * rest + reference.outside * calibrated
    all_weight = math.fsum(m.phase.weight for m in measured)
    if all_weight > 0:
        strube = et_ref * math.fsum(m.phase.weight * m.ratio for m in measured) / reference.noise / all_weight
    return {"calibrated": calibrated, "direct": direct, "strube": strube}


def _warnings(
    reference: ReferenceRun,
    phases: Sequence[PhaseTiming],
    measured: Sequence[Measured],
    estimators: dict[str, float],
    far: float,
    options: PredictionOptions,
) -> list[str]:
    found = []
    lost = sorted({p.id for p in phases} - {m.phase.id for m in measured})
    if lost:
        found.append(f"phases {lost} were not measured; their time is extrapolated from the others")
    calibrated, direct = estimators["calibrated"], estimators["direct"]
    # The thesis formula takes weight for time share and is apart wherever phases differ in speed: no news.
    if math.isfinite(direct) and abs(math.log(direct / calibrated)) > math.log1p(options.disagreement):
        found.append(
            f"the estimators disagree: calibrated {calibrated:.4g} s, direct {direct:.4g} s; see the "
            "selection and restore errors of the probe"
        )
    wide = math.expm1(far)
    if wide > options.wide:
        found.append(f"the interval reaches {wide:.0%} above the prediction: more repeats or phases narrow it")
    if len(reference.runs) < options.min_runs:
        found.append(f"ET_ref rests on {len(reference.runs)} full run(s), {options.min_runs} or more are advised")
    few = sorted(m.phase.id for m in measured if min(m.ref.count, m.cand.count) < options.min_repeats)
    if few:
        found.append(f"phases {few} have fewer than {options.min_repeats} repeats: their spread is a guess")
    found += _disturbance_warnings(measured, options)
    return found


def _disturbance_warnings(measured: Sequence[Measured], options: PredictionOptions) -> list[str]:
    found = []
    left_out = sum(m.ref.left_out + m.cand.left_out for m in measured)
    if left_out:
        found.append(f"{left_out} repeats were disturbed by other load (wall against CPU time) and left out")
    kept = []
    for m in measured:
        usual = usual_stretch(m.phase) * (1.0 + options.disturbed)
        sides = ((m.phase.t_ref, m.phase.cpu_ref, m.ref), (m.phase.t_cand, m.phase.cpu_cand, m.cand))
        for wall, cpu, repeats in sides:
            if len(cpu) and not repeats.left_out and (np.asarray(wall) / np.asarray(cpu) > usual).any():
                kept.append(m.phase.id)
    if kept:
        found.append(
            f"phases {sorted(set(kept))} had disturbed repeats that were kept, since too few others "
            "remained: repeat on an idle node"
        )
    return found
