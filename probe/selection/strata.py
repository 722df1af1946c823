# SPDX-License-Identifier: Apache-2.0
"""Strata: the groups of intervals one representative stands for, cut by code first and by time after that.

Intervals that execute the same blocks may still differ in time (caches, branches, data), and that is where
the error of a selection sits. Cutting follows stratified sampling (Dalenius 1950, Neyman 1934): the stratum
with the largest S_c x spread is cut where the sum of S_h x spread_h of its parts is smallest, S being the
time share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probe.formats.arrays import BoolArray, FloatArray, IntArray
from probe.formats.choices import SelectionOptions
from probe.selection.clustering import variance_floor


@dataclass(frozen=True)
class Intervals:
    """What is known of all N intervals: projected vectors (N x d), work, seconds, and who may be captured.

    `log_rate` is log(seconds / work), NaN where no work was counted; `log_time` is log(seconds).
    """

    points: FloatArray
    work: FloatArray
    seconds: FloatArray
    eligible: BoolArray
    log_rate: FloatArray
    log_time: FloatArray

    @staticmethod
    def of(points: FloatArray, work: FloatArray, seconds: FloatArray, eligible: BoolArray) -> Intervals:
        log_time = np.log(seconds)
        log_work = np.full_like(log_time, np.nan)
        np.log(work, out=log_work, where=work > 0)
        return Intervals(points, work, seconds, eligible, log_time - log_work, log_time)


@dataclass(frozen=True)
class Cut:
    """Members of stratum `stratum` whose rate (or time, if not `by_rate`) exceeds `limit` move to `new`."""

    stratum: int
    by_rate: bool
    limit: float
    new: int

    def moves(self, run: Intervals, members: IntArray) -> BoolArray:
        values = run.log_rate if self.by_rate else run.log_time
        return values[members] > self.limit


def weighted_spread(values: FloatArray, weights: FloatArray) -> float:
    """Standard deviation of `values` under `weights`; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = np.average(values, weights=weights)
    return float(np.sqrt(np.average((values - mean) ** 2, weights=weights)))


def seconds_spread(run: Intervals, members: IntArray) -> float:
    """Time-weighted spread of log seconds per counted instruction (of log seconds without any)."""
    worked = members[run.work[members] > 0]
    if len(worked):
        return weighted_spread(run.log_rate[worked], run.seconds[worked])
    return weighted_spread(run.log_time[members], run.seconds[members])


def estimate(run: Intervals, representative: int, members: IntArray) -> float:
    """Seconds of `members` if all of them went like the representative.

    Per counted instruction; where the representative has none, per interval.
    """
    if run.work[representative] > 0:
        rate = run.seconds[representative] / run.work[representative]
        return float(rate * run.work[members].sum())
    return float(run.seconds[representative] * len(members))


def representative(run: Intervals, members: IntArray, options: SelectionOptions) -> int:
    """The eligible member nearest the centre of the stratum.

    Nearest in the projected vectors alone (SimPoint), or with `refine_by_time` also in log seconds per
    counted instruction, measured from the stratum's own total rate, and, weakly, in log seconds. At least
    one member must be eligible. Ties go to the earliest interval.
    """
    chosen = members[run.eligible[members]]
    worked = members[run.work[members] > 0]
    # A stratum with work is estimated per instruction, which a member without work cannot do.
    if len(worked) and np.max(run.work[chosen]) > 0:
        chosen = chosen[run.work[chosen] > 0]
    centre = run.points[members].mean(axis=0)
    floor = variance_floor(options.resolution) * run.points.shape[1]
    scale = max(float(((run.points[members] - centre) ** 2).sum(axis=1).mean()), floor)
    distance = ((run.points[chosen] - centre) ** 2).sum(axis=1) / scale
    if options.refine_by_time:
        with_rate = bool(run.work[chosen[0]] > 0)
        values = run.log_rate if with_rate else run.log_time
        if with_rate:
            target = np.log(run.seconds[worked].sum() / run.work[worked].sum())
        else:
            target = np.log(run.seconds[members].mean())
        spread = max(seconds_spread(run, members), options.rate_floor)
        distance = distance + options.time_emphasis * ((values[chosen] - target) / spread) ** 2
        usual = np.median(run.log_time[members])
        distance = distance + ((run.log_time[chosen] - usual) / options.length_spread) ** 2
    return int(chosen[int(np.argmin(distance))])


def merge_ineligible(run: Intervals, labels: IntArray, eligible: BoolArray) -> tuple[IntArray, dict[int, int]]:
    """Give strata without an eligible member to the nearest stratum that has one.

    `eligible` may be narrower than `run.eligible` (a training fold). Nearest by mean projected vector and
    mean log rate, each in units of its variance over the whole run. Returns the new labels and which
    stratum went where. At least one interval must be eligible.
    """
    keep = sorted({int(x) for x in np.unique(labels[eligible])})
    lost = sorted({int(x) for x in np.unique(labels)} - set(keep))
    if not lost:
        return labels, {}
    scale = float(run.points.var(axis=0).sum()) or 1.0
    time_scale = float(run.log_time.var()) or 1.0
    rates = run.log_rate[np.isfinite(run.log_rate)]
    rate_scale = (float(rates.var()) if len(rates) else 0.0) or 1.0

    def centre(stratum: int) -> tuple[FloatArray, float, float]:
        members = np.flatnonzero(labels == stratum)
        known = members[run.work[members] > 0]
        rate = float(run.log_rate[known].mean()) if len(known) else float("nan")
        return run.points[members].mean(axis=0), rate, float(run.log_time[members].mean())

    homes = {stratum: centre(stratum) for stratum in keep}
    merged = labels.copy()
    moved: dict[int, int] = {}
    for stratum in lost:
        point, rate, time = centre(stratum)

        def distance(home: int, point: FloatArray = point, rate: float = rate, time: float = time) -> float:
            other, other_rate, other_time = homes[home]
            by_rate = (rate - other_rate) ** 2 / rate_scale
            by_time = (time - other_time) ** 2 / time_scale
            gap = by_rate if np.isfinite(by_rate) else by_time
            return float(((point - other) ** 2).sum()) / scale + float(gap)

        moved[stratum] = min(keep, key=distance)
        merged[labels == stratum] = moved[stratum]
    return merged, moved


def best_cut(values: FloatArray, weights: FloatArray, eligible: BoolArray) -> float | None:
    """Where to cut sorted `values` so that the sum of weight x spread of both sides is smallest.

    Both sides must hold an eligible member. None if there is no such cut, or none that lowers the sum.
    """
    order = np.argsort(values, kind="stable")
    centre = float(np.average(values, weights=weights))
    v, w, e = values[order] - centre, weights[order], np.cumsum(eligible[order])
    mass, first, second = np.cumsum(w), np.cumsum(w * v), np.cumsum(w * v * v)
    # weight x spread = sqrt(weight x sum of squares), here from running sums on both sides of each gap.
    left = mass[:-1] * second[:-1] - first[:-1] ** 2
    right = (mass[-1] - mass[:-1]) * (second[-1] - second[:-1]) - (first[-1] - first[:-1]) ** 2
    cost = np.sqrt(np.maximum(left, 0.0)) + np.sqrt(np.maximum(right, 0.0))
    own = values[order]
    allowed = (own[1:] > own[:-1]) & (e[:-1] > 0) & (e[-1] - e[:-1] > 0)
    if not allowed.any():
        return None
    at = int(np.argmin(np.where(allowed, cost, np.inf)))
    whole = np.sqrt(max(float(mass[-1] * second[-1] - first[-1] ** 2), 0.0))
    if cost[at] >= whole:
        return None
    middle = float((own[at] + own[at + 1]) / 2.0)
    # Between neighbours that differ in their last digit there is no number: members up to the lower one stay.
    return middle if middle < own[at + 1] else float(own[at])


def next_cut(
    run: Intervals, stratum: int, members: IntArray, new: int, options: SelectionOptions
) -> tuple[float, Cut] | None:
    """The cut of one stratum and its urgency S_c x spread, or None where a cut is not worth a phase.

    The axis is the seconds per counted instruction or the interval's seconds, whichever spreads more beyond
    what its own limit allows. Members without work have no rate, so a stratum that holds any is cut by
    seconds.
    """
    if len(members) < 2:
        return None
    weights = run.seconds[members]
    share = float(weights.sum() / run.seconds.sum())
    works = run.work[members] > 0
    time_limit = options.length_spread if works.any() else options.rate_spread
    axes = [(False, run.log_time[members], time_limit)]
    if works.all():
        axes.append((True, run.log_rate[members], options.rate_spread))
    found: list[tuple[float, Cut]] = []
    for by_rate, values, limit in axes:
        spread = weighted_spread(values, weights)
        if spread < limit or share * spread < options.split_above:
            continue
        at = best_cut(values, weights, run.eligible[members])
        if at is not None:
            found.append((share * spread, Cut(stratum, by_rate, at, new)))
    return max(found, key=lambda one: one[0]) if found else None


def refine(run: Intervals, labels: IntArray, within: BoolArray, options: SelectionOptions) -> list[Cut]:
    """Cut strata by time, the most urgent first, until `max_phases` or until no cut is worth it.

    Only intervals in `within` are looked at. A prefix of the result is the refinement to fewer strata.
    """
    strata = {int(c): np.flatnonzero((labels == c) & within) for c in np.unique(labels[within])}
    new = int(np.max(labels)) + 1
    waiting = {c: next_cut(run, c, members, new, options) for c, members in strata.items()}
    cuts: list[Cut] = []
    while len(strata) < options.max_phases:
        urgent = [(item[0], -c, item[1]) for c, item in waiting.items() if item is not None]
        if not urgent:
            break
        _, _, best = max(urgent, key=lambda one: one[:2])
        cut = Cut(best.stratum, best.by_rate, best.limit, new)
        members = strata[cut.stratum]
        moves = cut.moves(run, members)
        strata[cut.stratum], strata[new] = members[~moves], members[moves]
        for c in (cut.stratum, new):
            waiting[c] = next_cut(run, c, strata[c], new + 1, options)
        cuts.append(cut)
        new += 1
    return cuts


def apply_cuts(run: Intervals, labels: IntArray, cuts: list[Cut]) -> IntArray:
    """Labels after `cuts`, for all intervals, those included that the cuts were not made from."""
    result: IntArray = labels.copy()
    for cut in cuts:
        members = np.flatnonzero(result == cut.stratum)
        result[members[cut.moves(run, members)]] = cut.new
    return result


def held_out_errors(run: Intervals, labels: IntArray, fold: BoolArray, options: SelectionOptions) -> list[float] | None:
    """Errors on one fold of strata and representatives made without it, after 0, 1, ... cuts.

    Each is max(|sum of e_c|, sqrt(sum of e_c^2)) / T: e_c is the error in seconds of the fold's members of
    stratum c, T the fold's seconds. The first term is the error of the total; the second keeps a clustering
    whose errors cancel by luck from looking better than independent errors would let it.
    None if nothing outside the fold can be captured.
    """
    train = ~fold
    eligible = run.eligible & train
    if not eligible.any():
        return None
    labels, _ = merge_ineligible(run, labels, eligible)
    narrowed = Intervals(run.points, run.work, run.seconds, eligible, run.log_rate, run.log_time)
    cuts = refine(narrowed, labels, train, options) if options.refine_by_time else []

    def error(inside: IntArray, outside: IntArray) -> float:
        if len(outside) == 0:
            return 0.0
        guess = estimate(run, representative(narrowed, inside, options), outside)
        return guess - float(run.seconds[outside].sum())

    def score() -> float:
        e = np.array(list(errors.values()))
        return max(abs(float(e.sum())), float(np.sqrt((e**2).sum()))) / total

    strata = {
        int(c): (np.flatnonzero((labels == c) & train), np.flatnonzero((labels == c) & fold)) for c in np.unique(labels)
    }
    errors = {c: error(*both) for c, both in strata.items()}
    total = float(run.seconds[fold].sum())
    path = [score()]
    for cut in cuts:
        inside, outside = strata[cut.stratum]
        moves_in, moves_out = cut.moves(run, inside), cut.moves(run, outside)
        strata[cut.stratum] = inside[~moves_in], outside[~moves_out]
        strata[cut.new] = inside[moves_in], outside[moves_out]
        for c in (cut.stratum, cut.new):
            errors[c] = error(*strata[c])
        path.append(score())
    return path
