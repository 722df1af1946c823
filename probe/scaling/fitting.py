# SPDX-License-Identifier: Apache-2.0
"""Curves through measured times: bounded linear least squares, chosen by leaving sizes out, intervals by bootstrap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import nnls

from probe.formats.arrays import FloatArray
from probe.scaling.forms import Form

_ROUNDS = 3
_SMALLEST_SHARE = 0.02
"""Of the median: shorter times weigh no more than that, since their relative error says nothing."""

_LEAST_SECONDS = 1e-100
"""For one unit of work: the square of its inverse is still a number."""

USUAL_NOISE, _USUAL_WEIGHT = 0.04, 2.0
"""Relative noise of a run, believed as firmly as two runs would tell it, until runs say otherwise."""


_MARGIN = 0.8
"""A form that is not the first must have a left-out error below this share of the first one's."""

_MOST_CONTENDERS = 12
_LEAST_SHARE = 0.01
"""Forms that could as well be true: at most so many of them, none that is less likely than this."""

DRIFT = 0.08
"""Relative error of whichever form for each doubling beyond what was measured: nature needs none of them.

Set on curves and seeds other than those that `scripts/benchmarks/scaling_intervals.py` judges it on.
"""


@dataclass(frozen=True)
class Curve:
    """A fitted form. `coefficients`: one for each term, none below 0. `error`: leave-one-size-out SMAPE, a fraction.

    noise: relative standard deviation of runs around the curve; freedom: degrees of it. errors: by name of each form
    that was tried. x, times: what was fitted; rounding: half a unit of the last digit, in the unit of `times`.
    contenders: curves of other forms that explain the runs about as well, and how likely each of them is; this one has
    the rest.
    """

    form: Form
    coefficients: FloatArray
    error: float
    noise: float
    freedom: float
    errors: dict[str, float]
    x: FloatArray = field(repr=False)
    times: FloatArray = field(repr=False)
    rounding: FloatArray = field(repr=False)
    contenders: tuple[tuple[float, Curve], ...] = field(default=(), repr=False)

    def __call__(self, x: FloatArray) -> FloatArray:
        value: FloatArray = self.form.columns(np.atleast_1d(x)) @ self.coefficients
        return value

    @property
    def terms_used(self) -> frozenset[str]:
        """Terms whose coefficient is not 0."""
        return frozenset(str(t) for t, c in zip(self.form.terms, self.coefficients, strict=True) if c > 0)

    def is_better_than(self, first: Curve) -> bool:
        """Clearly, where sizes are left out, and not less likely for that."""
        return self.error < _MARGIN * first.error and self.evidence >= first.evidence

    @property
    def evidence(self) -> float:
        """Logarithm of how likely the runs are by this form, whatever their noise; one term costs log n / 2."""
        count, terms = len(self.x), int(np.count_nonzero(self.coefficients > 0))
        spread = self.freedom * self.noise**2
        return -(count + _USUAL_WEIGHT) / 2 * math.log(spread) - terms / 2 * math.log(count)

    def __str__(self) -> str:
        terms = zip(self.coefficients, self.form.terms, strict=True)
        kept = [f"{c:.4g}" if str(term) == "1" else f"{c:.4g} {term}" for c, term in terms if c > 0]
        return " + ".join(kept) or "0"

    def draws(self, x: FloatArray, count: int, generator: np.random.Generator) -> FloatArray:
        """`count` values of a further run at each x, shape (count, len(x)): form, curve and noise are uncertain.

        Parametric bootstrap: runs are made from a curve with noise of an uncertain size, and fitted again. Each form
        has as many draws as it is likely. Beyond what was measured all forms drift.
        """
        shares = np.array([share for share, _ in self.contenders])
        counts = np.rint(count * shares).astype(int)
        made = [one._own_draws(x, n, generator) for n, (_, one) in zip(counts, self.contenders, strict=True) if n]
        found = np.concatenate([self._own_draws(x, max(count - sum(map(len, made)), 0), generator), *made])[:count]
        # Parts of a run are drawn each for itself: the forms must not meet in their order.
        generator.shuffle(found)
        drift = DRIFT * generator.standard_normal((count, 1)) * self.doublings(np.atleast_1d(x))
        drifted: FloatArray = found * np.exp(drift)
        return drifted

    def doublings(self, x: FloatArray) -> FloatArray:
        """How often the range of `self.x` must be doubled to hold each of `x`; 0 inside."""
        beyond: FloatArray = np.maximum(np.log2(x / self.x.max()), 0) + np.maximum(np.log2(self.x.min() / x), 0)
        return beyond

    def _own_draws(self, x: FloatArray, count: int, generator: np.random.Generator) -> FloatArray:
        fitted = self(self.x)
        sizes = self.noise * np.sqrt(self.freedom / generator.chisquare(self.freedom, count))
        made = fitted * (1 + sizes[:, None] * generator.standard_normal((count, len(fitted))))
        made = np.maximum(made + self.rounding * generator.uniform(-1, 1, made.shape), 0.0)
        solver = _Weighted(self.form.columns(self.x), fitted)
        wanted = self.form.columns(np.atleast_1d(x))
        found = np.array([wanted @ solver(times) for times in made]).reshape(count, len(wanted))
        return np.maximum(found * (1 + sizes[:, None] * generator.standard_normal(found.shape)), 0.0)


def fit(
    x: FloatArray,
    times: FloatArray,
    forms: Sequence[Form],
    rounding: FloatArray | float = 0.0,
    possible: Sequence[Form] = (),
) -> Curve:
    """The form of least leave-one-size-out error, fitted to all of `times` (any unit, one for each number `x`).

    The first form is kept where another one is not clearly better, or less likely. possible: forms that are not
    chosen, but may be true.
    """
    given = np.broadcast_to(np.asarray(rounding, dtype=np.float64), times.shape)
    errors = {form.name: left_out_error(form, x, times) for form in forms}
    curves = {form.terms: _fitted(form, x, times, given, errors) for form in (*possible, *reversed(forms))}
    first = curves[forms[0].terms]
    better = [curve for form in forms[1:] if (curve := curves[form.terms]).is_better_than(first)]
    chosen = min(better, key=lambda curve: curve.error, default=first)
    return replace(chosen, contenders=_contenders(chosen, list(curves.values())))


def _contenders(chosen: Curve, others: Sequence[Curve]) -> tuple[tuple[float, Curve], ...]:
    """The others that are likely, with their shares: posterior odds by the Bayesian information criterion.

    Forms that the runs reduce to the same terms are one curve.
    """
    curves = [*{one.terms_used: one for one in (*others, chosen)}.values()]
    curves = sorted((one for one in curves if one is not chosen), key=lambda one: -one.evidence)[:_MOST_CONTENDERS]
    logs = np.array([curve.evidence for curve in (chosen, *curves)])
    shares = np.exp(logs - logs.max())
    shares[shares < _LEAST_SHARE * shares.sum()] = 0
    shares /= shares.sum()
    return tuple((float(s), c) for s, c in zip(shares[1:], curves, strict=True) if s > 0)


def _fitted(form: Form, x: FloatArray, times: FloatArray, rounding: FloatArray, errors: dict[str, float]) -> Curve:
    coefficients = solve(form, x, times)
    fitted = form.columns(x) @ coefficients
    known = fitted > 0
    spread = float(np.sum((times[known] / fitted[known] - 1) ** 2))
    used = int(np.count_nonzero(coefficients > 0))
    freedom = max(int(np.count_nonzero(known)) - used, 0) + _USUAL_WEIGHT
    noise = float(np.sqrt((spread + _USUAL_WEIGHT * USUAL_NOISE**2) / freedom))
    error = errors.get(form.name, math.nan)
    return Curve(form, coefficients, error, noise, freedom, errors, x, times, rounding)


def solve(form: Form, x: FloatArray, times: FloatArray) -> FloatArray:
    """Coefficients of least squared relative error, none below 0 (convex: no start values)."""
    columns = form.columns(x)
    level = times
    coefficients = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        # Relative to the curve, not to the times: low ones would weigh more than high ones.
        coefficients = _Weighted(columns, level)(times)
        level = columns @ coefficients
    return coefficients


class _Weighted:
    """Least squares relative to `level`, for many times."""

    def __init__(self, columns: FloatArray, level: FloatArray) -> None:
        # Where most times are 0, as of I/O in few runs, the usual one is the mean.
        usual = float(np.median(np.abs(level))) or float(np.mean(np.abs(level)))
        floor = max(_SMALLEST_SHARE * usual, _LEAST_SECONDS)
        self._weights = 1.0 / np.maximum(np.abs(level), floor)
        weighted = columns * self._weights[:, None]
        scale = np.linalg.norm(weighted, axis=0)
        scale[scale == 0] = 1.0
        self._scale, self._columns = scale, weighted / scale

    def __call__(self, times: FloatArray) -> FloatArray:
        found, _ = nnls(self._columns, times * self._weights)
        coefficients: FloatArray = found / self._scale
        return coefficients


def left_out_error(form: Form, x: FloatArray, times: FloatArray) -> float:
    """Mean SMAPE of sizes that were left out, one after the other, of the curve through all others; a fraction."""
    found = []
    for size in np.unique(x):
        out = x == size
        value = form.columns(x[out]) @ solve(form, x[~out], times[~out])
        top = np.abs(value - times[out])
        bottom = (np.abs(value) + np.abs(times[out])) / 2
        found.append(float(np.mean(np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0))))
    return float(np.mean(found))
