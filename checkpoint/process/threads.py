# SPDX-License-Identifier: Apache-2.0
"""Follow the threads of a program beside its first: they wait and are left out, or they share its work."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import statistics
import time
from collections.abc import Sequence

from checkpoint import linux
from checkpoint.errors import ProgramFailed, ProgramUnsupported
from checkpoint.process.children import (
    FIRST_WORKS,
    STARTED,
    Child,
    Children,
    Life,
    busiest,
    end,
    event_message,
    is_thread,
    most_working,
    name_thread,
    reap_threads,
    seconds_of,
)
from checkpoint.process.plain_run import running_time, turns_of
from checkpoint.process.ptrace import GsBases, is_breakpoint, ptrace
from checkpoint.process.waiting import awake, is_killed

ADVICE = "run it with one thread (an option of its own, or OMP_NUM_THREADS=1)"

SLOT_BYTES = 4 << 20
"""From one thread's counters to those of the thread in the next slot: what GS bases differ by."""

_FEWEST_SLOTS, MOST_SLOTS, _SLOTS_PER_WORKER = 32, 128, 4
"""Slots that there are: as many threads may live at the same time."""

MOST_STARTS = 1000
"""Threads that may be started in a run whose threads share its work."""

_SETTLE_SECONDS, _STOP_SECONDS = 2.0, 30.0
_POLL_SECONDS, _SHORT_POLL_SECONDS = 0.0005, 0.00005


class WorkingThreads(ProgramUnsupported):
    """Threads beside the first do work, in a run that was to have one working thread. `threads`: how many work."""

    def __init__(self, message: str, threads: int = 2) -> None:
        super().__init__(message)
        self.threads = max(2, threads)


class HelperThreads(Children):
    """The threads of program `name` beside its first.

    They are traced, or breakpoints in the code that they share would end them. None may do what is known of the first
    thread alone: meet a breakpoint or a marker's stop, start a process, replace the program.
    """

    def __init__(self, name: str, pid: int) -> None:
        super().__init__()
        self._pid = pid
        self._left: dict[int, float] = {}
        """When each stood at its exit event: its end is seen some time after another may be started."""
        self._ran, self._beside = 0.0, 0.0
        """CPU seconds of the first thread: when the oldest of those that live was started, and beside others so far."""
        self.active: list[tuple[float, float]] = []
        """Stretches between two looks, seconds of the monotonic clock, in which one of them had a processor."""
        self._name = name
        self._turns: dict[int, int] = {}
        self._looked = time.monotonic()
        self._refusal: ProgramUnsupported | None = None

    def look(self) -> None:
        """See Children.look. Raises ProgramUnsupported where a thread does what only the first may."""
        super().look()
        now, turns = time.monotonic(), {number: turns_of(number) for number in self._living}
        if turns != self._turns:
            self.active.append((self._looked, now))
        self._turns, self._looked = turns, now
        if self._refusal is not None:
            raise self._refusal

    def awake(self) -> bool:
        """Whether one computes at this moment, or waits for a disk."""
        return awake(self._living) > 0

    def settle(self) -> None:
        """Wait until all are asleep, while the first thread is stopped. Raises ProgramUnsupported where one works on.

        So nothing runs in code that is about to be changed, nor writes to memory that is about to be copied.
        """
        deadline, seen = time.monotonic() + _SETTLE_SECONDS, list[int]()
        while now := awake(self._living):
            seen.append(now)
            if time.monotonic() > deadline:
                said = self._refused("works on by itself while the first is stopped")
                # Some are awake but now and then.
                raise WorkingThreads(str(said), statistics.median_low(seen) + self._first_works())
            time.sleep(_POLL_SECONDS)
            self.look()

    def names(self) -> tuple[str, ...]:
        """What each calls itself, in the order they were started."""
        return tuple(f"thread {child.command}" for child in self.all)

    def end(self, pid: int, started: set[int]) -> None:
        """After process `pid` was sent SIGKILL: see its threads past their exit events, so it can be waited for.

        `started` gets the processes that they leave.
        """
        reap_threads(pid, self._living, started)
        for child in list(self._living.values()):
            self._end(child, None)

    def adopt(self, pid: int, parent: Child | None = None) -> Child:
        """See Children.adopt; a thread's command is what it calls itself."""
        if not self._living:
            self._ran = running_time(self._pid)
        child = super().adopt(pid, parent)
        name_thread(child)
        return child

    def _go_on(self, child: Child, stop: int, event: int) -> None:
        if wrong := self._wrong(child, stop, event):
            self._refusal = self._refused(wrong, child)
            self._let_go(child)
            return
        if event == linux.PTRACE_EVENT_EXIT:
            name_thread(child)
            self._note_end(child)
        super()._go_on(child, stop, event)

    @staticmethod
    def _wrong(child: Child, stop: int, event: int) -> str:
        if event in STARTED and not is_thread(started := event_message(child.pid)):
            # It has our changes to the code, and nobody to answer its breakpoints.
            end(started)
            return "starts a process"
        if not event and stop == signal.SIGTRAP and is_breakpoint(child.pid):
            return "loads a library"
        if not event and stop == signal.SIGSTOP:
            return "runs the code at which a phase begins"
        return ""

    def _refused(self, what: str, child: Child | None = None) -> ProgramUnsupported:
        return ProgramUnsupported(
            f"{self._name}: a thread beside its first one {what}; a probe holds one working thread. To go on, {ADVICE}."
        )

    def _end(self, child: Child, usage: resource.struct_rusage | None, status: int = -1) -> None:
        super()._end(child, usage, status)
        child.ended = self._left.pop(child.pid, child.ended)
        if not self._living:
            self._beside += max(0.0, running_time(self._pid) - self._ran)

    def _note_end(self, child: Child) -> None:
        self._left[child.pid] = time.monotonic()
        child.own_cpu = running_time(child.pid)

    def working(self, whole: float) -> int:
        """How many threads worked at the same time, at least one; `whole`: CPU seconds of all."""
        return max(1, most_working(self.all, whole) + self._first_works())

    def _first_works(self) -> bool:
        """Whether the first thread does work while others live."""
        beside = self._beside + (running_time(self._pid) - self._ran if self._living else 0.0)
        return beside > FIRST_WORKS * busiest(self.all)

    def release(self) -> None:
        """The first thread is about to go on: so do those that were stopped with it."""


class Team(HelperThreads):
    """The threads of program `name` beside the *marking* one, where they share its work.

    At every stop of the marking thread all are stopped. Each has a slot of its own, the lowest free one from 1 on, and
    with it copies of all counters. `working`: about how many do work.

    The marking thread has slot 0: its executions tell places. It is the first thread of process `pid`. Where that one
    waits for others, some of these mark while they live: those of `marks`, by the order in which the first starts them.
    """

    def __init__(self, name: str, working: int, pid: int, marks: Sequence[int] = ()) -> None:
        super().__init__(name, pid)
        self.most = min(MOST_SLOTS, max(_FEWEST_SLOTS, _SLOTS_PER_WORKER * working))
        """Slots that there are."""
        self.marking = pid
        self._waited: list[tuple[int, int, resource.struct_rusage | None]] = []
        """What wait4 said of the first thread before it was the marking one again."""
        self._marks = frozenset(marks)
        self._first, self._marker = Child(pid, None, True, time.monotonic(), name), Child(pid, None, True, 0.0)
        self._lives: list[Life] = []
        self._slots: dict[int, int] = {}
        self._bases = GsBases()
        self._stopped: dict[int, int] = {}
        self._stopping = False
        self.slots = 1
        """Slots used so far, the marking thread's among them."""
        self.starts = 0
        self.started: list[float] = []
        """When each was started, or ended and had been marking, by the monotonic clock."""

    def look(self) -> None:
        """See Children.look. Raises ProgramUnsupported where a thread does what only the marking one may."""
        Children.look(self)
        if self._refusal is not None:
            raise self._refusal

    def settle(self) -> None:
        """Stop all, while the marking thread is stopped. Raises ProgramFailed where one does not stop."""
        self._stopping = True
        for number in self._living.keys() - self._stopped.keys():
            with contextlib.suppress(OSError):
                ptrace(linux.PTRACE_INTERRUPT, number)
        deadline = time.monotonic() + _STOP_SECONDS
        while self._living.keys() - self._stopped.keys():
            self.look()
            self._pause(deadline)

    def _pause(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise ProgramFailed(f"{self._name}: its threads do not all stop within {_STOP_SECONDS:g} s")
        time.sleep(_SHORT_POLL_SECONDS)

    def release(self) -> None:
        """Let all go on that were stopped with the marking thread."""
        self._stopping = False
        stopped, self._stopped = self._stopped, {}
        if self._waited:
            # The first thread stays at its exit event until `wait` has told it.
            stopped.pop(self._pid, None)
        for number, deliver in stopped.items():
            with contextlib.suppress(OSError):
                ptrace(linux.PTRACE_CONT, number, 0, deliver)

    def stopped(self) -> list[int]:
        """Numbers of all but those that have just ended, by their slots."""
        return sorted(self._living.keys() - self._left.keys(), key=lambda number: self._slots.get(number, 0))

    def held_back(self, number: int) -> tuple[int, ...]:
        """The signal that a stopped thread was about to get."""
        return tuple(signal for signal in (self._stopped.get(number, 0),) if signal)

    def slot(self, number: int) -> int:
        """That of a thread: its counters are so many SLOT_BYTES from the marking one's."""
        return self._slots[number]

    def lives(self) -> list[tuple[Child, float, float]]:
        """Threads in the order in which the first started them: each, its CPU seconds, and the first's meanwhile."""
        now = running_time(self._pid)
        return [(life.thread, seconds_of(life.thread), life.meanwhile(now)) for life in self._lives]

    def _refused(self, what: str, child: Child | None = None) -> ProgramUnsupported:
        said = f"{self._name}: a thread beside its first one {what}: in a probe only the first may; {ADVICE}"
        if child is self._first:
            said = (
                f"{self._name}: its first thread {what}: while another thread marks the places, it may not; let it do "
                f"so before it starts the others, or {ADVICE}"
            )
        return ProgramUnsupported(said)

    def _begin(self, child: Child) -> None:
        slot = min({*range(1, len(self._slots) + 2)} - {*self._slots.values()})
        self.slots = max(self.slots, slot + 1)
        self.starts += 1
        self.started.append(child.began)
        if slot >= self.most:
            self._refusal = ProgramUnsupported(
                f"{self._name}: has more than {self.most} threads at the same time; run it with fewer (an option of "
                "its own, or OMP_NUM_THREADS)"
            )
        elif self.starts > MOST_STARTS:
            self._refusal = ProgramUnsupported(
                f"{self._name}: threads were started {self.starts} times (over {MOST_STARTS}): use its thread "
                "pool, or one thread"
            )
        number = self._pid if self._is_to_mark(child) else child.pid
        if number == self._pid:
            self._hand_over(child)
        self._slots[number] = slot
        if self._refusal is None:
            self._bases.give(number, slot * SLOT_BYTES)

    def _is_to_mark(self, child: Child) -> bool:
        if (self.marking if child.parent is None else child.parent.pid) != self._pid:
            return False
        self._lives.append(Life(child, running_time(self._pid)))
        return self.marking == self._pid and len(self._lives) - 1 in self._marks

    def _hand_over(self, child: Child) -> None:
        """Let `child` mark, which the first has just started and which has executed nothing; both are stopped."""
        self.marking, self._marker = child.pid, child
        del self._living[child.pid]
        self._living[self._pid] = self._first

    def wait(self) -> tuple[int, int, resource.struct_rusage | None]:
        """As wait4 of the marking thread; number 0 where there is nothing new."""
        ends = self.marking != self._pid and bool(self._waited)
        if not self._waited or (ends and self._stopping):
            return os.wait4(self.marking, linux.WALL | os.WNOHANG)
        if ends:
            self._take_back()
        return self._waited.pop(0)

    def hands_back(self, status: int) -> bool:
        """Whether the marking thread is another than the first, and ends, as this status says: the first marks again.

        That one may be waiting for the end. Until it is told of it, it executes nothing that is counted. Raises
        ProgramUnsupported where the marking thread does not count where it should.
        """
        if os.WIFSTOPPED(status):
            self._check_base(self._first if self.marking == self._pid else self._marker, status >> 16)
        dead = os.WIFEXITED(status) or os.WIFSIGNALED(status)
        if self.marking == self._pid or not (dead or status >> 16 == linux.PTRACE_EVENT_EXIT):
            return False
        self._take_back()
        self.started.append(time.monotonic())
        if dead:
            self._end(self._marker, None)
        else:
            if not is_killed(self._pid, self._marker.pid):
                self._stop_first()
            self._leave(self._marker)
        return True

    def _take_back(self) -> None:
        self.marking = self._pid
        self._slots.pop(self._pid)
        del self._living[self._pid]
        self._living[self._marker.pid] = self._marker

    def _stop_first(self) -> None:
        """Stop the first thread, which waits, give it slot 0, and let it go on. What else it stops for is kept."""
        ptrace(linux.PTRACE_INTERRUPT, self._pid)
        deadline = time.monotonic() + _STOP_SECONDS
        while not (waited := os.wait4(self._pid, linux.WALL | os.WNOHANG))[0]:
            self._pause(deadline)
        status = waited[1]
        if os.WIFSTOPPED(status):
            self._check_base(self._first, status >> 16)
            self._bases.give(self._pid, 0)
        if status >> 16 == linux.PTRACE_EVENT_STOP and os.WSTOPSIG(status) == signal.SIGTRAP:
            ptrace(linux.PTRACE_CONT, self._pid)
        else:
            self._waited.append(waited)

    def _leave(self, child: Child) -> None:
        """Let a thread go on from its exit event."""
        self._note_end(child)
        for life in self._lives:
            if life.thread is child:
                life.first = life.meanwhile(running_time(self._pid))
        ptrace(linux.PTRACE_CONT, child.pid)

    def _end(self, child: Child, usage: resource.struct_rusage | None, status: int = -1) -> None:
        super()._end(child, usage, status)
        self._slots.pop(child.pid, None)
        self._stopped.pop(child.pid, None)

    def _check_base(self, child: Child, event: int) -> None:
        """Refuse a stopped thread that gave itself another GS base: it counts elsewhere, or faults. It stays so."""
        if self._bases.kept(child.pid, event):
            return
        name_thread(child)
        who = "first thread" if child is self._first else f"thread {self.all.index(child) + 1} ({child.command})"
        self._refusal = ProgramUnsupported(
            f"{self._name}: its {who} uses the GS register itself, by which a probe tells threads apart; {ADVICE}"
        )
        raise self._refusal

    def _go_on(self, child: Child, stop: int, event: int) -> None:
        self._check_base(child, event)
        if event == linux.PTRACE_EVENT_EXIT and child is self._first:
            # The end of the run, which `wait` tells: the others are told to end, or go on without it.
            if self._stopping:
                self._stopped[child.pid] = 0
            self._waited.append((child.pid, event << 16 | stop << 8 | 0x7F, None))
        elif event == linux.PTRACE_EVENT_EXIT:
            self._leave(child)
        elif stop == signal.SIGSTOP:
            # Of the whole process, as the marking thread's, which Tracee.wait does not deliver either.
            self._let_go(child)
        else:
            super()._go_on(child, stop, event)

    def _let_go(self, child: Child, deliver: int = 0) -> None:
        if self._stopping:
            self._stopped[child.pid] = deliver
        else:
            super()._let_go(child, deliver)
