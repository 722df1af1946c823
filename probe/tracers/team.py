# SPDX-License-Identifier: Apache-2.0
"""Record what the first of several threads executes, which marks the intervals, beside what all execute together."""

from __future__ import annotations

import math
import operator
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from checkpoint.binary.syscall_names import call_number
from checkpoint.errors import ProgramUnsupported
from checkpoint.process.children import Child, Life
from checkpoint.process.program import Lineage, Program
from checkpoint.process.team import Team
from checkpoint.process.threads import ADVICE
from checkpoint.process.tracee import Tracee
from checkpoint.process.waiting import goes_on, process_cpu, process_state
from checkpoint.stubs.counters import added
from checkpoint.stubs.counts import Counts
from probe.formats.arrays import BoolArray, FloatArray
from probe.formats.profile import Profile
from probe.tracers.columns import counts_of
from probe.tracers.hot_sites import Row
from probe.tracers.joining import join_neighbours, sum_of_vectors

MOST_UNMARKED = 0.1
"""Share of the run that may pass in intervals that are far too long."""

MOST_POLLED, _POLLED_AT_LEAST = 0.5, 0.1
"""Share of the intervals at whose end the first thread may sleep by the clock: of those where it sleeps, and of all.
Where all processors are taken it often waits for one instead."""

CLEARLY, _WORTH_WHILE = 2.0, 0.2
"""So many times as much as the first a thread works that is to mark if that one turns out to tell too few places; the
share of the CPU time that such threads have together."""

_DEEPER = 1.1
"""So many times as much as another must a thread do to be chosen before it that was started by one more in between."""

_SLEEPS = {str(call_number(name)) for name in ("nanosleep", "clock_nanosleep")}
_NO_CALL = ("running", "-1")
_LONG = 5.0
_ENDING_SECONDS, _POLL_SECONDS = 1.0, 0.002


class OthersMark(ProgramUnsupported):
    """The first thread waits while others work, and some of these can tell places. `program`: with these."""

    def __init__(self, message: str, program: Program) -> None:
        super().__init__(message)
        self.program = program


def best_marks(tracee: Tracee) -> tuple[Lineage, ...]:
    """Threads of the ended run that could tell places, one at a time: those that work most, and more than the first
    meanwhile."""
    return tuple(sorted(life.lineage for life, _ in _best(tracee, 1.0)))


def clear_marks(tracee: Tracee, cpu: float) -> tuple[Lineage, ...]:
    """As `best_marks`, those that leave no doubt; none where they do little of the run's `cpu` seconds."""
    chosen = _best(tracee, CLEARLY)
    worth = sum(own for _, own in chosen) >= _WORTH_WHILE * cpu
    return tuple(sorted(life.lineage for life, _ in chosen)) if worth else ()


def _best(tracee: Tracee, times: float) -> list[tuple[Life, float]]:
    lives = tracee.team.lives() if tracee.team else []
    chosen: list[tuple[Life, float]] = []
    for life, own, of_first in sorted(lives, key=lambda found: -found[1] / _DEEPER ** len(found[0].lineage)):
        if own > times * of_first and not any(_overlap(life.thread, other.thread) for other, _ in chosen):
            chosen.append((life, own))
    return chosen


def _overlap(one: Child, other: Child) -> bool:
    return one.began < (other.ended or math.inf) and other.began < (one.ended or math.inf)


@dataclass
class FirstThread:
    """The first thread's part of what is counted: its interval under way, and its rows so far.

    `now`: its executions at the last look. `work`: instructions of each interval, by the threads' slots. `polling`: how
    often it slept by the clock when an interval ended, `asleep`: slept, `ended`: of so many. `could_mark`: others, that
    work far more.
    """

    pid: int
    others: int
    rows: list[Row] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    work: list[FloatArray] = field(default_factory=list)
    worked: FloatArray = field(default_factory=lambda: np.zeros(0))
    before: Counts = field(default_factory=Counts)
    looked: Counts = field(default_factory=Counts)
    now: Counts = field(default_factory=Counts)
    polling: int = 0
    asleep: int = 0
    ended: int = 0
    could_mark: tuple[Lineage, ...] = ()

    def fresh(self, of_all: Counts) -> Counts:
        """Executions since the last look by the busiest thread, as far as is known: the first, or one of the others.

        `of_all`: those of all threads together.
        """
        own = self.now.since(self.looked).at(of_all.columns)
        self.looked = self.now
        busiest = np.maximum(own, (of_all.executions - own) // max(self.others, 1))
        return Counts(of_all.columns[busiest > 0], busiest[busiest > 0])

    def current(self, seconds: float) -> Row:
        """What it executed in the interval under way."""
        return row_of(self.now.since(self.before), seconds)

    def end_row(self, row: Row, own: float, worked: FloatArray) -> None:
        """Its interval is over; `own`: seconds in which it did not wait for a processor; `worked`: instructions of all
        threads so far, by their slots."""
        self.work.append(added(worked, -self.worked))
        self.worked = worked
        self.rows.append(row)
        self.own.append(own)
        self.before = self.now
        call = sleeps_in(self.pid)
        self.polling += call in _SLEEPS
        self.asleep += call is not None
        self.ended += 1

    def join(self, together: int) -> None:
        join_neighbours(self.rows, joined_rows, together)
        join_neighbours(self.own, operator.add, together)
        join_neighbours(self.work, added, together)

    def refuse_unmarked(self, program: Program, interval: float, tracee: Tracee, cpu: float) -> None:
        """Raise ProgramUnsupported where intervals had to become far longer than `interval`, for want of anything that
        the marking thread executes; OthersMark where others that could mark have not been tried. Also where the first
        looks after those from time to time: how often differs from run to run, and tells no place. `tracee`: of the
        ended run, which took `cpu` seconds."""
        self.could_mark, marks = clear_marks(tracee, cpu), best_marks(tracee)
        polls = self.polling > max(MOST_POLLED * self.asleep, _POLLED_AT_LEAST * self.ended)
        if self.could_mark and not program.marking and polls:
            raise OthersMark(
                f"{program.name}: its first thread sleeps by the clock in {self.polling / self.ended:.0%} of the "
                "run, while others work",
                replace(program, marking=self.could_mark),
            )
        long = sum(one for one in self.own if one > _LONG * interval)
        if long <= MOST_UNMARKED * sum(self.own):
            return
        where = f"{program.name}: no place that its first thread reaches in {long / sum(self.own):.0%} of the run, "
        if marks and not program.marking:
            raise OthersMark(where + "while others work", replace(program, marking=marks))
        tried = "nor one of the threads that it starts, " if program.marking else ""
        raise ProgramUnsupported(
            f"{where}{tried}where a phase could begin or end: let the first thread take part in the work, or run it "
            "with one thread"
        )

    def into(self, profile: Profile, counted: BoolArray) -> Profile:
        """The profile of the run with its rows; `counted`: which columns that has."""
        work = np.zeros((len(self.work), max(map(len, self.work), default=1)))
        for row, of_row in zip(work, self.work, strict=True):
            row[: len(of_row)] = of_row
        could_mark = () if profile.program.marking else self.could_mark
        return replace(profile, first=counts_of(self.rows, counted), thread_work=work, could_mark=could_mark)


def sleeps_in(number: int) -> str | None:
    """The number of the call that a thread sleeps in (/proc/PID/syscall, proc_pid_syscall(5)); None where it is ready
    to run, or gone."""
    try:
        call = Path(f"/proc/{number}/syscall").read_text().split()[0]
    except OSError:
        return None
    return None if call in _NO_CALL else call


def refuse_orphans(tracee: Tracee) -> None:
    """At the first thread's exit event: raise ProgramUnsupported where the others go on without it."""
    team, deadline = tracee.team, time.monotonic() + _ENDING_SECONDS
    if team is None:
        return
    by_itself = goes_on(tracee.pid, tracee.pid)
    # A thread that has taken its SIGKILL, and is not yet ending, shows neither. Nor does the thread that ended the
    # process, until its exit event is seen.
    while any(goes_on(tracee.pid, number) for number in team.stopped()):
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
        team.look()
    else:
        # Where they have ended the process by themselves meanwhile, nothing of it is left to be read.
        if not by_itself or process_state(tracee.pid) != "Z":
            return
    if by_itself:
        raise ProgramUnsupported(
            f"{tracee.program.name}: its first thread ends before the others (pthread_exit); let it wait for them "
            "(pthread_join)"
        )
    raise ProgramUnsupported(
        f"{tracee.program.name}: a thread beside its first one replaces the program (execve); in a probe only the "
        f"first may; {ADVICE}"
    )


def working_threads(tracee: Tracee) -> int:
    """How many threads of the run that is about to end worked at the same time."""
    team: Team | None = tracee.team
    return 1 if team is None else team.working(process_cpu(tracee.pid))


def row_of(counts: Counts, seconds: float) -> Row:
    """An interval in which so much was executed."""
    return Row(counts.columns, counts.executions, seconds)


def joined_rows(a: Row, b: Row) -> Row:
    """Two neighbours as one."""
    return Row(*sum_of_vectors((a.columns, a.executions), (b.columns, b.executions)), a.seconds + b.seconds)
