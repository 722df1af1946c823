# SPDX-License-Identifier: Apache-2.0
"""Candidate markers for the boundaries between intervals, runs cut there, and the places where regions lie.

The tracer counted all blocks up to each boundary. The next execution of any site after it is the place
(site, count + 1) in the run; a deterministic rerun reaches it again. Several candidates per boundary are stamped in
the timing run, and the earliest is kept, of markers that were executed equally often if there are such: every stamp
comes after the boundary, so the earliest is the nearest.

An instruction-exact tracer has watched which blocks begin soon behind the boundary: those come first. Its blocks
overlap, so a site is executed as often as all blocks together that cover it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp

from checkpoint.process.children import Child
from checkpoint.stubs.markers import Marker
from probe.formats.arrays import BoolArray, FloatArray, IntArray
from probe.formats.choices import INSTRUCTIONS
from probe.formats.profile import NO_SITE, BlockTable, Profile
from probe.formats.selection import Selection
from probe.formats.timing import LEAST_SECONDS, IntervalRun, Outside, TimedProfile
from probe.tracers.hot_sites import SAVING_SECONDS as MARKER_SECONDS
from probe.tracers.lives import Lives

CANDIDATES = 3
_TIERS = (100, 20, 5, 1)
"""Executions asked for on both sides of a boundary. An idle site would fire an outer iteration late; a site
executed 100 times in an interval fires on average within 1 % of the interval's length."""

_CHEAP = 0.002
"""Share of the run that one marker may cost. Only where no cheaper site is active is a hotter one taken, and then
alone: a marker's stub runs the whole time, not just near its boundary."""


MOST_COST = 0.002
"""Share of a run that all stamps together may cost where the run is to be a plain one."""

_DEAR = 0.02
_NEAR = 5
"""A marker that costs more than this share of the run is none where a cheaper one is so many boundaries away: a hot
loop's stub would slow down the whole run, and two intervals that become one cost little."""


@dataclass(frozen=True)
class Candidate:
    """Boundary `boundary` (between intervals boundary-1 and boundary) is execution `count` of block `column`."""

    boundary: int
    column: int
    count: int


@dataclass(frozen=True)
class StampedRun:
    """Raw result of one timing run: a stamp (wall, cpu; NaN where missing) per candidate, in their order.

    It started at the entry point of the traced image, with the stubs in place, and ended at the exit event. `ended_cpu`
    is the program's own; `others` has its children's, and all before the execve of a wrapper's worker. Of
    `started_cpu`, `executed_cpu` was before that. For `waited` seconds something else had the processor. Columns of
    `beside` were counted, and are no markers. All times but `started` are those of a clock that stood while the program
    was stopped: at the times `halts` for a checkpoint, and wherever the tracer looked at what was loaded.
    """

    wall: FloatArray
    cpu: FloatArray
    started: float
    ended: float
    ended_cpu: float
    totals: dict[int, int]
    started_cpu: float = 0.0
    kernel: FloatArray = field(default_factory=lambda: np.zeros(0))
    children: tuple[Child, ...] = ()
    active: tuple[tuple[float, float], ...] = ()
    starts: tuple[float, ...] = ()
    others: Outside = field(default_factory=Outside)
    executed_cpu: float = 0.0
    resident: int = 0
    waited: float = 0.0
    halts: tuple[float, ...] = ()
    beside: frozenset[int] = frozenset()

    @property
    def waited_share(self) -> float:
        """Of its wall time, in which the program was ready and something else had the processor."""
        return min(1.0, self.waited / max(self.ended - self.started, LEAST_SECONDS))

    @property
    def blocked_share(self) -> float:
        """Of its wall time, asleep."""
        wall = max(self.ended - self.started, LEAST_SECONDS)
        return min(1.0, max(0.0, wall - (self.ended_cpu - self.started_cpu) - self.waited) / wall)


def site_counts(profile: Profile) -> sp.csr_array:
    """Executions of each column's site in each interval, N x B; 0 for columns without a site.

    Where threads share the work, those by the marking thread.
    """
    counts = (profile.counts if profile.first is None else profile.first).astype(np.int64)
    if profile.unit == INSTRUCTIONS:
        counts = counts @ _coverage(profile.blocks)
    found = sp.csr_array(counts)
    found.sort_indices()
    return found


def site_totals(profile: Profile) -> IntArray:
    """Executions of each column's site in the whole run, (B,)."""
    found: IntArray = np.asarray(site_counts(profile).sum(axis=0), dtype=np.int64).ravel()
    return found


def _coverage(blocks: BlockTable) -> sp.csr_array:
    """B x B, 1 where the block of the row covers the site of the column."""
    columns = np.flatnonzero(blocks.site != NO_SITE)
    rows_of, columns_of = [], []
    for image in np.unique(blocks.image[columns]).tolist():
        order = np.flatnonzero(blocks.image == image)
        order = order[np.argsort(blocks.start[order], kind="stable")]
        start = blocks.start[order]
        end = start + blocks.size[order]
        longest = int(blocks.size[order].max())
        for column in columns[blocks.image[columns] == image].tolist():
            site = int(blocks.site[column])
            low, high = np.searchsorted(start, (site - longest, site + 1))
            covering = order[low:high][end[low:high] > site]
            rows_of.append(covering)
            columns_of.append(np.full(len(covering), column))
    rows, over = (np.concatenate(p) if p else np.zeros(0, dtype=np.int64) for p in (rows_of, columns_of))
    size = len(blocks.site)
    return sp.csr_array((np.ones(len(rows), dtype=np.int64), (rows, over)), shape=(size, size))


def candidates(
    profile: Profile,
    most: int = CANDIDATES,
    *,
    native_seconds: float | None = None,
    avoid: Collection[int] = (),
) -> list[Candidate]:
    """Up to `most` candidates for each inner boundary: cheap ones that are busy there, the cheapest first.

    `native_seconds`: how long the program takes by itself, where the tracer slowed it down. `avoid`: columns that
    turned out not to repeat.
    """
    counts = site_counts(profile)
    if avoid:
        kept = np.ones(counts.shape[1], dtype=np.int64)
        kept[list(avoid)] = 0
        counts = sp.csr_array(counts.multiply(kept[None, :]))
        counts.eliminate_zeros()
    totals = np.asarray(counts.sum(axis=0), dtype=np.float64).ravel()
    seconds = float(profile.seconds.sum()) if native_seconds is None else native_seconds
    cost = totals * MARKER_SECONDS / max(seconds, 1e-9)
    shared = _shared_sites(profile)
    so_far = np.zeros(counts.shape[1], dtype=np.int64)
    found: list[Candidate] = []
    for boundary in range(1, profile.intervals):
        before, executions_before = _row(counts, boundary - 1)
        so_far[before] += executions_before
        after, executions_after = _row(counts, boundary)
        both, at_before, at_after = np.intersect1d(before, after, assume_unique=True, return_indices=True)
        steady = np.minimum(executions_before[at_before], executions_after[at_after])
        near = np.isin(both, _seen_behind(profile, boundary)) & (cost[both] <= _CHEAP)
        if near.any():
            both, steady = both[near], steady[near]
        alone = ~shared[both]
        if alone.any():
            both, steady = both[alone], steady[alone]
        chosen = _chosen(both, steady, cost, most)
        found += [Candidate(boundary, int(c), int(so_far[c]) + 1) for c in chosen]
    return _without_dear(found, cost)


def _shared_sites(profile: Profile) -> BoolArray:
    """By column: whether other threads execute it too. Who does how much of shared work may differ from run to run, so
    that a site of the marking thread alone is a better marker."""
    if profile.first is None:
        return np.zeros(profile.counts.shape[1], dtype=bool)
    found: BoolArray = np.asarray((profile.counts - profile.first).sum(axis=0)).ravel() > 0
    return found


def _without_dear(found: list[Candidate], cost: FloatArray) -> list[Candidate]:
    cheap = np.array([c.boundary for c in found if cost[c.column] <= _DEAR])

    def needed(one: Candidate) -> bool:
        return not len(cheap) or int(np.abs(cheap - one.boundary).min()) > _NEAR

    return [c for c in found if cost[c.column] <= _DEAR or needed(c)]


def _seen_behind(profile: Profile, boundary: int) -> IntArray:
    low, high = np.searchsorted(profile.markers.boundary, (boundary, boundary + 1))
    return profile.markers.column[low:high]


def _chosen(columns: IntArray, steady: IntArray, cost: FloatArray, most: int) -> IntArray:
    """The columns to mark a boundary with, of those active on both sides at least `steady` times."""
    for tier in _TIERS:
        fit = columns[(steady >= tier) & (cost[columns] <= _CHEAP)]
        if len(fit):
            return fit[np.argsort(cost[fit], kind="stable")][:most]
    return columns[np.argsort(cost[columns], kind="stable")][:1]


def _row(counts: object, row: int) -> tuple[IntArray, IntArray]:
    low, high = counts.indptr[row], counts.indptr[row + 1]  # type: ignore[attr-defined]
    return counts.indices[low:high], counts.data[low:high]  # type: ignore[attr-defined]


def marker_of(profile: Profile, column: int) -> Marker:
    """The marker behind a column of the profile."""
    return Marker(profile.images[int(profile.blocks.image[column])][0], int(profile.blocks.site[column]))


@dataclass(frozen=True)
class Place:
    """A boundary as a place in the run: the `count`-th execution of a marker."""

    marker: Marker
    count: int


@dataclass(frozen=True)
class RegionPlan:
    """Where a phase's warm-up starts, its region starts and ends. Without warm-up the first two are one."""

    phase: int
    representative: int
    warmup: int
    warm: Place
    start: Place
    end: Place


def plan_regions(profile: Profile, timed: TimedProfile, selection: Selection, warmup: int) -> list[RegionPlan]:
    """The three places of every phase, in the order of the run. `warmup` in intervals, less near the start."""
    phases = sorted(selection.phases, key=lambda p: p.representative)
    return [plan_region(profile, timed, phase.id, phase.representative, warmup) for phase in phases]


def plan_region(profile: Profile, timed: TimedProfile, phase: int, interval: int, warmup: int) -> RegionPlan:
    """The three places of `interval` as the region of a checkpoint with the number `phase`."""

    def place(boundary: int) -> Place:
        column, count = int(timed.columns[boundary - 1]), int(timed.executions[boundary - 1])
        return Place(marker_of(profile, column), count)

    length = min(warmup, timed.room_before(interval))
    return RegionPlan(phase, interval, length, place(interval - length), place(interval), place(interval + 1))


def cheap_boundaries(profile: Profile, timed: TimedProfile) -> IntArray:
    """Positions of the boundaries to stamp, ascending: as many as MOST_COST allows, cheapest markers first."""
    executions = site_totals(profile)
    columns, marked = np.unique(timed.columns, return_counts=True)
    cost = executions[columns] * MARKER_SECONDS / max(timed.wall_seconds, LEAST_SECONDS)
    order = np.argsort(cost / marked, kind="stable")
    kept = columns[order][np.cumsum(cost[order]) <= MOST_COST]
    return np.flatnonzero(np.isin(timed.columns, kept)).astype(np.int64)


def stamping_seconds(profile: Profile, columns: Collection[int]) -> FloatArray:
    """What markers there take in each of the profile's intervals, by what one execution takes, (N,)."""
    executions = np.asarray(site_counts(profile)[:, sorted(columns)].sum(axis=1), dtype=np.float64).ravel()
    return np.asarray(executions * MARKER_SECONDS, dtype=np.float64)


def shared_out(like: FloatArray, edges: IntArray, seconds: FloatArray) -> FloatArray:
    """`seconds` of each group of intervals, from edges[g] to edges[g + 1], in the proportions of `like`."""
    like = np.maximum(like, LEAST_SECONDS)
    group = np.repeat(np.arange(len(seconds)), np.diff(edges))
    whole = np.bincount(group, weights=like, minlength=len(seconds))
    return np.maximum(like * (seconds / whole)[group], LEAST_SECONDS)


def split(timed: TimedProfile, at: IntArray, run: StampedRun) -> IntervalRun:
    """The run's times interval by interval, from stamps at the boundaries `at`.

    Between two stamps with other boundaries in between, time is shared out as in the timing run: such intervals are
    judged together. Other processes' time is in the run, and in no interval.
    """
    stamped = np.flatnonzero(np.isfinite(run.wall))
    stamped = stamped[longest_rising(run.wall[stamped])]
    edges = np.concatenate([[0], at[stamped] + 1, [timed.intervals]])
    wall = np.concatenate([[run.started], run.wall[stamped], [run.ended]])
    last = run.cpu[stamped][-1] if len(stamped) else run.started_cpu
    cpu = np.concatenate([[run.started_cpu], run.cpu[stamped], [max(run.ended_cpu, last)]])
    own = Lives.of(run.children, run.ended).own_seconds(wall, np.diff(cpu))
    loading = run.started_cpu - run.executed_cpu
    return IntervalRun(
        wall=run.ended - run.started + loading + run.others.wall,
        cpu=max(run.ended_cpu + run.others.cpu, LEAST_SECONDS),
        interval_wall=shared_out(timed.seconds, edges, own),
        interval_cpu=shared_out(timed.cpu, edges, np.diff(cpu)),
    )


def longest_rising(values: FloatArray) -> IntArray:
    """Positions of a longest strictly rising subsequence, in order."""
    lengths = rising_lengths(values)
    chain: list[int] = []
    due = max(lengths, default=0)
    for at in range(len(lengths) - 1, -1, -1):
        if lengths[at] == due and (not chain or values[at] < values[chain[-1]]):
            chain.append(at)
            due -= 1
    return np.array(chain[::-1], dtype=np.int64)


def rising_lengths(values: FloatArray) -> list[int]:
    """How long the longest strictly rising subsequence is that ends with each value (patience sorting, O(n log n))."""
    tails: list[float] = []
    lengths = []
    for value in values.tolist():
        place = bisect_left(tails, value)
        tails[place : place + 1] = [value]
        lengths.append(place + 1)
    return lengths
