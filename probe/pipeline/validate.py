# SPDX-License-Identifier: Apache-2.0
"""The timing run: native time of every interval, and proof that the markers fire in the traced order.

Every boundary's candidates are stamped inside the process. Where no candidate of a boundary fired, or it fired out
of order, the intervals on both sides become one; too many of those, and the program does not repeat itself.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from checkpoint.errors import Diverged
from checkpoint.event import STAMP
from checkpoint.process.exit_status import exit_status
from checkpoint.process.loader import LoadWatch
from checkpoint.process.plain_run import run_delay
from checkpoint.process.program import Streams
from checkpoint.process.tracee import Tracee, What
from checkpoint.process.waiting import peak_resident, process_cpu
from checkpoint.stubs.encode import Event
from checkpoint.stubs.markers import Marker, MarkerSet
from probe.formats.choices import INSTRUCTIONS
from probe.formats.intervals import outside_share
from probe.formats.profile import Profile
from probe.formats.timing import IntervalRun, Outside, TimedProfile, load_timing, save_timing, sum_rows
from probe.pipeline.boundaries import (
    Candidate,
    StampedRun,
    candidates,
    cheap_boundaries,
    longest_rising,
    marker_of,
    site_counts,
    split,
    stamping_seconds,
)
from probe.pipeline.outputs import compare_run, note_run, output_streams
from probe.pipeline.reference import early_run_names, seen_in_timing_run
from probe.pipeline.runs.plan import EARLY_RUNS, FullRuns
from probe.pipeline.stage import Build
from probe.prediction.limits import doubts_of_outside, doubts_of_reference
from probe.progress import Report
from probe.tracers.lives import Lives, starting

NAME = "validate"
OPTIONS: tuple[str, ...] = ()
FILES = ("timing.npz", "validate.stdout", "validate.stderr", "validate.files.json", "timed-again.*")

_RESULT = "timing.npz"
AGAIN = "timed-again"

MOST_BAD_BOUNDARIES = 0.05
"""Share of boundaries that may fail before the program counts as diverged."""

LEAST_AGREEING = 0.5
"""Share of markers that must be executed equally often in both runs: other control flow can still fire in order."""

MOST_SHIFT = 0.02
"""Intervals by which a marker may have fired too early or too late at the run's end, where an instruction-exact tracer
ran the program with other addresses and another environment: so small a shift is tolerated."""

MARKER_ROUNDS = 3
"""Timing runs, each with other candidates in place of those that did not repeat."""

_PROGRESS_SECONDS = 0.5


def stamped_run(
    profile: Profile,
    wanted: list[Candidate],
    *,
    streams: Streams,
    cpu: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> StampedRun:
    """Run the program once more, untraced but for a stamp at every candidate."""
    events: dict[Marker, dict[int, Event]] = defaultdict(dict)
    for c in wanted:
        events[marker_of(profile, c.column)][c.count] = Event(c.count, STAMP)
    with Tracee.start(profile.program, streams, cpu=cpu) as tracee:
        markers, status, (started, started_cpu, delayed, held) = _run_to_exit(
            tracee, {m: list(e.values()) for m, e in events.items()}, progress
        )
        ended, waited = _now(), run_delay(tracee.pid) - delayed
        stamps = _stamps(markers, events)
        resident = peak_resident(tracee.pid)
        columns = {c.column for c in wanted}
        totals = {c: markers.executions(m) for c in columns if (m := marker_of(profile, c)) not in markers.missing()}
        tracee.resume()
        tracee.wait()
        ending = tracee.finish()
        own, others = _cpu_seconds(tracee, ending.cpu)
        children, commands = tuple(tracee.children.processes()), _commands(tracee)
        active = tuple(tracee.helpers.active)
        starts = tuple(tracee.team.started) if tracee.team else ()
    if os.WIFSIGNALED(status):
        exit_status(profile.program, status, streams)
    exit_status(profile.program, ending.status, streams, profile.exit_status)
    found = [stamps.get((marker_of(profile, c.column), c.count)) for c in wanted]
    return StampedRun(
        wall=np.array([np.nan if s is None else s.wall for s in found]),
        cpu=np.array([np.nan if s is None else s.cpu for s in found]),
        kernel=np.array([np.nan if s is None else s.kernel for s in found]),
        started=started,
        ended=ended,
        ended_cpu=own,
        children=children,
        active=active,
        starts=starts,
        others=Outside(ending.around, others, commands),
        totals=totals,
        started_cpu=started_cpu,
        executed_cpu=tracee.executed_cpu,
        resident=resident,
        waited=waited,
        held=held,
    )


def _cpu_seconds(tracee: Tracee, whole: float) -> tuple[float, float]:
    """Of the ended program's first thread, and of all others: `whole` has the processes that were waited for."""
    others = tracee.children.cpu() + tracee.helpers_cpu if tracee.root is None else math.inf
    others = max(0.0, min(whole - tracee.own_cpu, others))
    return whole - others, others


def _commands(tracee: Tracee) -> tuple[str, ...]:
    """What the other processes executed, and the other threads."""
    around = [child for child in tracee.around.processes() if child.pid != tracee.pid]
    helpers = () if tracee.team else tracee.helpers.names()
    return (*(child.command for child in (*around, *tracee.children.processes())), *helpers)


def _now() -> float:
    return time.monotonic()


def _run_to_exit(
    tracee: Tracee, events: dict[Marker, list[Event]], progress: Callable[[float], None] | None
) -> tuple[MarkerSet, int, tuple[float, float, float, float]]:
    """Let the program run to its exit event, where its memory can still be read.

    Returns the markers, the exit status, when the program began (monotonic clock, its own CPU seconds and those that it
    had waited for a processor), and the seconds for which it was held afterwards.
    """
    while True:
        markers, watch = MarkerSet(tracee, events), LoadWatch(tracee)
        watch.arm()
        markers.install_new(watch)
        began = _now(), process_cpu(tracee.pid), run_delay(tracee.pid)
        tracee.resume()
        replaced, held = False, 0.0
        while not replaced:
            occurrence = tracee.wait(_PROGRESS_SECONDS)
            if occurrence.what is What.TIMEOUT:
                if progress:
                    progress(_now() - tracee.started_at)
                continue
            stopped = _now()
            if occurrence.what is What.EXITING:
                return markers, occurrence.status, (*began, held)
            if occurrence.what is What.ENDED:
                raise Diverged(f"{tracee.program.argv[0]}: was killed in its timing run (status {occurrence.status})")
            if occurrence.what is What.EXECUTED:
                tracee.run_to_entry()
                replaced = True
            elif occurrence.what is What.BREAKPOINT:
                watch.step_over()
                markers.install_new(watch)
                tracee.resume()
            else:
                tracee.resume()
            held += _now() - stopped


def _stamps(markers: MarkerSet, events: dict[Marker, dict[int, Event]]) -> dict[tuple[Marker, int], Any]:
    return {
        (marker, count): stamp
        for marker, wanted in events.items()
        for count, stamp in zip(sorted(wanted), markers.stamps(marker), strict=True)
    }


def validate(
    profile: Profile,
    *,
    streams: Streams,
    cpu: int | None = None,
    progress: Callable[[float], None] | None = None,
    native_seconds: float | None = None,
) -> TimedProfile:
    """Time every interval natively. Raises Diverged where the run does not repeat the traced one.

    `native_seconds`: how long the program takes by itself; None where the tracer did not slow it down.
    """
    avoid: set[int] = set()
    for _ in range(MARKER_ROUNDS):
        wanted = candidates(profile, native_seconds=native_seconds, avoid=avoid)
        run = stamped_run(profile, wanted, streams=streams, cpu=cpu, progress=progress)
        stray = _stray_columns(profile, run)
        kept = {c.boundary for i, c in enumerate(wanted) if c.column not in stray and np.isfinite(run.wall[i])}
        if not stray or kept == {c.boundary for c in wanted}:
            break
        avoid |= stray
        for path in (streams.stdout, streams.stderr):
            path.unlink(missing_ok=True)
    return merge_bad_boundaries(profile, wanted, run)


def _shifts(profile: Profile, run: StampedRun) -> dict[int, float]:
    """By column: intervals that a marker lagged behind, or was ahead of, the traced run when the run ended."""
    totals = np.asarray(site_counts(profile).sum(axis=0)).ravel()
    return {
        column: abs(executions - int(totals[column])) * profile.intervals / max(int(totals[column]), 1)
        for column, executions in run.totals.items()
    }


def _stray_columns(profile: Profile, run: StampedRun) -> set[int]:
    """Markers of an instruction-exact trace whose counts natively are too different to place a boundary by.

    The native tracer counted natively itself: there, a marker that fires in order is in its place. Where threads share
    the work, the first one's part of it may differ: a marker must agree.
    """
    if profile.first is not None:
        return {column for column, shift in _shifts(profile, run).items() if shift > 0}
    if profile.unit != INSTRUCTIONS:
        return set()
    return {column for column, shift in _shifts(profile, run).items() if shift > MOST_SHIFT}


def merge_bad_boundaries(profile: Profile, wanted: list[Candidate], run: StampedRun) -> TimedProfile:
    """Choose each boundary's earliest stamp; join intervals across boundaries without a sound one."""
    inner = profile.intervals - 1
    best = np.full(inner, -1, dtype=np.int64)
    stray = _stray_columns(profile, run)
    for i, c in enumerate(wanted):
        chosen = best[c.boundary - 1]
        if c.column not in stray and np.isfinite(run.wall[i]) and (chosen < 0 or run.wall[i] < run.wall[chosen]):
            best[c.boundary - 1] = i
    marked = np.zeros(inner, dtype=bool)
    marked[[c.boundary - 1 for c in wanted]] = True
    unmarked, missing = int((~marked).sum()), int((marked & (best < 0)).sum())
    stamped = np.flatnonzero(best >= 0)
    rising = stamped[longest_rising(run.wall[best[stamped]])]
    out_of_order = len(stamped) - len(rising)
    if inner and missing + out_of_order > MOST_BAD_BOUNDARIES * inner:
        raise Diverged(
            f"{profile.program.argv[0]}: the timing run did not repeat the traced run: of {inner} interval boundaries "
            f"{missing} were not reached and {out_of_order} came out of order. {_why(profile)}"
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
    shifts = _shifts(profile, run)
    shifted = sum(shift > 0 and profile.unit == INSTRUCTIONS and c not in stray for c, shift in shifts.items())
    agreeing = sum(shift == 0 for shift in shifts.values()) + shifted
    if agreeing < LEAST_AGREEING * len(shifts):
        raise Diverged(
            f"{profile.program.argv[0]}: the timing run did not repeat the traced run: of {len(shifts)} markers only "
            f"{agreeing} were executed equally often. {_why(profile)}"
        )
    if len(keep) < 2:
        raise Diverged(f"{profile.program.argv[0]}: no interval boundary could be marked")
    return TimedProfile(
        counts=sum_rows(profile.counts, first),
        seconds=own,
        cpu=np.diff(cpu),
        beside=lives.beside_threads(run.active, wall) | starting(profile.program.argv[0], run.starts, wall),
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
        stamping=np.add.reduceat(stamping_seconds(profile, wanted), first[:-1]),
        blocked_share=run.blocked_share,
        waited_share=run.waited_share,
        loading=run.started_cpu - run.executed_cpu,
    )


def _outside(run: StampedRun, beside: float) -> Outside:
    """`beside`: seconds of the timing run, from its start to its end, that were not the program's own."""
    return replace(run.others, wall=run.others.wall + max(0.0, beside)) if run.others.commands else Outside()


def _why(profile: Profile) -> str:
    """What makes runs differ, and what to do."""
    if profile.unit == INSTRUCTIONS:
        return (
            "Under its tracer the program has other addresses, another environment and processor features, and its "
            "control flow depends on one of them, or on time, random numbers or the process number: fix the seed or "
            "the input, or use --tracer native."
        )
    if profile.first is not None:
        return "Its threads take work as it comes, or it depends on time or random numbers: give each its own part."
    return (
        "Its control flow depends on something that changes between runs (time, random numbers, process number, "
        "addresses): fix the seed or the input."
    )


def interval_run(profile: Profile, timed: TimedProfile, folder: Path, name: str, cpu: int | None) -> IntervalRun:
    """Run the program as plain runs are, but for stamps where they cost nothing; its output stays in `folder` under
    `name`. Raises ProgramFailed, Diverged."""
    at = cheap_boundaries(profile, timed)
    wanted = [Candidate(int(b) + 1, int(timed.columns[b]), int(timed.executions[b])) for b in at]
    return split(timed, at, stamped_run(profile, wanted, streams=output_streams(folder, name), cpu=cpu))


def runs(plan: FullRuns) -> int:
    """The timing run, and plain ones with stamps for a short program; an exact trace may need further timing runs."""
    return 1 + plan.again


def run(build: Build, report: Report) -> None:
    """One timing run, or more where markers stray; for a short program plain ones with stamps besides. Raises Diverged,
    ProgramFailed."""
    expected = build.reference.wall[0]
    build.timed = validate(
        build.profile,
        streams=output_streams(build.folder.path, NAME),
        cpu=build.cpu,
        progress=lambda seconds: report(seconds / expected),
        native_seconds=expected,
    )
    note_run(build.folder.path, NAME, build.profile.written)
    again = [
        interval_run(build.profile, build.timed, build.folder.path, AGAIN, build.cpu) for _ in range(build.plan.again)
    ]
    build.reference = seen_in_timing_run(build.reference, build.timed)
    build.timed = build.timed.with_runs(again)


def save(build: Build) -> None:
    save_timing(build.timed, build.folder.file(_RESULT))


def load(build: Build) -> None:
    build.timed = load_timing(build.folder.file(_RESULT))
    build.reference = seen_in_timing_run(build.reference, build.timed)


def doubts(build: Build) -> list[str]:
    """Doubts about boundaries, and about what the timing run printed and wrote; about how the program ran where no
    plain run came before."""
    timed = build.timed
    early = early_run_names(build.reference)
    found = [] if early else doubts_of_reference(build.reference)
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
