# SPDX-License-Identifier: Apache-2.0
"""The timing run: native time of every interval, and proof that the markers fire in the traced order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from checkpoint.errors import Diverged, NodeUnfit, ProgramTooShort, ProgramUnsupported
from checkpoint.process.program import Streams
from probe.contents.captured_files import CAPTURE_RUN
from probe.foreign_text import printable
from probe.formats.checkpoints import EarlyCheckpoints
from probe.formats.choices import INSTRUCTIONS, SECONDS
from probe.formats.intervals import outside_share
from probe.formats.profile import Profile
from probe.formats.timing import IntervalRun, TimedProfile, load_timing, save_timing
from probe.pipeline.at_once import EarlyCapture, as_traced, there
from probe.pipeline.outputs import compare_run, keep_printed_once, note_run, output_streams
from probe.pipeline.reference import early_run_names, seen_in_timing_run, seen_in_trace
from probe.pipeline.runs.boundaries import Candidate, StampedRun, candidates, cheap_boundaries, split
from probe.pipeline.runs.plan import EARLY_RUNS, FullRuns, made_again
from probe.pipeline.runs.sound_boundaries import (
    MOST_SHIFT,
    MOST_UNMARKED,
    NotRepeated,
    merge_bad_boundaries,
    stray_columns,
)
from probe.pipeline.runs.stamped import stamped_run
from probe.pipeline.runs.straying import Straying
from probe.pipeline.runs.witnesses import (
    agreeing_alone,
    as_often,
    refuse_unlike_sample,
    sample,
    survey,
    unlike_the_sample,
    witnesses,
)
from probe.pipeline.select import FEWEST_INTERVALS, best_length, refuse_unlike
from probe.pipeline.stage import Build
from probe.pipeline.trace import save as save_trace
from probe.pipeline.trace import trace_again, trace_with_others
from probe.prediction.limits import doubts_of_outside, doubts_of_reference
from probe.progress import Report
from probe.work_folder import link_or_copy

NAME = "validate"
OPTIONS: tuple[str, ...] = ()
FILES = ("timing.npz", "early.json", "validate.stdout", "validate.stderr", "validate.files.json", "timed-again.*")

_RESULT, _EARLY = "timing.npz", "early.json"
AGAIN = "timed-again"

_NAMES_LENGTH = 120

MARKER_ROUNDS = 3
"""Timing runs at most, each with other candidates in place of those that did not repeat."""


def validate(
    profile: Profile,
    *,
    streams: Streams,
    cpu: int | None = None,
    progress: Callable[[float], None] | None = None,
    native_seconds: float | None = None,
    once_more: Callable[[NotRepeated], bool] | None = None,
    as_given: Callable[[], bool] = lambda: True,
) -> TimedProfile:
    """Time every interval natively. Raises Diverged where the run does not repeat the traced one.

    `native_seconds`: how long the program takes by itself; None where the tracer did not slow it down. `once_more`:
    whether a run that diverged so is made again, which it is once; None: it is not. `as_given`: whether a native run
    of one thread, made again with other markers, would find the files that the program was given.
    """
    timed = partial(
        _timed, profile, streams=streams, cpu=cpu, progress=progress, native_seconds=native_seconds, as_given=as_given
    )
    try:
        return timed()
    except NotRepeated as error:
        if error.remade or once_more is None or not once_more(error):
            raise
    _remove(streams)
    return timed(to_its_end=True)


def _timed(
    profile: Profile,
    *,
    streams: Streams,
    cpu: int | None,
    progress: Callable[[float], None] | None,
    native_seconds: float | None,
    as_given: Callable[[], bool],
    to_its_end: bool = False,
) -> TimedProfile:
    """`to_its_end`: the first run is not stopped where it strays, and tells which other places could mark."""
    avoid, rounds, sampled = set[int](), 0, tuple[int, ...]()
    exact, alone = profile.unit == INSTRUCTIONS, profile.unit != INSTRUCTIONS and profile.first is None
    try:
        while True:
            rounds += 1
            if avoid:
                _remove(streams)
            wanted = candidates(profile, native_seconds=native_seconds, avoid=avoid)
            placing = {c.column for c in wanted}
            counted = witnesses(profile, wanted, native_seconds=native_seconds, avoid=avoid)
            tells = to_its_end and rounds == 1
            # Later ones would be of what is left: the places that repeat are markers then.
            sampled = sampled or sample(profile, {*counted, *placing}, native_seconds=native_seconds)
            surveys = (bool(avoid) or tells) and not exact
            others = survey(profile, avoid, native_seconds=native_seconds) if surveys else ()
            beside = frozenset({*sampled, *others} - {*placing, *counted})
            run = stamped_run(
                profile, wanted, streams=streams, cpu=cpu, progress=progress, counted={*counted, *beside},
                look=None if tells else Straying(profile, wanted).look,
            )  # fmt: skip
            stray = stray_columns(profile, run) | unlike_the_sample(profile, placing, sampled, run)
            run = replace(run, beside=beside)
            kept = {c.boundary for i, c in enumerate(wanted) if c.column not in stray and np.isfinite(run.wall[i])}
            last = rounds == MARKER_ROUNDS or not stray & placing or (alone and not as_given())
            if last or alone or kept == {c.boundary for c in wanted}:
                try:
                    return _settled(profile, wanted, run, sampled if avoid else ())
                except NotRepeated:
                    if last:
                        raise
            avoid |= stray if exact else as_often(profile, stray)
    except NotRepeated as error:
        error.remade = bool(avoid)
        raise


def _settled(profile: Profile, wanted: list[Candidate], run: StampedRun, sampled: Collection[int]) -> TimedProfile:
    """The intervals that hold. `sampled`: places that must hold besides, since the run has other markers than the
    cheapest; of these, such alone place boundaries as were executed exactly as often. Raises Diverged."""
    if not sampled:
        return merge_bad_boundaries(profile, wanted, run)
    timed = merge_bad_boundaries(profile, *agreeing_alone(profile, wanted, run))
    refuse_unlike_sample(profile, timed, sampled, run)
    return timed


def _remove(streams: Streams) -> None:
    for path in (streams.stdout, streams.stderr):
        path.unlink(missing_ok=True)


def interval_run(profile: Profile, timed: TimedProfile, folder: Path, name: str, cpu: int | None) -> IntervalRun:
    """Run the program as plain runs are, but for stamps where they cost nothing; its output stays in `folder` under
    `name`. Raises ProgramFailed, Diverged."""
    at = cheap_boundaries(profile, timed)
    wanted = [Candidate(int(b) + 1, int(timed.columns[b]), int(timed.executions[b])) for b in at]
    return split(timed, at, stamped_run(profile, wanted, streams=output_streams(folder, name), cpu=cpu))


def runs(plan: FullRuns) -> int:
    """The timing run, and plain ones with stamps for a short program; further timing runs where markers do not
    repeat."""
    return 1 + plan.again


def run(build: Build, report: Report) -> None:
    """One timing run, or more where markers stray; for a short program plain ones with stamps besides. Where the first
    of several threads tells no places, and others could, the program is traced again, and they do; and where the first
    run has left files, which later ones may read. Raises Diverged, ProgramFailed, Unpredictable."""

    def progress(seconds: float) -> None:
        report(seconds / build.reference.wall[0])

    try:
        _time(build, progress)
        if build.profile.could_mark and build.timed.unmarked > MOST_UNMARKED * build.profile.intervals:
            _time_by_others(build, progress)
    except Diverged as error:
        if build.profile.could_mark:
            _time_by_others(build, progress, error)
        elif left := build.given.left():
            _time_with_what_was_left(build, progress, left, error)
        else:
            raise
    note_run(build.folder.path, NAME, build.profile.written)
    again = [
        interval_run(build.profile, build.timed, build.folder.path, AGAIN, build.cpu) for _ in range(build.plan.again)
    ]
    if again:
        keep_printed_once(build.folder.path)
    build.reference = seen_in_timing_run(build.reference, build.timed, build.program.threads)
    build.timed = build.timed.with_runs(again)


def _time_by_others(build: Build, progress: Callable[[float], None], refused: Diverged | None = None) -> None:
    """Trace once more, with others marking, and time that. Where that cannot be, all is as before: with what the first
    thread tells, or without anything, and `refused` is raised."""
    before = (build.program, build.profile, build.reference, list(build.notes))
    timed = build.timed if refused is None else None
    try:
        trace_with_others(build)
        build.reference = seen_in_trace(build.profile)
        _time(build, progress)
    except (Diverged, NodeUnfit, ProgramTooShort, ProgramUnsupported) as error:
        build.program, build.profile, build.reference, build.notes = before
        save_trace(build)
        if timed is None:
            assert refused is not None
            raise refused from error
        build.timed = timed
        build.notes.append(f"traced once more, since the first thread tells few places, and left it at these: {error}")


def _time_with_what_was_left(
    build: Build, progress: Callable[[float], None], left: list[str], refused: Diverged
) -> None:
    """Trace once more, now that these files are there, and time that. Where that does not repeat itself either,
    `refused` is raised."""
    names = printable(", ".join(left), most=_NAMES_LENGTH)
    name = build.program.argv[0]
    build.display.note(f"{name}: did not repeat its first run, which has left {names}: it is traced once more")
    try:
        trace_again(build, build.program)
        build.reference = seen_in_trace(build.profile)
        _time(build, progress)
    except (Diverged, ProgramTooShort, ProgramUnsupported) as error:
        raise refused from error
    build.notes.append(
        f"its first run was another than the later ones, which find what it has left ({names}): the prediction is of "
        "a run that finds that"
    )


def _time(build: Build, progress: Callable[[float], None]) -> None:
    expected = build.reference.wall[0]
    early = _seen_in_trace(build)
    if early is not None:
        _time_and_capture(build, early, progress)
    else:
        build.timed = validate(
            build.profile,
            streams=output_streams(build.folder.path, NAME),
            cpu=build.cpu,
            progress=progress,
            native_seconds=expected,
            once_more=partial(_once_more, build, expected),
            as_given=lambda: not build.given.changed(),
        )


def _once_more(build: Build, seconds: float, error: NotRepeated) -> bool:
    """Whether to make the timing run again, which takes so long. Says so."""
    if build.profile.could_mark or not made_again(seconds, error.partly):
        return False
    # A program that works in place finds what its last run left.
    if build.given.changed():
        return False
    said = f"{build.program.argv[0]}: a timing run did not repeat the traced run, and was made once more"
    build.display.note(said)
    build.notes.append(said)
    return True


def _seen_in_trace(build: Build) -> EarlyCapture | None:
    """Where to take checkpoints in the timing run; None where the traced run does not show it, or they are taken apart.
    Raises Unpredictable where that run shows that it does not repeat itself."""
    if build.profile.unit != SECONDS or build.options.points:
        return None
    wanted = candidates(build.profile)
    traced = as_traced(build, wanted)
    if traced.timed.intervals < FEWEST_INTERVALS:
        return None
    refuse_unlike(traced)
    return EarlyCapture(traced, wanted, best_length(traced)) if build.plan.at_once else None


def _time_and_capture(build: Build, early: EarlyCapture, progress: Callable[[float], None]) -> None:
    folder = build.folder.path
    streams = output_streams(folder, CAPTURE_RUN)
    run = stamped_run(
        build.profile, early.candidates, streams=streams, cpu=build.cpu, progress=progress, halts=early,
        counted=witnesses(build.profile, early.candidates), look=Straying(build.profile, early.candidates).look,
    )  # fmt: skip
    build.timed = early.undisturbed(merge_bad_boundaries(build.profile, early.candidates, run), run)
    build.early = early.checkpoints(build.timed)
    # A later run for checkpoints has files of its own under these names.
    timing = output_streams(folder, NAME)
    for written, kept in ((streams.stdout, timing.stdout), (streams.stderr, timing.stderr)):
        link_or_copy(written, kept)


def save(build: Build) -> None:
    save_timing(build.timed, build.folder.file(_RESULT))
    if build.early is not None:
        build.folder.write_json(_EARLY, build.early.to_json())


def load(build: Build) -> None:
    build.timed = load_timing(build.folder.file(_RESULT))
    if build.folder.file(_EARLY).exists():
        build.early = there(build.folder.read(_EARLY, EarlyCheckpoints.from_json), build.folder.path)
    build.reference = seen_in_timing_run(build.reference, build.timed, build.program.threads)


def doubts(build: Build) -> list[str]:
    """Doubts about boundaries, and about what the timing run printed and wrote if plain runs came before it; about how
    the program ran if none is to come."""
    timed = build.timed
    early = early_run_names(build.reference)
    found = [] if build.plan.early else doubts_of_reference(build.reference)
    if len(early) >= EARLY_RUNS:
        compared = compare_run(build.folder.path, early, NAME, "the timing run")
        build.notes += compared.notes
        found += compared.warnings
    if timed.outside.commands:
        share = outside_share(timed, build.reference)
        found += doubts_of_outside(share, timed.outside.commands)
        build.notes.append(
            f"{len(timed.outside.commands)} other processes or threads, its own or its wrapper's, have {share:.2%} of "
            "the time: no phase shows it, and the prediction scales it like the rest"
        )
    if timed.missing or timed.out_of_order:
        found.append(
            f"{timed.missing} interval boundaries were not reached and {timed.out_of_order} came out of order in "
            "the timing run; their intervals were joined"
        )
    if timed.shifted:
        found.append(
            f"{timed.shifted} of {timed.compared} markers were executed a little more or less often natively than "
            f"in the traced run, which moves interval boundaries by less than {MOST_SHIFT:.0%} of an interval"
        )
    return found
