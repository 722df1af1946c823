# SPDX-License-Identifier: Apache-2.0
"""Variance of the calibrated estimate, term by term. Derivation and limits: docs/estimators.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit  # type: ignore[import-untyped, unused-ignore]

from probe.timings import (
    FloatArray,
    Measured,
    PredictionOptions,
    ReferenceRun,
    median_factor,
    relative_variance,
)

CAUSES = (
    "repeats_candidate",
    "repeats_reference",
    "reference_runs",
    "within_strata",
    "uncovered",
    "minimum",
)


@dataclass(frozen=True)
class Term:
    """One independent part of the relative variance of the calibrated estimate."""

    cause: str
    variance: float
    freedom: float


def variance_terms(
    reference: ReferenceRun, measured: Sequence[Measured], coverage: float, options: PredictionOptions
) -> list[Term]:
    candidate_shares = np.array([m.phase.time_share * m.ratio for m in measured])
    candidate_shares /= candidate_shares.sum()
    terms = []
    for m, a in zip(measured, candidate_shares, strict=True):
        terms.append(Term("repeats_candidate", a**2 * m.cand.standard_error_squared, m.cand.freedom))
        terms.append(Term("repeats_reference", a**2 * m.ref.standard_error_squared, m.ref.freedom))

    runs = np.asarray(reference.runs, dtype=np.float64)
    many = len(runs) > 1
    run_variance = relative_variance(runs) if many else options.unrepeated_spread**2
    # The same spread twice: the error of ET_ref itself, and the noise of the one future run predicted.
    future = run_variance * (1.0 + median_factor(len(runs)) / len(runs))
    terms.append(Term("reference_runs", future, float(len(runs) - 1) if many else math.inf))

    within, uncovered, freedom = _mix_variances(measured, candidate_shares, coverage, options)
    terms.append(Term("within_strata", within, freedom))
    terms.append(Term("uncovered", uncovered, freedom))
    terms.append(Term("minimum", options.minimum_spread**2, math.inf))
    return terms


def _mix_variances(
    measured: Sequence[Measured], candidate_shares: FloatArray, coverage: float, options: PredictionOptions
) -> tuple[float, float, float]:
    """Relative variances from what one representative per stratum cannot show, and their degrees of freedom.

    First what differs inside the strata, then what was not covered (docs/estimators.md, "Inside the strata").
    """
    shares = np.array([m.phase.time_share for m in measured]) / coverage
    ratios = np.array([m.ratio for m in measured])
    spread = np.array([m.phase.spread for m in measured]) ** 2
    noise = np.array([m.ref.standard_error_squared + m.cand.standard_error_squared for m in measured])
    mean = float((shares * ratios).sum())
    missing = max(0.0, 1.0 - coverage)
    apart = 1.0 - float((shares**2).sum())
    if len(measured) < 2 or apart <= 0:
        # Nothing to compare with: assume that seconds per work moves at most in proportion to itself, and
        # that unmeasured code differs from the measured as much as this differs from the reference node.
        change = math.log(mean) ** 2
        inside = spread * min(1.0, change)
        return float((candidate_shares**2 * inside).sum()), missing**2 * change, math.inf

    between = between_variance(np.log(ratios), shares, noise)
    rates = np.array([math.log(m.phase.t_run / m.phase.work) if m.phase.work > 0 else math.nan for m in measured])
    known = np.isfinite(rates)
    rate_between = between_variance(rates[known], shares[known], np.zeros(int(known.sum()))) if known.sum() > 1 else 0.0
    relative = np.ones_like(spread)
    np.divide(spread, rate_between, out=relative, where=spread < rate_between)
    relative = np.where(spread > 0, relative, 0.0)
    inside = between * relative
    linear = between_variance(ratios / mean, shares, noise * (ratios / mean) ** 2)
    freedom = max(options.mix_freedom, 1.0 / float((shares**2).sum()) - 1.0)
    return float((candidate_shares**2 * inside).sum()), missing**2 * linear, freedom


def between_variance(values: FloatArray, shares: FloatArray, noise: FloatArray) -> float:
    """Variance of `values` under `shares`, corrected for their number, less `noise`, at least 0."""
    weights = shares / shares.sum()
    apart = 1.0 - float((weights**2).sum())
    if apart <= 0:
        return 0.0
    seen = float((weights * (values - (weights * values).sum()) ** 2).sum())
    explained = float((weights * (1.0 - weights) * noise).sum())
    return max(0.0, seen - explained) / apart


def half_width(terms: Sequence[Term], confidence: float) -> float:
    """How far the interval reaches above the prediction, relative to it."""
    return math.expm1(reach(terms, confidence))


def reach(terms: Sequence[Term], confidence: float) -> float:
    """Logarithm of the interval's upper end over the prediction: t x sqrt(V)."""
    total = math.fsum(term.variance for term in terms)
    return float(stdtrit(welch_satterthwaite(terms), 0.5 + confidence / 2.0)) * math.sqrt(total)


def welch_satterthwaite(terms: Sequence[Term]) -> float:
    total = math.fsum(term.variance for term in terms)
    below = math.fsum(term.variance**2 / term.freedom for term in terms)
    # stdtrit knows no infinity; the quantile no longer moves here.
    return min(total**2 / below, 1e6) if below > 0 else 1e6
