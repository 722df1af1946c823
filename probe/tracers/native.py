# SPDX-License-Identifier: Apache-2.0
"""The native tracer: the real program, at nearly its own speed, with a counter at every block.

The program is never interrupted for an interval: the tracer copies its counters from another processor and takes
the difference of two copies as the interval's vector. Stubs that turn out hot are removed while it runs.
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from checkpoint.errors import ProbeError, ProgramTooShort
from checkpoint.process.descriptors import written_files
from checkpoint.process.exit_status import exit_status, refuse_failed
from checkpoint.process.loader import LoadWatch
from checkpoint.process.plain_run import run_delay
from checkpoint.process.program import Program, Streams
from checkpoint.process.tracee import Occurrence, Tracee, What
from checkpoint.stubs.counters import SiteCounters
from probe.formats.arrays import BoolArray, FloatArray, IntArray
from probe.formats.choices import NATIVE, SECONDS
from probe.formats.profile import BlockTable, Profile
from probe.tracers.hot_sites import PLAIN_SECONDS, SAVING_SECONDS, Row, hottest_sites, sites_to_remove
from probe.tracers.joining import MOST_ENTRIES, MOST_INTERVALS, join_neighbours, matrix_of, sum_of_vectors
from probe.tracers.outside_looks import OutsideLooks
from probe.tracers.too_few import why_too_few

DEFAULT_INTERVAL = 0.05
SHORTEST_INTERVAL = 0.005
FEWEST_INTERVALS = 5

_SHORTEST_LOOK = 1e-4
_NONE = np.zeros(0, dtype=np.int64)
_LOOKS_PER_INTERVAL = 4
"""Hot sites are looked for more often than intervals end, so that a new hot loop is not slowed down for long."""

_LEAST_ADVANCE = 0.75
"""Share of an interval that the program must have had for itself before its row ends."""


@dataclass
class _Recording:
    """The run as it is being recorded."""

    tracee: Tracee
    watch: LoadWatch
    counters: SiteCounters
    interval: float
    rows: list[Row] = field(default_factory=list)
    entries: int = 0
    seconds: list[float] = field(default_factory=list)
    before: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    looked: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    started: float = 0.0
    looked_at: float = 0.0
    row_started: float = 0.0
    waited_by_look: float = 0.0
    waited_by_row: float = 0.0
    too_hot: IntArray = field(default_factory=lambda: _NONE)
    to_remove: IntArray | None = None
    prologue: float = 0.0
    install_seconds: float = 0.0
    written: set[str] = field(default_factory=set)
    outside: OutsideLooks = field(init=False)

    def cost(self) -> FloatArray:
        dead = [i.sites.flags_dead for i in self.counters.images]
        plain = np.concatenate(dead) if dead else np.zeros(0, dtype=bool)
        return np.where(plain, PLAIN_SECONDS, SAVING_SECONDS)

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
        at, waited = time.monotonic(), run_delay(self.tracee.pid)
        try:
            now = self.counters.read()
        except OSError:
            # Killed or replaced by execve since the last wait: the next one says so.
            if end_of_run:
                raise
            return end_row
        self.looked = _padded(self.looked, len(now))
        elapsed = at - self.looked_at - (waited - self.waited_by_look)
        fresh = now - self.looked
        self.looked, self.looked_at, self.waited_by_look = now, at, waited
        current = _row(now - _padded(self.before, len(now)), max(at - self.row_started, 1e-6))
        if elapsed > _SHORTEST_LOOK and self.to_remove is None:
            self._cool_down(fresh, elapsed, current)
        advance = at - self.row_started - (waited - self.waited_by_row)
        grown = len(current.columns) > 0 and advance >= _LEAST_ADVANCE * self.interval
        ended = end_of_run or (end_row and grown)
        if ended:
            if not end_of_run:
                self.outside.look(self.tracee.pid, at)
            self.written |= written_files(self.tracee.pid)
            self.rows.append(current)
            self.entries += len(current.columns)
            self.seconds.append(at - self.row_started)
            self.before, self.row_started, self.waited_by_row = now, at, waited
            while len(self.rows) > MOST_INTERVALS or (self.entries > MOST_ENTRIES and len(self.rows) > 1):
                self._halve()
        return ended

    def _cool_down(self, fresh: IntArray, elapsed: float, current: Row) -> None:
        """Remove the sites that were too hot at the last look, as far as this look shows that they can go."""
        cost, removed = self.cost(), self.counters.removed
        if len(self.too_hot):
            chosen = sites_to_remove(self.too_hot, cost, [*self.rows, current, _row(fresh, elapsed)], removed)
            self.too_hot = _NONE
            if len(chosen):
                with contextlib.suppress(OSError):  # killed since the counters were read: the next wait says so
                    self.tracee.request_pause()
                    self.to_remove = chosen
            return
        self.too_hot = hottest_sites(np.where(removed, 0, fresh) / elapsed, cost)

    def _halve(self) -> None:
        """Merge neighbours: a long run keeps its memory bounded, its intervals grow."""
        join_neighbours(self.rows, _joined)
        join_neighbours(self.seconds, operator.add)
        self.entries = sum(len(row.columns) for row in self.rows)
        self.interval *= 2

    def start_over(self) -> None:
        """The program replaced itself: what was counted belongs to another image's run."""
        self.counters.forget_all()
        self.tracee.run_to_entry()
        self.counters = SiteCounters(self.tracee)
        self.watch = LoadWatch(self.tracee)
        self.watch.arm()
        self.rows.clear()
        self.entries = 0
        self.seconds.clear()
        self.too_hot, self.to_remove = _NONE, None
        self.install_new()
        self.begin()
        self.prologue = self.started - self.tracee.started_at

    def begin(self) -> None:
        now = time.monotonic()
        self.started = self.looked_at = self.row_started = now
        self.outside = OutsideLooks(self.tracee.program.argv[0], now)
        self.waited_by_look = self.waited_by_row = run_delay(self.tracee.pid)
        self.before = self.looked = np.zeros(self.counters.columns, dtype=np.int64)


def trace(
    program: Program,
    *,
    interval: float = DEFAULT_INTERVAL,
    streams: Streams,
    cpu: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Profile:
    """Run `program` once and return its profile. `interval` in seconds; `cpu` pins the program to one.

    Raises ProgramUnsupported (threads, children), ProgramFailed (ended by a signal), ProgramTooShort.
    `progress` is called at every interval with the seconds traced so far.
    """
    if interval < SHORTEST_INTERVAL:
        raise ProbeError(f"--interval: {interval * 1e3:g} ms is less than the tracer's {SHORTEST_INTERVAL * 1e3:g} ms")
    with Tracee.start(program, streams, cpu=cpu) as tracee:
        recording = _Recording(tracee, LoadWatch(tracee), SiteCounters(tracee), interval)
        recording.watch.arm()
        recording.install_new()
        recording.begin()
        tracee.resume()
        status = _record(recording, progress)
        usage = tracee.usage
    code = exit_status(program, status, streams)
    if len(recording.rows) < FEWEST_INTERVALS:
        refuse_failed(program, code, streams)
    else:
        recording.outside.end()
    profile = _profile(program, recording, usage.ru_utime + usage.ru_stime if usage else 0.0, streams)
    return replace(profile, exit_status=code)


def _record(recording: _Recording, progress: Callable[[float], None] | None) -> int:
    tracee, looks = recording.tracee, 1
    while True:
        pause = recording.interval / _LOOKS_PER_INTERVAL
        due = recording.row_started + pause * looks
        occurrence = tracee.wait(max(0.0, due - time.monotonic()))
        if occurrence.what is What.TIMEOUT:
            ended = recording.look(end_row=looks >= _LOOKS_PER_INTERVAL)
            looks = 1 if ended else looks + 1
            if ended and progress:
                progress(time.monotonic() - recording.started)
            continue
        if occurrence.what is What.ENDED:
            return occurrence.status
        _handle_stop(recording, occurrence)
        tracee.resume()


def _handle_stop(recording: _Recording, occurrence: Occurrence) -> None:
    # Any stop answers the request for a pause, and none need follow it.
    if recording.to_remove is not None and occurrence.what is not What.EXECUTED:
        recording.counters.remove(recording.to_remove)
        recording.to_remove = None
    if occurrence.what is What.BREAKPOINT:
        recording.watch.step_over()
        recording.install_new()
    elif occurrence.what is What.EXECUTED:
        recording.start_over()
    elif occurrence.what is What.EXITING:
        recording.look(end_row=True, end_of_run=True)


def _padded(values: IntArray, size: int) -> IntArray:
    return values if len(values) == size else np.concatenate([values, np.zeros(size - len(values), dtype=np.int64)])


def _row(difference: IntArray, seconds: float) -> Row:
    columns = np.flatnonzero(difference > 0)
    return Row(columns.astype(np.int64), difference[columns], seconds)


def _joined(a: Row, b: Row) -> Row:
    return Row(*sum_of_vectors((a.columns, a.executions), (b.columns, b.executions)), a.seconds + b.seconds)


def _profile(program: Program, recording: _Recording, cpu_seconds: float, streams: Streams) -> Profile:
    rows, seconds = recording.rows, recording.seconds
    if len(rows) < FEWEST_INTERVALS:
        raise ProgramTooShort(
            f"{program.argv[0]} ran for {sum(seconds):.3f} s: {len(rows)} intervals of "
            f"{recording.interval * 1e3:g} ms, "
            f"at least {FEWEST_INTERVALS} are needed. "
            + why_too_few(sum(seconds), cpu_seconds, (FEWEST_INTERVALS + 1) * recording.interval, streams)
        )
    totals = np.zeros(recording.counters.columns, dtype=np.int64)
    for row in rows:
        totals[row.columns] += row.executions
    counted = (totals > 0) & ~recording.counters.removed
    return Profile(
        program=program,
        tracer=NATIVE,
        unit=SECONDS,
        interval=recording.interval,
        counts=_counts(rows, counted),
        seconds=np.array(seconds),
        blocks=_blocks(recording.counters, np.flatnonzero(counted)),
        executed=_blocks(recording.counters, np.flatnonzero(totals > 0)),
        images=tuple((i.path, i.sha256) for i in recording.counters.images),
        cpu_seconds=cpu_seconds,
        prologue=recording.prologue,
        removed_sites=int(recording.counters.removed.sum()),
        installed_sites=recording.counters.columns,
        install_seconds=recording.install_seconds,
        written=tuple(sorted(recording.written - {str(streams.stdout), str(streams.stderr)})),
    )


def _counts(rows: list[Row], counted: BoolArray) -> sp.csr_array:
    """Executions in each row, of the columns `counted` alone, which are numbered anew."""
    number = np.cumsum(counted) - 1
    lengths = [int(counted[row.columns].sum()) for row in rows]
    chosen = ((row, counted[row.columns]) for row in rows)
    vectors = ((number[row.columns[kept]], row.executions[kept]) for row, kept in chosen)
    return matrix_of(lengths, vectors, int(counted.sum()))


def _blocks(counters: SiteCounters, columns: IntArray) -> BlockTable:
    parts: list[list[npt.NDArray[Any]]] = [[], [], [], [], []]
    for number, image in enumerate(counters.images):
        mine = columns[(columns >= image.first) & (columns < image.first + len(image.sites))] - image.first
        sites = image.sites.take(mine)
        columns_of_image: list[npt.NDArray[Any]] = [
            np.full(len(mine), number),
            sites.offset,
            sites.block_start,
            sites.block_bytes,
            sites.block_instructions,
        ]
        for part, values in zip(parts, columns_of_image, strict=True):
            part.append(values)
    joined = [np.concatenate(p) if p else np.zeros(0, dtype=np.int64) for p in parts]
    return BlockTable(
        joined[0].astype(np.int32),
        joined[1].astype(np.int64),
        joined[2].astype(np.int64),
        joined[3].astype(np.int32),
        joined[4].astype(np.int32),
    )
