# SPDX-License-Identifier: Apache-2.0
"""Tell from a stamped run which boundaries hold, and how long the intervals between them take.

Where no candidate of a boundary fired, or it fired out of order, the intervals on both sides become one; too many of
those, and the program does not repeat itself.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np

from checkpoint.errors import Diverged
from probe.formats.arrays import IntArray
from probe.formats.choices import INSTRUCTIONS
from probe.formats.profile import Profile
from probe.formats.timing import Outside, TimedProfile, sum_rows
from probe.pipeline.runs.boundaries import Candidate, StampedRun, longest_rising, site_totals, stamping_seconds
from probe.tracers.lives import Lives, starting

MOST_BAD_BOUNDARIES = 0.05
"""Share of boundaries that may fail before the program counts as diverged."""

MOST_UNMARKED = 0.2
"""Share of boundaries that may be left without a marker that repeats itself."""

LEAST_AGREEING = 0.5
"""Share of markers that must be executed equally often in both runs: other control flow can still fire in order."""

MOST_SHIFT = 0.02
"""Intervals by which a marker may have fired too early or too late at the run's end. Such a shift is tolerated where
an instruction-exact tracer ran the program with other addresses and another environment, and of witnesses."""

_COLLECTOR = "libgc.so"
"""The collector of Boehm, Demers and Weiser. How many threads mark, its documentation says, GC_MARKERS tells."""


class NotRepeated(Diverged):
    """Its markers say that a run did not repeat the traced one. `partly`: most boundaries were where they had been, and
    the others not: the run left the traced one's way and came back, or left it late. `remade`: it had been made again
    already, with other markers."""

    def __init__(self, said: str, *, partly: bool = False) -> None:
        super().__init__(said)
        self.partly = partly
        self.remade = False


def _shifts(profile: Profile, run: StampedRun) -> dict[int, float]:
    """By column: intervals that a marker lagged behind, or was ahead of, the traced run when the run ended."""
    totals = site_totals(profile)
    return {
        column: abs(executions - int(totals[column])) * profile.intervals / max(int(totals[column]), 1)
        for column, executions in run.totals.items()
        if column not in run.beside
    }


def stray_columns(profile: Profile, run: StampedRun) -> set[int]:
    """Markers of an instruction-exact trace whose counts natively are too different to place a boundary by.

    The native tracer counted natively itself: there, a marker that fires in order is in its place. Where threads share
    the work, the first one's part of it may differ: a marker must agree.
    """
    if profile.first is not None:
        return {column for column, shift in _shifts(profile, run).items() if shift > 0}
    if profile.unit != INSTRUCTIONS:
        return set()
    return {column for column, shift in _shifts(profile, run).items() if shift > MOST_SHIFT}


def _is_drawn(profile: Profile, shifts: dict[int, float]) -> bool:
    """Whether markers that differ do so by far. Half of them is what a program leaves that draws its way between two
    sites in each step of a steady loop."""
    native = profile.first is None and profile.unit != INSTRUCTIONS
    return native and any(shift > MOST_SHIFT for shift in shifts.values())


def merge_bad_boundaries(profile: Profile, wanted: list[Candidate], run: StampedRun) -> TimedProfile:
    """Choose each boundary's earliest stamp, by a marker that was executed equally often if there is such a stamp; join
    intervals across boundaries without a sound one."""
    inner = profile.intervals - 1
    stray, shifts = stray_columns(profile, run), _shifts(profile, run)
    best = _earliest(wanted, run, {c.column for c in wanted if shifts.get(c.column) == 0} - stray, inner)
    others = _earliest(wanted, run, {c.column for c in wanted} - stray, inner)
    best = np.where(best < 0, others, best)
    marked = np.zeros(inner, dtype=bool)
    marked[[c.boundary - 1 for c in wanted]] = True
    unmarked, missing = int((~marked).sum()), int((marked & (best < 0)).sum())
    stamped = np.flatnonzero(best >= 0)
    rising = stamped[longest_rising(run.wall[best[stamped]])]
    out_of_order = len(stamped) - len(rising)
    if inner and missing + out_of_order > MOST_BAD_BOUNDARIES * inner:
        raise NotRepeated(
            f"{profile.program.name}: the timing run did not repeat the traced run: of {inner} interval boundaries "
            f"{missing} were not reached and {out_of_order} came out of order. {why_unlike(profile)}",
            partly=missing + out_of_order < inner / 2,
        )
    keep = best[rising]
    wall = np.concatenate([[run.started], run.wall[keep], [run.ended]])
    cpu = np.concatenate(
        [[run.started_cpu], run.cpu[keep], [max(run.ended_cpu, run.cpu[keep][-1] if len(keep) else 0.0)]]
    )
    kernel = np.diff(np.concatenate([[np.nan], run.kernel[keep], [np.nan]])) if len(run.kernel) else np.zeros(0)
    lives = Lives.of(run.children, run.ended)
    first = np.concatenate([[0], rising + 1, [profile.intervals]]).astype(np.int64)
    own = lives.own_seconds(wall, np.diff(cpu))
    placing = {c.column for c in wanted}
    shifted = sum(shift > 0 and profile.unit == INSTRUCTIONS and c not in stray for c, shift in shifts.items())
    agreeing = shifted + sum(shift <= (0 if c in placing else MOST_SHIFT) for c, shift in shifts.items())
    if agreeing < LEAST_AGREEING * len(shifts) or (
        agreeing == LEAST_AGREEING * len(shifts) and _is_drawn(profile, shifts)
    ):
        raise NotRepeated(
            f"{profile.program.name}: the timing run did not repeat the traced run: of {len(shifts)} markers only "
            f"{agreeing} were executed equally often. {why_unlike(profile)}"
        )
    if len(keep) < 2:
        raise Diverged(f"{profile.program.name}: no interval boundary could be marked")
    return TimedProfile(
        counts=sum_rows(profile.counts, first),
        seconds=own,
        cpu=np.diff(cpu),
        beside=lives.beside_threads(run.active, wall) | starting(profile.program.name, run.starts, wall),
        outside=_outside(run, run.ended - run.started - float(own.sum())),
        columns=np.array([wanted[i].column for i in keep], dtype=np.int64),
        executions=np.array([wanted[i].count for i in keep], dtype=np.int64),
        first_row=first,
        wall_seconds=run.ended - run.started + run.others.wall,
        unmarked=unmarked,
        missing=missing,
        out_of_order=out_of_order,
        agreeing=agreeing,
        compared=len(shifts),
        shifted=shifted,
        kernel=kernel,
        resident=run.resident,
        stamping=np.add.reduceat(stamping_seconds(profile, {*placing, *run.totals}), first[:-1]),
        blocked_share=run.blocked_share,
        waited_share=run.waited_share,
        loading=run.started_cpu - run.executed_cpu,
    )


def _earliest(wanted: list[Candidate], run: StampedRun, columns: Collection[int], inner: int) -> IntArray:
    """Of each inner boundary the candidate of these columns that was stamped first, by its position; -1: none was."""
    best = np.full(inner, -1, dtype=np.int64)
    for i, c in enumerate(wanted):
        chosen = best[c.boundary - 1]
        if c.column in columns and np.isfinite(run.wall[i]) and (chosen < 0 or run.wall[i] < run.wall[chosen]):
            best[c.boundary - 1] = i
    return best


def _outside(run: StampedRun, beside: float) -> Outside:
    """`beside`: seconds of the timing run, from its start to its end, that were not the program's own."""
    return replace(run.others, wall=run.others.wall + max(0.0, beside)) if run.others.commands else Outside()


def _has_haskell(image: Path) -> bool:
    """Whether an executable or library is the runtime of GHC, which takes options from the variable GHCRTS."""
    with (
        contextlib.suppress(OSError, ValueError),
        image.open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as program,
    ):
        return program.find(b"GHCRTS") >= 0
    return False


def why_unlike(profile: Profile) -> str:
    """What makes runs differ, and what to do."""
    if profile.unit == INSTRUCTIONS:
        return (
            "Under its tracer the program has other addresses, another environment and processor features, and its "
            "control flow depends on one of them, or on time, random numbers or the process number: fix the seed or "
            "the input, or use --tracer native."
        )
    if profile.first is not None:
        shared = "Its threads take work as it comes, or it depends on time or random numbers"
        if any(_COLLECTOR in Path(path).name for path, _ in profile.images):
            return f"{shared}; its garbage collector may be those threads: set GC_MARKERS=1 in the environment."
        return f"{shared}: give each its own part."
    if any(_has_haskell(Path(path)) for path, _ in profile.images):
        return (
            "It has the runtime of GHC, which changes threads by a timer: set GHCRTS=-V0 in the environment, which "
            "stops the timer where the program is linked with -rtsopts. Or it depends on time or random numbers."
        )
    return (
        "Its control flow depends on something that changes between runs (time, random numbers, process number, "
        "addresses): fix the seed or the input."
    )
