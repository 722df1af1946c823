# SPDX-License-Identifier: Apache-2.0
"""The native tracer: the real program, at nearly its own speed, with a counter at every block.

The program is never interrupted for an interval: the tracer copies its counters from another processor and takes
the difference of two copies as the interval's vector. Stubs that turn out hot are removed while it runs.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from checkpoint.errors import ProbeError, ProgramTooShort
from checkpoint.process.descriptors import written_files
from checkpoint.process.exit_status import exit_status, refuse_failed
from checkpoint.process.loader import LoadWatch
from checkpoint.process.plain_run import run_delay, running_time
from checkpoint.process.program import Program, Streams
from checkpoint.process.tracee import Occurrence, Tracee, What
from checkpoint.stubs.answers import Answers, repeat_answers
from checkpoint.stubs.counters import SiteCounters
from checkpoint.stubs.counts import Counts
from probe.formats.arrays import FloatArray, IntArray
from probe.formats.choices import NATIVE, SECONDS
from probe.formats.profile import Profile
from probe.tracers.columns import blocks_of, counts_of
from probe.tracers.hot_sites import (
    PLAIN_SECONDS,
    SAVING_SECONDS,
    Removal,
    Row,
    counted_share,
    dearest_sites,
    hottest_sites,
    leaving_seconds,
    sites_to_remove,
)
from probe.tracers.joining import MOST_ENTRIES, MOST_INTERVALS, join_neighbours
from probe.tracers.library_time import LibraryLooks
from probe.tracers.look_pauses import LookPauses
from probe.tracers.other_processes import judge_children, judge_early, judge_threads
from probe.tracers.outside_looks import OutsideLooks
from probe.tracers.team import FirstThread, joined_rows, refuse_orphans, row_of, working_threads
from probe.tracers.too_few import why_too_few

DEFAULT_INTERVAL = 0.05
FINE_INTERVAL = 0.01
"""Where no length is asked for, a run is cut so finely, and the selection joins what it does not need so fine."""

JOINED_FINE = round(DEFAULT_INTERVAL / FINE_INTERVAL)
MOST_FINE = 4000
"""Fine intervals of a run. A longer run has enough intervals of the default length, and gets those."""

SHORTEST_INTERVAL = 0.005
FEWEST_INTERVALS = 5

_SHORTEST_LOOK = 1e-4
_NONE = np.zeros(0, dtype=np.int64)

_SHARED, _TICKS = 0.1, 0.02
"""Where the program waited for more than this share of a look, rates are taken over so many seconds that it ran for."""

_NEARLY = 0.95
"""Share of an interval after which it is over: its length runs from within one look up to the begin of another."""

_LEAST_ADVANCE = 0.75
"""Share of an interval that the program must have had for itself before its row ends."""


@dataclass
class _Recording:
    """The run as it is being recorded."""

    tracee: Tracee
    watch: LoadWatch
    counters: SiteCounters
    interval: float
    fine: bool = False
    rows: list[Row] = field(default_factory=list)
    entries: int = 0
    seconds: list[float] = field(default_factory=list)
    before: Counts = field(default_factory=Counts)
    looked: Counts = field(default_factory=Counts)
    started: float = 0.0
    looked_at: float = 0.0
    waited_by_look: float = 0.0
    ran_by_look: float = 0.0
    row_started: float = 0.0
    waited_by_row: float = 0.0
    too_hot: IntArray = field(default_factory=lambda: _NONE)
    to_copy: IntArray = field(default_factory=lambda: _NONE)
    to_remove: IntArray | None = None
    left: Counts = field(default_factory=Counts)
    removals: list[Removal] = field(default_factory=list)
    prologue: float = 0.0
    install_seconds: float = 0.0
    written: set[str] = field(default_factory=set)
    outside: OutsideLooks = field(init=False)
    libraries: LibraryLooks = field(init=False)
    draws: Answers = field(init=False)
    pauses: LookPauses = field(init=False)
    first: FirstThread | None = None
    working: int = 1
    marking: int = 0

    def cost(self, columns: IntArray | slice) -> FloatArray:
        """Seconds of one execution of these."""
        plain, copies = self.counters.flags_dead[columns], self.counters.copies[columns]
        return np.where(plain, PLAIN_SECONDS, SAVING_SECONDS) / np.maximum(copies, 1)

    def install_new(self) -> None:
        before = time.monotonic()
        for loaded in self.watch.new_images():
            self.counters.install(loaded)
        self.counters.forget_unmapped(self.watch.known())
        self.install_seconds += time.monotonic() - before

    def look(self, *, end_row: bool, end_of_run: bool = False) -> bool:
        """Copy the counters; ask for the removal of hot sites; at a row's end keep the difference.

        Returns whether the row ended. One in which nothing was counted, or in which the program mostly waited for a
        processor that something else had, goes on: its ends could not be marked, and it would be no interval.
        """
        self._follow_marking()
        at, waited = time.monotonic(), run_delay(self.marking)
        try:
            (now, of_first), left = self.counters.read_both(), self.counters.ways_out()
        except OSError:
            # Killed or replaced by execve since the last wait: the next one says so.
            if end_of_run:
                raise
            return end_row
        counted = now.since(self.before)
        current = marked = row_of(counted, max(at - self.row_started, 1e-6))
        if self.first is not None:
            self.first.now = of_first
            marked = self.first.current(current.seconds)
        ran = running_time(self.marking)
        if (elapsed := self._elapsed(at, waited, ran)) > _SHORTEST_LOOK:
            if self.to_remove is None:
                fresh = counted if self.looked is self.before else now.since(self.looked)
                fresh = fresh if self.first is None else self.first.fresh(fresh)
                self._cool_down(fresh, leaving_seconds(left.since(self.left), fresh), elapsed, marked)
            self.looked, self.left = now, left
            self.looked_at, self.waited_by_look, self.ran_by_look = at, waited, ran
        advance = at - self.row_started - (waited - self.waited_by_row)
        grown = len(marked.columns) > 0 and advance >= _LEAST_ADVANCE * self.interval
        ended = end_of_run or (end_row and grown)
        if ended:
            if not end_of_run:
                self.outside.look(self.tracee.pid, at)
            self.written |= written_files(self.tracee.pid)
            self.rows.append(current)
            if self.first is not None:
                self.first.end_row(marked, advance, self.counters.work)
            self.entries += len(current.columns)
            self.seconds.append(at - self.row_started)
            self.before, self.row_started, self.waited_by_row = now, at, waited
            self._bound()
        elif end_row and self.libraries.wanted(advance):
            self._pause()
        return ended

    def _follow_marking(self) -> None:
        """The kernel's times are those of the marking thread: with another one they begin anew."""
        if self.marking != self.tracee.marking:
            self.marking = self.tracee.marking
            self.waited_by_look = self.waited_by_row = run_delay(self.marking)
            self.ran_by_look = running_time(self.marking)

    def _elapsed(self, at: float, waited: float, ran: float) -> float:
        """Seconds that the program ran for since the last look; 0 where they are not known well enough yet.

        The kernel tells how long a process waited once it no longer waits, and how long it ran up to the last tick.
        """
        passed, without = at - self.looked_at, waited - self.waited_by_look
        if without < _SHARED * passed:
            return passed - without
        return ran - self.ran_by_look if ran - self.ran_by_look >= _TICKS else 0.0

    def _bound(self) -> None:
        """Keep the number of rows, and of entries in them, below what a trace may hold."""
        if self.fine and (len(self.rows) > MOST_FINE or self.entries > MOST_ENTRIES // JOINED_FINE):
            self.fine = False
            self._join(JOINED_FINE)
        while len(self.rows) > MOST_INTERVALS or (self.entries > MOST_ENTRIES and len(self.rows) > 1):
            self._join(2)

    def _cool_down(self, fresh: Counts, leaving: FloatArray, elapsed: float, current: Row) -> None:
        """Remove the sites that were too hot at the last look, as far as this look shows that they can go.

        `leaving`: seconds that leaving copies of loops has cost since then, for each execution of the fresh columns.
        """
        removed, ran = self.counters.removed, fresh.columns
        if len(self.too_hot):
            rows = self.rows if self.first is None else self.first.rows
            cost, stretch = self.cost(slice(None)), row_of(fresh, elapsed)
            cost[ran] += leaving
            chosen = sites_to_remove(self.too_hot, cost, [*rows, current, stretch], removed)
            self.too_hot = _NONE
            if len(chosen):
                self.to_remove = chosen
                self.removals.append(Removal(chosen, stretch))
                self._pause()
            return
        there = ~removed[ran]
        ran, cost, rate = ran[there], self.cost(ran[there]) + leaving[there], fresh.executions[there] / elapsed
        hot = hottest_sites(rate, cost)
        self.to_copy = self.counters.in_loops(ran[hot])
        if len(self.to_copy):
            self._pause()
        elif len(hot):
            self.too_hot = ran[dearest_sites(hot, rate, cost, self.counters.block_instructions[ran])]

    def _pause(self) -> None:
        with contextlib.suppress(OSError):  # killed since the counters were read: the next wait says so
            self.tracee.request_pause()

    def _join(self, together: int) -> None:
        """Merge neighbours: a long run keeps its memory bounded, its intervals grow."""
        join_neighbours(self.rows, joined_rows, together)
        join_neighbours(self.seconds, operator.add, together)
        if self.first is not None:
            self.first.join(together)
        self.entries = sum(len(row.columns) for row in self.rows)
        self.interval *= together

    def start_over(self) -> None:
        """The program replaced itself: what was counted belongs to another image's run."""
        self.counters.forget_all()
        self.tracee.run_to_entry()
        self.counters = SiteCounters(self.tracee)
        self.watch = LoadWatch(self.tracee)
        self.rows.clear()
        self.entries = 0
        self.seconds.clear()
        self.too_hot, self.to_copy, self.to_remove, self.left = _NONE, _NONE, None, Counts()
        self.removals.clear()
        self.begin()
        self.prologue = self.started - self.tracee.started_at

    def begin(self) -> None:
        self.draws = repeat_answers(self.tracee)
        self.watch.arm()
        self.install_new()
        now = time.monotonic()
        self.started = self.looked_at = self.row_started = now
        self.outside = OutsideLooks(self.tracee.program.name, now)
        self.libraries = LibraryLooks(self.tracee, self.interval)
        self.marking = self.tracee.pid
        self.waited_by_look = self.waited_by_row = run_delay(self.marking)
        self.ran_by_look = running_time(self.marking)
        self.before = self.looked = Counts()
        threads = self.tracee.program.threads
        self.first = None if self.tracee.team is None else FirstThread(self.tracee.pid, threads - 1)
        self.pauses = LookPauses(self.tracee.pid, threads)


def trace(
    program: Program,
    *,
    interval: float | None = DEFAULT_INTERVAL,
    streams: Streams,
    cpu: int | None = None,
    progress: Callable[[float], None] | None = None,
    soon: bool = False,
) -> Profile:
    """Run `program` once and return its profile. `interval` in seconds; `cpu` pins the program to one.

    Without an interval the run is cut into FINE_INTERVAL, or, where that were more than MOST_FINE, into
    DEFAULT_INTERVAL.

    Raises ProgramUnsupported (threads that work, children that leave no room), ProgramFailed (ended by a signal),
    ProgramTooShort, InLibraries. `progress` gets the seconds traced so far at every interval. `soon`: see judge_early.
    """
    fine = interval is None
    interval = FINE_INTERVAL if interval is None else interval
    if interval < SHORTEST_INTERVAL:
        raise ProbeError(f"--interval: {interval * 1e3:g} ms is less than the tracer's {SHORTEST_INTERVAL * 1e3:g} ms")
    with Tracee.start(program, streams, cpu=cpu) as tracee:
        recording = _Recording(tracee, LoadWatch(tracee), SiteCounters(tracee), interval, fine)
        recording.begin()
        tracee.resume()
        status = _record(recording, progress, soon)
        if os.WIFSIGNALED(status):
            exit_status(program, status, streams)
        judge_threads(tracee)
        judge_children(tracee, recording.started, recording.seconds)
        ending = tracee.finish()
        others = len(tracee.children.processes()) + len(tracee.around.processes())
        helpers = 0 if tracee.team else len(tracee.helpers.all)
    code = exit_status(program, ending.status, streams)
    of_these = replace(program, threads=recording.working, began=0 if helpers else recording.draws.began)
    if recording.first is not None:
        recording.first.refuse_unmarked(of_these, recording.pauses.row(recording.interval), tracee, ending.cpu)
    if _usual_length(recording)[0] < FEWEST_INTERVALS:
        refuse_failed(program, code, streams)
    else:
        recording.outside.end()
    profile = _profile(of_these, recording, ending.cpu, streams)
    return replace(profile, exit_status=code, processes=others, helper_threads=helpers, draws=recording.draws.drawn)


def _record(recording: _Recording, progress: Callable[[float], None] | None, soon: bool) -> int:
    tracee, looked = recording.tracee, recording.row_started
    while True:
        due = looked + recording.pauses.seconds(recording.interval)
        occurrence = tracee.wait(max(0.0, due - time.monotonic()))
        if occurrence.what is What.TIMEOUT:
            looked = time.monotonic()
            is_due = looked - recording.row_started >= _NEARLY * recording.interval
            ended = recording.pauses.timed(partial(recording.look, end_row=is_due))
            if is_due:  # also where no row ends, since the program itself executes nothing
                judge_early(tracee, recording.started, soon=soon)
            if ended and progress:
                progress(time.monotonic() - recording.started)
            continue
        if occurrence.what is What.ENDED:
            return occurrence.status
        _handle_stop(recording, occurrence)
        tracee.resume()


def _handle_stop(recording: _Recording, occurrence: Occurrence) -> None:
    # Any stop answers the request for a pause, and none need follow it.
    if occurrence.what is What.PAUSED:
        recording.libraries.look()
    if occurrence.what is not What.EXECUTED:
        if recording.to_remove is not None:
            recording.counters.remove(recording.to_remove)
            recording.to_remove = None
        recording.counters.copy_loops(recording.to_copy)
        recording.to_copy = _NONE
    if occurrence.what is What.BREAKPOINT:
        recording.watch.step_over()
        recording.install_new()
    elif occurrence.what is What.EXECUTED:
        recording.start_over()
    elif occurrence.what is What.EXITING:
        refuse_orphans(recording.tracee)
        recording.draws.read()
        recording.working = max(working_threads(recording.tracee), 2) if recording.first else 1
        recording.look(end_row=True, end_of_run=True)


def _usual_length(recording: _Recording) -> tuple[int, float]:
    """How many intervals there are, and their length; of the default length where they are finer by our choice: a run
    of fewer is too short for a probe, however finely it is cut."""
    if recording.fine:
        together = round(DEFAULT_INTERVAL / recording.pauses.row(recording.interval))
        return math.ceil(len(recording.rows) / together), DEFAULT_INTERVAL
    return len(recording.rows), recording.interval


def _profile(program: Program, recording: _Recording, cpu_seconds: float, streams: Streams) -> Profile:
    rows, seconds = recording.rows, recording.seconds
    intervals, length = _usual_length(recording)
    if intervals < FEWEST_INTERVALS:
        raise ProgramTooShort(
            f"{program.name} ran for {sum(seconds):.3f} s: {intervals} intervals of {length * 1e3:g} ms, "
            f"at least {FEWEST_INTERVALS} are needed. "
            + why_too_few(sum(seconds), cpu_seconds, (FEWEST_INTERVALS + 1) * length, streams)
        )
    totals = np.zeros(recording.counters.columns, dtype=np.int64)
    for row in rows:
        totals[row.columns] += row.executions
    counted = (totals > 0) & ~recording.counters.removed
    profile = Profile(
        program=program,
        tracer=NATIVE,
        unit=SECONDS,
        interval=recording.interval,
        counts=counts_of(rows, counted),
        seconds=np.array(seconds),
        blocks=blocks_of(recording.counters, np.flatnonzero(counted)),
        executed=blocks_of(recording.counters, np.flatnonzero(totals > 0)),
        images=tuple((i.path, i.sha256) for i in recording.counters.images),
        uncounted=tuple(i.path for i in recording.counters.without_room),
        cpu_seconds=cpu_seconds,
        prologue=recording.prologue,
        removed_sites=int(recording.counters.removed.sum()),
        counted_share=counted_share(rows, recording.removals, recording.counters.block_instructions),
        installed_sites=recording.counters.columns,
        install_seconds=recording.install_seconds,
        written=tuple(sorted(recording.written - {str(streams.stdout), str(streams.stderr)})),
    )
    return profile if recording.first is None else recording.first.into(profile, counted)
