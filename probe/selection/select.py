# SPDX-License-Identifier: Apache-2.0
"""Selection of phases and their representatives from interval vectors and interval times.

SimPoint's selection (see `probe.selection.clustering`) is the base. Where it is good enough by its own rule, the choice
among k, seeds and cuts by time (see `probe.selection.strata`) is made by how well the representatives rebuild the
time of intervals that were held out. What `max_phases` leaves goes to strata that carry much time or spread (see
`probe.selection.allocation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from checkpoint.errors import ProbeError, ProgramTooShort
from probe.formats.arrays import BoolArray, FloatArray, IntArray
from probe.formats.choices import RANDOM, SELECTIONS, SIMPOINT, SelectionOptions
from probe.formats.selection import ALONE, Merge, Phase, Selection
from probe.selection.allocation import parts, representatives
from probe.selection.clustering import Clustering, bic_choice, project, sweep
from probe.selection.random_baseline import random_phases, random_selection
from probe.selection.strata import (
    Cut,
    Intervals,
    apply_cuts,
    estimate,
    held_out_errors,
    merge_ineligible,
    refine,
    representative,
    seconds_spread,
)


@dataclass(frozen=True)
class _Choice:
    """A clustering, its first `cuts` cuts by time, and its score (None if nothing could be held out)."""

    clustering: Clustering | None
    labels: IntArray
    cuts: int
    score: float | None


def select_phases(
    vectors: Any,
    instructions: npt.ArrayLike,
    seconds: npt.ArrayLike,
    eligible: npt.ArrayLike,
    options: SelectionOptions | None = None,
    *,
    captured: BoolArray | None = None,
) -> Selection:
    """Choose phases, representatives and weights from N intervals.

    vectors: scipy.sparse CSR (N x B), executions x instructions of each block.
    instructions: counted instructions of each interval (N; 0 where only uncounted code ran).
    seconds: native seconds of each interval (N, positive).
    eligible: whether the interval can be captured (N).
    captured: which of those have been captured already (N): representatives are taken from them alone. Any interval
        that can be captured counts in the choice of the clustering; a stratum with none that was goes to another one.
        The held-out error is then no smaller than what these representatives miss. Not for the method "random".

    Deterministic for equal arguments. Raises ProbeError for arguments of wrong shape or with impossible
    values, ProgramTooShort if there is no interval, or none that can be captured.
    """
    options = options or SelectionOptions()
    work, times, able = _checked(vectors, instructions, seconds, eligible, options)
    with threadpool_limits(limits=1):
        totals = np.asarray(vectors.sum(axis=1), dtype=np.float64).reshape(-1)
        run = Intervals.of(project(vectors, options.dimensions, options.seed), work, times, able)
        if options.method == RANDOM:
            phases = random_phases(run, options.max_phases, options.seed)
            error = _direct_estimate(run, phases) / float(times.sum()) - 1.0
            return random_selection(phases, error, options)
        if options.method == SIMPOINT:
            options = replace(options, refine_by_time=False, resolution=0.0)
        base, extra = _base_labels(run, totals > 0, options)
        choice, k_bic = _choose(run, base, extra, options)
        if captured is None:
            return _selection(run, choice, k_bic, options)
        found = _selection(replace(run, eligible=able & captured), choice, k_bic, options)
        missed = _missed(run, found.phases)
        return replace(found, held_out_error=max(missed, found.held_out_error or 0.0))


def _checked(
    vectors: Any, instructions: npt.ArrayLike, seconds: npt.ArrayLike, eligible: npt.ArrayLike, options: Any
) -> tuple[FloatArray, FloatArray, BoolArray]:
    work = np.asarray(instructions, dtype=np.float64)
    times = np.asarray(seconds, dtype=np.float64)
    able = np.asarray(eligible, dtype=np.bool_)
    count = int(vectors.shape[0])
    for name, array in (("instructions", work), ("seconds", times), ("eligible", able)):
        if array.shape != (count,):
            raise ProbeError(f"{name} has shape {array.shape}, but there are {count} interval vectors")
    if count == 0:
        raise ProgramTooShort("the profile holds no interval: choose a shorter interval or a longer run")
    for name, array, bad, rule in (
        ("seconds", times, ~(np.isfinite(times) & (times > 0)), "finite and above zero"),
        ("instructions", work, ~(np.isfinite(work) & (work >= 0)), "finite and not negative"),
    ):
        if bad.any():
            first = int(np.argmax(bad))
            raise ProbeError(
                f"{name} of interval {first} is {array[first]} ({int(bad.sum())} of {count} are wrong), must "
                f"be {rule}: the profile is damaged or its timing run incomplete, trace again"
            )
    data = np.asarray(vectors.data)
    if data.size and not (np.isfinite(data.min()) and np.isfinite(data.max()) and data.min() >= 0):
        raise ProbeError("a block vector holds a negative or non-finite entry: the profile is damaged, trace again")
    if not able.any():
        raise ProgramTooShort(
            f"none of the {count} intervals can be captured (no start, end and warm-up markers that were "
            "validated): choose a shorter interval or a longer run"
        )
    for name in ("dimensions", "max_phases", "kmeans_seeds", "iterations"):
        if getattr(options, name) < 1:
            raise ProbeError(f"selection option {name} is {getattr(options, name)}: it must be at least 1")
    if options.method not in SELECTIONS:
        raise ProbeError(f"selection method {options.method!r} is unknown; there are: {', '.join(SELECTIONS)}")
    if options.seed < 0:
        raise ProbeError(f"selection option seed is {options.seed}: it must not be negative")
    if options.folds < 2:
        raise ProbeError(f"selection option folds is {options.folds}: it must be at least 2")
    return work, times, able


def _base_labels(run: Intervals, filled: BoolArray, options: SelectionOptions) -> tuple[IntArray, int]:
    """-1 for intervals to be clustered by code; 0.. for those that cannot be; and how many such groups.

    An interval without a vector has no place in the projection, and one without counted instructions no rate:
    each kind is a stratum of its own, to be cut by time. With too few phases allowed they join the code.
    """
    labels = np.full(len(run.seconds), -1, dtype=np.int64)
    groups = [run.work == 0, ~filled & (run.work > 0)]
    present = [group for group in groups if group.any()]
    coded = bool((filled & (run.work > 0)).any())
    if len(present) + coded > options.max_phases:
        return labels, 0
    for number, group in enumerate(present):
        labels[group] = number
    return labels, len(present)


def _choose(run: Intervals, base: IntArray, extra: int, options: SelectionOptions) -> tuple[_Choice, int]:
    coded = base == -1
    seeds = [options.seed + n for n in range(options.kmeans_seeds)]
    clusterings = sweep(
        run.points[coded],
        max_k=options.max_phases - extra,
        seeds=seeds,
        iterations=options.iterations,
        resolution=options.resolution,
    )
    folds = _folds(len(base), options)
    if not clusterings:
        return _best(_scored(run, None, base, folds, options), options), 0
    simplest, good = bic_choice(clusterings, options.bic_threshold)
    choices: list[_Choice] = []
    for one in good if options.refine_by_time else [simplest]:
        labels = base.copy()
        labels[coded] = one.labels + extra
        choices += _scored(run, one, labels, folds, options)
    if all(choice.score is None for choice in choices):
        choices = [choice for choice in choices if choice.clustering is simplest]
    return _best(choices, options), simplest.k


def _folds(count: int, options: SelectionOptions) -> list[BoolArray]:
    if count < 2:
        return []
    parts = min(options.folds, count)
    number = np.random.default_rng(options.seed).permutation(count) % parts
    return [number == part for part in range(parts)]


def _scored(
    run: Intervals,
    clustering: Clustering | None,
    labels: IntArray,
    folds: list[BoolArray],
    options: SelectionOptions,
) -> list[_Choice]:
    """One choice per number of cuts, scored over the folds; a fold out of cuts keeps its last error."""
    paths = [path for fold in folds if (path := held_out_errors(run, labels, fold, options)) is not None]
    if not paths:
        return [_Choice(clustering, labels, options.max_phases if options.refine_by_time else 0, None)]
    longest = max(len(path) for path in paths)
    padded = np.array([path + path[-1:] * (longest - len(path)) for path in paths])
    scores = np.sqrt((padded**2).mean(axis=0))
    return [_Choice(clustering, labels, cuts, float(score)) for cuts, score in enumerate(scores)]


def _best(choices: list[_Choice], options: SelectionOptions) -> _Choice:
    """The fewest phases among the choices whose held-out error is as good as the best's."""
    known = [(one.score, one) for one in choices if one.score is not None]
    if not known:
        return choices[0]
    bar = min(score for score, _ in known) * (1.0 + options.tolerance_relative) + options.tolerance_absolute

    def order(item: tuple[float, _Choice]) -> tuple[int, float]:
        return len(np.unique(item[1].labels)) + item[1].cuts, item[0]

    return min((item for item in known if item[0] <= bar), key=order)[1]


def _selection(run: Intervals, choice: _Choice, k_bic: int, options: SelectionOptions) -> Selection:
    total_work, total_seconds = float(run.work.sum()), float(run.seconds.sum())
    merged, moved = merge_ineligible(run, choice.labels, run.eligible)
    cuts: list[Cut] = []
    if options.refine_by_time:
        everything = np.ones(len(merged), dtype=np.bool_)
        cuts = refine(run, merged, everything, options)[: choice.cuts]
    strata = apply_cuts(run, merged, cuts)
    members = {int(c): np.flatnonzero(strata == c).astype(np.int64) for c in np.unique(strata)}
    share = {c: float(run.seconds[m].sum()) / total_seconds for c, m in members.items()}

    weight = {c: float(run.work[m].sum()) / (total_work or 1.0) for c, m in members.items()}
    dropped = lost_weight = 0.0
    kept = dict(members)
    for c in sorted(members, key=lambda c: (share[c], int(members[c][0]))):
        # Cheap code can hold much of the weight in little time: without it the direct estimate is far off.
        small = max(dropped + share[c], lost_weight + weight[c]) < options.drop_below
        if small and len(kept) > 1:
            dropped += share[c]
            lost_weight += weight[c]
            del kept[c]

    phases = _phases(run, list(kept.values()), options)
    labels = np.full(len(strata), -1, dtype=np.int64)
    for phase in phases:
        labels[phase.members] = phase.id

    merges = []
    for c in sorted(moved):
        lost = np.flatnonzero(choice.labels == c)
        homes = labels[lost]
        # Cuts may have parted what was merged: name the phase that holds most of its time.
        home = max(np.unique(homes), key=lambda h: float(run.seconds[lost[homes == h]].sum()))
        merges.append(Merge(int(home), len(lost), float(run.seconds[lost].sum()) / total_seconds))

    return Selection(
        phases=tuple(phases),
        labels=labels,
        dropped_time_share=dropped,
        k_bic=k_bic,
        seed=choice.clustering.seed if choice.clustering else options.seed,
        cuts=len(cuts),
        selection_error=_direct_estimate(run, phases) / total_seconds - 1.0,
        held_out_error=choice.score,
        merges=tuple(merges),
        options=options,
    )


def _phases(run: Intervals, strata: list[IntArray], options: SelectionOptions) -> list[Phase]:
    """A phase for each stratum, or for each of its parts where it gets several representatives."""
    total_work, total_seconds = float(run.work.sum()), float(run.seconds.sum())
    counts = representatives(run, strata, options) if options.refine_by_time else [1] * len(strata)
    chosen = []
    for stratum, (members, count) in enumerate(zip(strata, counts, strict=True)):
        divided = parts(run, members, count)
        number = stratum if len(divided) > 1 else ALONE
        chosen += [(representative(run, part, options), number, part) for part in divided]
    return [
        Phase(
            id=number,
            representative=interval,
            members=members,
            weight=float(run.work[members].sum()) / (total_work or 1.0),
            time_share=float(run.seconds[members].sum()) / total_seconds,
            seconds_spread=seconds_spread(run, members),
            stratum=stratum,
        )
        for number, (interval, stratum, members) in enumerate(sorted(chosen, key=lambda one: one[0]))
    ]


def _missed(run: Intervals, phases: Sequence[Phase]) -> float:
    """The error of the phases' times by their representatives, as `Selection.held_out_error` adds up errors of strata:
    representatives that nobody chose for their times are not better than on intervals held out."""
    errors = np.array([estimate(run, p.representative, p.members) - run.seconds[p.members].sum() for p in phases])
    return float(max(abs(errors.sum()), np.sqrt((errors**2).sum())) / run.seconds.sum())


def _direct_estimate(run: Intervals, phases: list[Phase]) -> float:
    """Seconds of the run from the representatives' own interval times, as the direct estimator forms it.

    Phases with counted instructions are extrapolated over the weight kept, others stand for themselves.
    """
    worked = [phase for phase in phases if run.work[phase.representative] > 0]
    idle = [phase for phase in phases if run.work[phase.representative] == 0]
    kept = sum(phase.weight for phase in worked)
    rates = [run.seconds[phase.representative] / run.work[phase.representative] for phase in worked]
    total = float(run.work.sum()) * sum(phase.weight * rate for phase, rate in zip(worked, rates, strict=True))
    rest = sum(estimate(run, phase.representative, phase.members) for phase in idle)
    return (total / kept if kept > 0 else 0.0) + rest
