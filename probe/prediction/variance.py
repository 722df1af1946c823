# SPDX-License-Identifier: Apache-2.0
"""Variance of the calibrated estimate, term by term. Derivation and limits: docs/estimators.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from probe.formats.arrays import FloatArray
from probe.prediction.inputs import Measured, PredictionOptions, ReferenceRun
from probe.prediction.location import (
    MEAN,
    MEDIAN,
    Location,
    common_error,
    median_factor,
    relative_variance,
    spread_of_rounds,
)

CAUSES = (
    "repeats_candidate",
    "repeats_reference",
    "reference_runs",
    "within_strata",
    "uncovered",
    "outside",
    "minimum",
    "load",
    "direct",
)

_FARTHEST = 50.0
"""Logarithm: an interval that reaches farther says nothing, and its ends are no numbers."""

_BY_CHANCE = 0.1
"""Probability of taking a candidate for quieter than it is."""

SHARED, CALIBRATED_ALONE, DIRECT = "shared", "calibrated", "direct"
"""Which estimate a term is of: of both, of one alone."""


@dataclass(frozen=True)
class Term:
    """One part of the relative variance of an estimate. `of`: SHARED, CALIBRATED_ALONE or DIRECT.

    joint: terms of this cause come from the same numbers, and are one when degrees of freedom are counted; `freedom` is
    that of all of them. Other terms are independent.
    """

    cause: str
    variance: float
    freedom: float
    of: str = SHARED
    joint: bool = False

    def repeated(self, factor: float) -> Term:
        """The same if what it comes from were made `factor` times as often, spread as before."""
        return replace(self, variance=self.variance / factor, freedom=(self.freedom + 1.0) * factor - 1.0)


def variance_terms(
    reference: ReferenceRun,
    measured: Sequence[Measured],
    coverage: float,
    options: PredictionOptions,
    here: Location = MEDIAN,
    there: Location = MEDIAN,
) -> list[Term]:
    """Of the calibrated estimate. `here`, `there`: what the phases' repeats were located by (inputs.measure)."""
    candidate_shares = np.array([m.phase.time_share * m.ratio for m in measured])
    candidate_shares /= candidate_shares.sum()
    terms = []
    for m, a in zip(measured, candidate_shares, strict=True):
        terms.append(Term("repeats_candidate", a**2 * m.cand.error, m.cand.freedom))
        terms.append(Term("repeats_reference", a**2 * m.ref.error, m.ref.freedom, of=CALIBRATED_ALONE))
    if here is not MEDIAN:
        terms.append(Term("load", *common_error([m.cand.values for m in measured], candidate_shares, here)))
    if there is not MEDIAN:
        common = common_error([m.ref.values for m in measured], candidate_shares, there)
        terms.append(Term("repeats_reference", *common, of=CALIBRATED_ALONE))
    terms += _run_terms(reference, options, _likeness(measured, candidate_shares) if here is MEAN else 0.0)
    terms += _mix_terms(measured, candidate_shares, coverage, reference.outside, options)
    # Once for the session on either node; repeats cannot lessen what they share.
    session = options.session_spread**2
    return [*terms, *_of_one_estimate("minimum", session, session, options.session_freedom)]


def _of_one_estimate(cause: str, shared: float, alone: float, freedom: float) -> list[Term]:
    """Two terms whose sum has `freedom`: they come from the same numbers, and are not two estimates."""
    parts = ((shared, SHARED), (alone, CALIBRATED_ALONE))
    return [Term(cause, part, freedom, of=of, joint=True) for part, of in parts]


def _run_terms(reference: ReferenceRun, options: PredictionOptions, likeness: float) -> list[Term]:
    """The error of ET_ref itself, and the noise of the one future run predicted, taken from the same runs.

    `likeness`: how much of what makes full runs differ the future run meets, as a share of their variance.
    """
    runs = np.asarray(reference.runs, dtype=np.float64)
    count = len(runs)
    freedom = float(count - 1) if count > 1 else math.inf
    if reference.voted is not None:
        error, one = reference.voted[1] ** 2, reference.voted[2] ** 2
    else:
        one = relative_variance(runs) if count > 1 else options.unrepeated_spread**2
        error = one * median_factor(count) / count
    scatter = reference.scatter
    if scatter is not None and likeness * scatter.variance > one:
        one, freedom = likeness * scatter.variance, scatter.freedom
    return _of_one_estimate("reference_runs", one, error, freedom)


def _likeness(measured: Sequence[Measured], shares: FloatArray) -> float:
    """How much the candidate's rounds differ from each other, against those of the reference node: ratio of variances,
    at most 1. What comes and goes there comes and goes here as well, unless these rounds agree much better: more than
    few rounds do by chance (F distribution)."""
    here, there = (
        spread_of_rounds([getattr(m, side).values for m in measured], shares) for side in ("cand", "ref")
    )  # fmt: skip
    if here is None or there is None or there[0] <= 0:
        return 1.0
    # As for `reach`, which comes later anyway.
    from scipy.special import fdtri  # type: ignore[import-untyped, unused-ignore]

    by_chance = float(fdtri(here[1], there[1], _BY_CHANCE))
    return min(1.0, here[0] / there[0] / by_chance)


def _mix_terms(
    measured: Sequence[Measured],
    candidate_shares: FloatArray,
    coverage: float,
    outside: float,
    options: PredictionOptions,
) -> list[Term]:
    """What one representative per stratum, or part of one, cannot show; what was not covered, and what was `outside`.

    docs/estimators.md, "Inside the strata", "Other processes".
    """
    ratios = np.array([m.ratio for m in measured])
    shares = np.array([m.phase.time_share for m in measured]) / coverage
    noise = np.array([m.ref.error + m.cand.error for m in measured])
    strata = _strata(measured)
    tau, uncovered, freedom = _between_strata(measured, strata, shares, ratios, noise, options)
    modelled = candidate_shares**2 * tau
    terms, inside = [], 0.0
    for members in strata:
        seen = between_variance(np.log(ratios[members]), shares[members], noise[members])
        observed = float((candidate_shares[members] ** 2).sum()) * seen
        if observed > float(modelled[members].sum()):
            terms.append(Term("within_strata", observed, max(options.mix_freedom, len(members) - 1.0)))
        else:
            inside += float(modelled[members].sum())
    missing = max(0.0, 1.0 - coverage)
    terms += [Term("within_strata", inside, freedom), Term("uncovered", missing**2 * uncovered, freedom)]
    if outside:
        # Assumed, not estimated: nothing of it was run here.
        change = (options.outside_change * math.log(float((shares * ratios).sum()))) ** 2
        terms.append(Term("outside", outside**2 * (uncovered + change + options.outside_spread**2), math.inf))
    return terms


def _strata(measured: Sequence[Measured]) -> list[list[int]]:
    """Positions in `measured` of the phases of each stratum; those that hold no time say nothing of its variance."""
    found: dict[int, list[int]] = {}
    for position, m in enumerate(measured):
        if m.phase.time_share <= 0:
            continue
        # Any number below zero that is nobody else's: a stratum of its own.
        found.setdefault(m.phase.stratum if m.phase.stratum >= 0 else -1 - position, []).append(position)
    return list(found.values())


def _between_strata(
    measured: Sequence[Measured],
    strata: Sequence[list[int]],
    shares: FloatArray,
    ratios: FloatArray,
    noise: FloatArray,
    options: PredictionOptions,
) -> tuple[FloatArray, float, float]:
    """From how the strata differ: tau_within^2 of each phase, q^2 of what was not covered, degrees of freedom.

    Parts of a stratum count as one here: that they are alike says nothing of how different strata are.
    """
    spread = np.array([m.phase.spread for m in measured]) ** 2
    rates = np.array([math.log(m.phase.t_run / m.phase.work) if m.phase.work > 0 else math.nan for m in measured])
    mean = float((shares * ratios).sum())
    of_stratum = np.array([shares[one].sum() for one in strata])
    ratio = np.array([np.average(ratios[one], weights=shares[one]) for one in strata])
    moved = [shares[one] * ratios[one] for one in strata]
    error = np.array([((m / m.sum()) ** 2 * noise[one]).sum() for m, one in zip(moved, strata, strict=True)])
    apart = 1.0 - float((of_stratum**2).sum())
    if len(strata) < 2 or apart <= 0:
        # Nothing to compare with: assume that seconds per work moves at most in proportion to itself, and
        # that unmeasured code differs from the measured as much as this differs from the reference node.
        change = math.log(mean) ** 2
        return spread * min(1.0, change), change, math.inf

    between = between_variance(np.log(ratio), of_stratum, error)
    rate = np.array([np.average(rates[one], weights=shares[one]) for one in strata])
    known = np.isfinite(rate)
    rate_between = (
        between_variance(rate[known], of_stratum[known], np.zeros(int(known.sum()))) if known.sum() > 1 else 0.0
    )
    relative = np.ones_like(spread)
    np.divide(spread, rate_between, out=relative, where=spread < rate_between)
    relative = np.where(spread > 0, relative, 0.0)
    linear = between_variance(ratio / mean, of_stratum, error * (ratio / mean) ** 2)
    return between * relative, linear, max(options.mix_freedom, 1.0 / float((of_stratum**2).sum()) - 1.0)


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
    # A fifth of a second, which commands that predict nothing do not pay.
    from scipy.special import stdtrit  # type: ignore[import-untyped, unused-ignore]

    total = math.fsum(term.variance for term in terms)
    far = float(stdtrit(welch_satterthwaite(terms), 0.5 + confidence / 2.0)) * math.sqrt(total)
    return min(far, _FARTHEST)


def welch_satterthwaite(terms: Sequence[Term]) -> float:
    """Degrees of freedom of the terms' sum."""
    total = math.fsum(term.variance for term in terms)
    below = math.fsum(term.variance**2 / term.freedom for term in terms if not term.joint)
    together: dict[tuple[str, float], float] = {}
    for term in terms:
        if term.joint:
            together[term.cause, term.freedom] = together.get((term.cause, term.freedom), 0.0) + term.variance
    below += math.fsum(variance**2 / freedom for (_, freedom), variance in together.items())
    # stdtrit knows no infinity; the quantile no longer moves here.
    return min(total**2 / below, 1e6) if below > 0 else 1e6
