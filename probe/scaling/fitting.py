# SPDX-License-Identifier: Apache-2.0
"""Curves through measured times: bounded linear least squares, chosen by leaving sizes out, intervals by bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import nnls

from probe.formats.arrays import FloatArray
from probe.scaling.forms import Form

_ROUNDS = 3
_SMALLEST_SHARE = 0.02
"""Of the median: shorter times weigh no more than that, since their relative error says nothing."""

USUAL_NOISE, _USUAL_WEIGHT = 0.03, 2.0
"""Relative noise of a run, believed as firmly as two runs would tell it, until runs say otherwise."""


_MARGIN = 0.8
"""A form that is not the first must have a left-out error below this share of the first one's."""

_CONTENDING = 1.5
_MOST_CONTENDERS = 8
"""Forms whose left-out error is up to so many times the chosen one's could as well be true: at most so many of them."""


@dataclass(frozen=True)
class Curve:
    """A fitted form. `coefficients`: one for each term, none below 0. `error`: leave-one-size-out SMAPE, a fraction.

    noise: relative standard deviation of runs around the curve; freedom: degrees of it. errors: by name of each form
    that was tried. x, times: what was fitted; rounding: half a unit of the last digit, in the unit of `times`.
    contenders: curves of other forms that explain the runs about as well.
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
    contenders: tuple[Curve, ...] = field(default=(), repr=False)

    def __call__(self, x: FloatArray) -> FloatArray:
        value: FloatArray = self.form.columns(np.atleast_1d(x)) @ self.coefficients
        return value

    def __str__(self) -> str:
        terms = zip(self.coefficients, self.form.terms, strict=True)
        kept = [f"{c:.4g}" if str(term) == "1" else f"{c:.4g} {term}" for c, term in terms if c > 0]
        return " + ".join(kept) or "0"

    def draws(self, x: FloatArray, count: int, generator: np.random.Generator) -> FloatArray:
        """`count` values of a further run at each x, shape (count, len(x)): form, curve and noise are uncertain.

        Parametric bootstrap: runs are made from a curve with noise of an uncertain size, and fitted again. Half of the
        draws are of this form, the others of its contenders by turns.
        """
        each = count // 2 // len(self.contenders) if self.contenders else 0
        made = [one._own_draws(x, each, generator) for one in self.contenders if each]
        found = np.concatenate([self._own_draws(x, count - each * len(made), generator), *made])
        # Parts of a run are drawn each for itself: the forms must not meet in their order.
        generator.shuffle(found)
        return found

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

    The first form is kept where another one is not clearly better. possible: forms that are not chosen, but may be
    true where sizes are too few to tell.
    """
    given = np.broadcast_to(np.asarray(rounding, dtype=np.float64), times.shape)
    errors = {form.name: left_out_error(form, x, times) for form in (*forms, *possible)}
    others = [form for form in forms[1:] if errors[form.name] < _MARGIN * errors[forms[0].name]]
    best = min(others, key=lambda form: errors[form.name], default=forms[0])
    near = [f for f in forms if f is not best and errors[f.name] <= _CONTENDING * errors[best.name]]
    near = sorted(near, key=lambda form: errors[form.name])[:_MOST_CONTENDERS]
    contenders = [_fitted(form, x, times, given, errors) for form in (*near, *possible)]
    return replace(_fitted(best, x, times, given, errors), contenders=tuple(contenders))


def _fitted(form: Form, x: FloatArray, times: FloatArray, rounding: FloatArray, errors: dict[str, float]) -> Curve:
    coefficients = solve(form, x, times)
    fitted = form.columns(x) @ coefficients
    known = fitted > 0
    spread = float(np.sum((times[known] / fitted[known] - 1) ** 2))
    used = int(np.count_nonzero(coefficients > 0))
    freedom = max(int(np.count_nonzero(known)) - used, 0) + _USUAL_WEIGHT
    noise = float(np.sqrt((spread + _USUAL_WEIGHT * USUAL_NOISE**2) / freedom))
    return Curve(form, coefficients, errors[form.name], noise, freedom, errors, x, times, rounding)


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
        floor = max(_SMALLEST_SHARE * float(np.median(np.abs(level))), 1e-300)
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
