# SPDX-License-Identifier: Apache-2.0
"""Select the phases of the run, their representatives and weights (probe/selection)."""

from __future__ import annotations

import numpy as np

from checkpoint.errors import ProgramTooShort
from probe.formats.arrays import BoolArray
from probe.formats.intervals import interval_times, vectors, work
from probe.formats.selection import Selection
from probe.formats.timing import TimedProfile
from probe.pipeline.stage import Build
from probe.prediction.limits import doubts_of_selection
from probe.progress import Report
from probe.selection.select import select_phases
from probe.selection.simpoint import select_points
from probe.tracers.lives import refuse_without_room

NAME = "select"
OPTIONS = ("selection",)
FILES = ("selection.json",)

_RESULT = "selection.json"
_FEWEST_INTERVALS = 4
"""The first and the last interval cannot be captured, and one phase needs a member to choose from."""


def run(build: Build, report: Report) -> None:
    """Choose by code and time, or take the points chosen elsewhere. Raises ProgramTooShort, ProbeError."""
    profile, timed = build.profile, build.timed
    if timed.intervals < _FEWEST_INTERVALS:
        raise ProgramTooShort(
            f"{build.program.argv[0]}: only {timed.intervals} intervals could be told apart; "
            + _why_so_few(profile.intervals, timed.missing + timed.out_of_order)
        )
    eligible = np.ones(timed.intervals, dtype=bool)
    eligible[[0, -1]] = False
    eligible &= _room_for(timed, build.options.warmup)
    if not eligible.any():
        refuse_without_room(build.program.argv[0], timed.outside.commands, timed.intervals)
    known = vectors(profile, timed), work(profile, timed), interval_times(timed, build.reference), eligible
    options = build.options
    if options.points:
        build.selection, warnings = select_points(options.points, timed.first_row, *known, options.selection)
        build.warnings += warnings
    else:
        build.selection = select_phases(*known, options.selection)


def _room_for(timed: TimedProfile, warmup: int | str) -> BoolArray:
    """Where a phase can be placed, (N,): no child lives in it, nor in the interval before, if there is to be a warm-up
    and such intervals are to be had."""
    alone = timed.alone
    warmed = alone & np.concatenate([[True], alone[:-1]])
    return warmed if warmup != 0 and warmed[1:-1].any() else alone


def _why_so_few(traced: int, lost: int) -> str:
    if lost and traced >= _FEWEST_INTERVALS:
        return (
            f"{lost} of the boundaries between the {traced} traced ones were lost in the timing "
            "run: the program does not repeat itself"
        )
    return "give it more work or a shorter --interval"


def save(build: Build) -> None:
    build.folder.write_json(_RESULT, build.selection.to_json())


def load(build: Build) -> None:
    build.selection = build.folder.read(_RESULT, Selection.from_json)


def doubts(build: Build) -> list[str]:
    times = interval_times(build.timed, build.reference)
    return doubts_of_selection(build.selection, vectors(build.profile, build.timed), times, build.reference)
