# SPDX-License-Identifier: Apache-2.0
"""Select the phases of the run, their representatives and weights (probe/selection), and how long intervals are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from checkpoint.errors import ProgramTooShort, Unpredictable
from probe.formats.arrays import BoolArray, FloatArray
from probe.formats.checkpoints import EarlyCheckpoints
from probe.formats.choices import RANDOM, SECONDS
from probe.formats.intervals import interval_times, vectors, work
from probe.formats.selection import Selection
from probe.formats.timing import TimedProfile, join_intervals
from probe.pipeline.runs.plan import FullRuns
from probe.pipeline.stage import Build
from probe.prediction.limits import TRACED_UNLIKE, doubts_of_code, doubts_of_selection, unlike_share
from probe.prediction.sharing import doubts_of_sharing, notes_of_sharing, sharing_of
from probe.progress import Report
from probe.selection.select import select_phases
from probe.selection.simpoint import select_points
from probe.tracers.lives import refuse_without_room
from probe.tracers.native import FINE_INTERVAL, JOINED_FINE

NAME = "select"
OPTIONS = ("selection",)
FILES = ("selection.json", "joined.json")

_RESULT, _JOINED = "selection.json", "joined.json"
FEWEST_INTERVALS = 4
"""The first and the last interval cannot be captured, and one phase needs a member to choose from."""

ENOUGH_INTERVALS = 100
"""Where the length of intervals is ours to choose, they are no longer than gives so many."""

HELD_OUT_WORSE, UNLIKE_WORSE, MERGED_WORSE = 0.01, 0.02, 0.05
"""What phases may be worse by where they spare a run of the program: their error on intervals held out, the share of
the time in intervals of other code than those that stand for them, and in strata that joined others."""

JOINED = (JOINED_FINE, 2, 1)
"""How many of the intervals as traced are tried as one, from the longest on."""


def runs(_plan: FullRuns) -> int:
    """None."""
    return 0


def run(build: Build, report: Report) -> None:
    """Choose by code and time, or take the points chosen elsewhere. Raises ProgramTooShort, ProbeError."""
    profile, timed = build.profile, build.timed
    if timed.intervals < FEWEST_INTERVALS:
        raise ProgramTooShort(
            f"{build.program.argv[0]}: only {timed.intervals} intervals could be told apart; "
            + _why_so_few(profile.intervals, timed.missing + timed.out_of_order)
        )
    if build.options.points:
        known = _known(build, timed)
        build.selection, warnings = select_points(
            build.options.points, timed.first_row, *known, build.options.selection
        )
        build.warnings += warnings
        return
    build.joined, build.selection = best_length(build)
    if build.early is not None:
        captured = _among_captured(build, build.early)
        if captured is not None:
            build.joined, build.selection = build.early.together, captured
        else:
            build.display.note(
                "no checkpoints of the timing run stand for all phases: they are taken in a run of their own"
            )
    _take(build)


def _among_captured(build: Build, early: EarlyCheckpoints) -> Selection | None:
    """Phases that intervals with a checkpoint stand for; None where those just chosen among all are better."""
    timed = join_intervals(build.timed, early.together)
    there = np.zeros(timed.intervals, dtype=bool)
    there[[one.interval for one in early.captured]] = True
    rows, done, seconds, eligible = _known(build, timed)
    if not (there & eligible).any() or build.options.selection.method == RANDOM:
        return None
    selection = select_phases(rows, done, seconds, eligible, build.options.selection, captured=there)
    best, best_timed = build.selection, join_intervals(build.timed, build.joined)
    if _judged(build, timed, selection) > _judged(build, best_timed, best):
        return None
    if (selection.held_out_error or 0.0) > (best.held_out_error or 0.0) + HELD_OUT_WORSE:
        return None
    if _merged(selection) > _merged(best) + MERGED_WORSE:
        return None
    if _unlike(build, timed, selection) > _unlike(build, best_timed, best) + UNLIKE_WORSE:
        return None
    return selection


def _merged(selection: Selection) -> float:
    """Share of the time in strata without an interval that stands for them."""
    return sum(merge.time_share for merge in selection.merges)


def _unlike(build: Build, timed: TimedProfile, selection: Selection) -> float:
    return unlike_share(selection, vectors(build.profile, timed), interval_times(timed, build.reference))


def _known(build: Build, timed: TimedProfile) -> tuple[sp.csr_array, FloatArray, FloatArray, BoolArray]:
    """Vectors, work and times of the intervals, and which of them can be captured."""
    eligible = _eligible(build, timed)
    if not eligible.any():
        refuse_without_room(build.program.argv[0], timed.outside.commands, timed.intervals)
    return (
        vectors(build.profile, timed),
        work(build.profile, timed),
        interval_times(timed, build.reference),
        eligible,
    )


def _eligible(build: Build, timed: TimedProfile) -> BoolArray:
    eligible: BoolArray = _room_for(timed, build.options.warmup).copy()
    eligible[[0, -1]] = False
    return eligible


def lengths(build: Build) -> list[int]:
    """How many of the traced intervals to try as one, in this order: 1 alone where the user chose the length."""
    if build.options.interval is not None or build.profile.unit != SECONDS or build.profile.interval > FINE_INTERVAL:
        return [1]
    longest = build.timed.intervals // ENOUGH_INTERVALS
    return [together for together in JOINED if together <= max(longest, 1)]


def best_length(build: Build) -> tuple[int, Selection]:
    """The longest intervals whose phases leave no doubt, or those that leave the least."""
    best: tuple[tuple[bool, float], int, Selection] | None = None
    for together in lengths(build):
        timed = join_intervals(build.timed, together)
        if together > 1 and not _eligible(build, timed).any():
            continue  # shorter ones may find room between children
        selection = select_phases(*_known(build, timed), build.options.selection)
        refused, doubts = _judged(build, timed, selection)
        order = refused, selection.held_out_error or 0.0
        if best is None or order < best[0]:
            best = order, together, selection
        if not refused and not doubts:
            break
    assert best is not None
    return best[1:]


def refuse_unlike(traced: Build) -> None:
    """Raise Unpredictable where the traced run alone shows that it repeats itself too little, whatever the intervals'
    length. `traced`: as the traced run shows the build (probe/pipeline/at_once.py)."""
    refusal: Unpredictable | None = None
    for together in lengths(traced):
        timed = join_intervals(traced.timed, together)
        selection = select_phases(*_known(traced, timed), traced.options.selection)
        try:
            doubts_of_code(selection, vectors(traced.profile, timed), timed.seconds, TRACED_UNLIKE)
            return
        except Unpredictable as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal


def _judged(build: Build, timed: TimedProfile, selection: Selection) -> tuple[bool, int]:
    """Whether these phases would be refused, and how many doubts there are."""
    times = interval_times(timed, build.reference)
    try:
        doubts = doubts_of_selection(selection, vectors(build.profile, timed), times, build.reference)
    except Unpredictable:
        return True, 0
    return False, len(doubts)


def _take(build: Build) -> None:
    """Go on with intervals of the chosen length."""
    build.profile = replace(build.profile, interval=build.profile.interval * build.joined)
    build.timed = join_intervals(build.timed, build.joined)


def _room_for(timed: TimedProfile, warmup: int | str) -> BoolArray:
    """Where a phase can be placed, (N,): no child lives in it, nor in the interval before, if there is to be a warm-up
    and such intervals are to be had."""
    alone = timed.alone
    warmed = alone & np.concatenate([[True], alone[:-1]])
    return warmed if warmup != 0 and warmed[1:-1].any() else alone


def _why_so_few(traced: int, lost: int) -> str:
    if lost and traced >= FEWEST_INTERVALS:
        return (
            f"{lost} of the boundaries between the {traced} traced ones were lost in the timing "
            "run: the program does not repeat itself"
        )
    return "give it more work or a shorter --interval"


def save(build: Build) -> None:
    build.folder.write_json(_RESULT, build.selection.to_json())
    build.folder.write_json(_JOINED, {"intervals": build.joined})


def load(build: Build) -> None:
    build.selection = build.folder.read(_RESULT, Selection.from_json)
    # A folder of an earlier version has no such file: its intervals are as traced.
    if build.folder.file(_JOINED).exists():
        build.joined = build.folder.read(_JOINED, lambda data: int(data["intervals"]))
    _take(build)


def doubts(build: Build) -> list[str]:
    """Doubts about the phases, and about how threads share the work. Notes the latter."""
    times = interval_times(build.timed, build.reference)
    found = doubts_of_selection(build.selection, vectors(build.profile, build.timed), times, build.reference)
    sharing = sharing_of(build.profile, build.timed)
    if sharing is not None:
        build.notes += notes_of_sharing(sharing, build.selection.phases)
        found += doubts_of_sharing(sharing)
    return found
