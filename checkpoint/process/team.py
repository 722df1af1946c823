# SPDX-License-Identifier: Apache-2.0
"""Follow threads that share a program's work: all stop with the marking one, and each has counters of its own."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence

from checkpoint import linux
from checkpoint.errors import ProbeError, ProgramFailed, ProgramUnsupported
from checkpoint.process.children import Child, Children, Life, event_message, name_thread, seconds_of
from checkpoint.process.plain_run import running_time
from checkpoint.process.program import Lineage
from checkpoint.process.ptrace import GsBases, interrupt, ptrace
from checkpoint.process.threads import ADVICE, HelperThreads
from checkpoint.process.waiting import is_killed

SLOT_BYTES = 4 << 20
"""From one thread's counters to those of the thread in the next slot: what GS bases differ by."""

_FEWEST_SLOTS, MOST_SLOTS, _SLOTS_PER_WORKER = 32, 128, 4
"""Slots that there are: as many threads may live at the same time."""

MOST_STARTS = 1000
"""Threads that may be started in a run whose threads share its work."""

_REPLACES = "replaces the program (execve)"

_STOP_SECONDS, _POLL_SECONDS = 30.0, 0.00005


class Team(HelperThreads):
    """The threads of program `name` beside the *marking* one, where they share its work.

    At every stop of the marking thread all are stopped. Each has a slot of its own, the lowest free one from 1 on, and
    with it copies of all counters. `working`: about how many do work.

    The marking thread has slot 0: its executions tell places. It is the first thread of process `pid`. Where that one
    waits for others, some of these mark while they live: those of `marks`. `handed_over` is called where another thread
    marks from there on.
    """

    def __init__(
        self,
        name: str,
        working: int,
        pid: int,
        marks: Sequence[Lineage] = (),
        handed_over: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name, pid)
        self.most = min(MOST_SLOTS, max(_FEWEST_SLOTS, _SLOTS_PER_WORKER * working))
        """Slots that there are."""
        self.marking = pid
        self._waited: list[tuple[int, int, resource.struct_rusage | None]] = []
        """What wait4 said of the first thread before it was the marking one again."""
        self._marks, self._handed_over = frozenset(marks), handed_over
        self._first, self._marker = Child(pid, None, True, time.monotonic(), name), Child(pid, None, True, 0.0)
        self._lives: list[Life] = []
        self._lineages: dict[int, Lineage] = {pid: ()}
        self._started_by: dict[int, int] = {}
        """How many threads each has started so far."""
        self._due: Child | None = None
        """Is to mark, and stands before its first instruction until the first thread is stopped for that."""
        self._served = math.inf
        """Since when the first thread has been asked to stop for it in vain."""
        self._slots: dict[int, int] = {}
        self._bases = GsBases(pid)
        self._stopped: dict[int, int] = {}
        self._stopping = False
        self.slots = 1
        """Slots used so far, the marking thread's among them."""
        self.starts = 0
        self.started: list[float] = []
        """When each was started, began to mark later, or ended and had been marking, by the monotonic clock."""

    def look(self) -> None:
        """See Children.look. Raises ProgramUnsupported where a thread does what only the marking one may."""
        Children.look(self)
        self._end_untold()
        if self._refusal is not None:
            raise self._refusal

    def settle(self) -> None:
        """Stop all, while the marking thread is stopped. Raises ProgramFailed where one does not stop."""
        self._stopping = True
        for number in self._living.keys() - self._stopped.keys():
            interrupt(number)
        deadline = time.monotonic() + _STOP_SECONDS
        while self._living.keys() - self._stopped.keys():
            self.look()
            self._pause(deadline)

    def _pause(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise self._too_late()
        time.sleep(_POLL_SECONDS)

    def _too_late(self) -> ProgramFailed:
        return ProgramFailed(f"{self._name}: its threads do not all stop within {_STOP_SECONDS:g} s")

    def release(self) -> None:
        """Let all go on that were stopped with the marking thread."""
        self._served = math.inf
        self._stopping = False
        stopped, self._stopped = self._stopped, {}
        self._acting.clear()
        self._held.clear()
        if self._waited:
            # The first thread stays at its exit event until `wait` has told it.
            stopped.pop(self._pid, None)
        if self._due is not None:
            self._stopped[self._due.pid] = stopped.pop(self._due.pid)
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

    def lives(self) -> list[tuple[Life, float, float]]:
        """Threads in the order of their starts: each, its CPU seconds, and the first's meanwhile."""
        now = running_time(self._pid)
        return [(life, seconds_of(life.thread), life.meanwhile(now)) for life in self._lives]

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
        self._slots[child.pid] = slot
        lineage = self._note_start(child)
        marks = lineage in self._marks and self.marking == self._pid and self._due is None and not self.marking_ends
        if self._refusal is not None:
            return
        self._bases.give(child.pid, slot * SLOT_BYTES)
        if marks and child.parent is None:
            self._hand_over(child)
        elif marks:
            self._due = child

    def _note_start(self, child: Child) -> Lineage:
        """By which it is known from now on."""
        starter = self.marking if child.parent is None else child.parent.pid
        number = self._started_by.get(starter, 0)
        self._started_by[starter] = number + 1
        self._lineages[child.pid] = lineage = (*self._lineages[starter], number)
        self._lives.append(Life(child, lineage, running_time(self._pid)))
        return lineage

    def _hand_over(self, child: Child) -> None:
        """Let `child` mark, which has executed nothing, in place of the first thread; both are stopped."""
        # One of them may have been killed: then nothing is changed.
        slot = self._slots[child.pid]
        self._bases.give(self._pid, slot * SLOT_BYTES)
        self._bases.give(child.pid, 0)
        self.marking, self._marker = child.pid, child
        del self._living[child.pid]
        self._living[self._pid] = self._first
        self._slots[self._pid] = self._slots.pop(child.pid)

    def _serve(self, due: Child) -> None:
        """As `_hand_over`, where another thread than the first has started it: the first runs, and is stopped for it.

        Nothing is waited for: a first thread in an execve or a vfork stops once others were looked at. Its stop is not
        taken here, but looked at as other threads' are. Where it stopped for anything else it is still the marking
        thread, and asked again later.
        """
        with contextlib.suppress(ProbeError, OSError):
            if not self.marking_ends:
                ptrace(linux.PTRACE_INTERRUPT, self._pid)
                told = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
                found = os.waitid(os.P_PID, self._pid, told | linux.WALL)
                if found is None or found.si_status >> 8 != linux.PTRACE_EVENT_STOP:
                    return
                self._hand_over(due)
                self.started.append(time.monotonic())
            self._due = None
            ptrace(linux.PTRACE_CONT, due.pid, 0, self._stopped.pop(due.pid, 0))
            self._handed_over()

    def wait(self) -> tuple[int, int, resource.struct_rusage | None]:
        """As wait4 of the marking thread; number 0 where there is nothing new."""
        # Once the marking thread's stop is told it stays the marking one until all go on.
        if self._due is not None and not self._stopping:
            self._serve(self._due)
            # A child by vfork, for which the first thread waits in the kernel, may itself wait for the due thread.
            self._served = math.inf if self._due is None else min(self._served, time.monotonic())
            if time.monotonic() > self._served + _STOP_SECONDS:
                raise self._too_late()
        ends = self.marking != self._pid and bool(self._waited)
        if not self._waited or (ends and self._stopping):
            return self._wait_for_marking()
        if ends:
            self._take_back()
        return self._waited.pop(0)

    def _wait_for_marking(self) -> tuple[int, int, resource.struct_rusage]:
        try:
            return os.wait4(self.marking, linux.WALL | os.WNOHANG)
        except ChildProcessError:
            if self.marking == self._pid:
                raise
            # Its number is that of the process now. The first thread was let go from a stop, and that was its last one.
            raise self._refused(_REPLACES) from None

    def hands_back(self, status: int) -> bool:
        """Whether the marking thread is another than the first, and ends, as this status says: the first marks again.

        That one may be waiting for the end. Until it is told of it, it executes nothing that is counted. Raises
        ProgramUnsupported where the marking thread does not count where it should, or another has replaced the program.
        """
        if status >> 16 == linux.PTRACE_EVENT_EXEC and event_message(self._pid) != self._pid:
            raise self._refused(_REPLACES)
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
        if self._stopped.pop(self._pid, None) is not None:
            # At a breakpoint, which it executes again as the marking thread.
            self._forget(self._first)
            self._bases.give(self._pid, 0)
            ptrace(linux.PTRACE_CONT, self._pid)
            return
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
        self._due = None if child is self._due else self._due
        self._note_end(child)
        for life in self._lives:
            if life.thread is child:
                life.first = life.meanwhile(running_time(self._pid))
        ptrace(linux.PTRACE_CONT, child.pid)

    def _end(self, child: Child, usage: resource.struct_rusage | None, status: int = -1) -> None:
        super()._end(child, usage, status)
        for found in (self._slots, self._stopped, self._lineages, self._started_by):
            found.pop(child.pid, None)
        self._due = None if child is self._due else self._due

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
        if event in (linux.PTRACE_EVENT_EXIT, linux.PTRACE_EVENT_EXEC) and child is self._first:
            # The end of the run or the program, which `wait` tells: the others are told to end, or go on without it.
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

    def _hold(self, child: Child) -> None:
        super()._hold(child)
        self._stopped[child.pid] = 0

    def _let_go(self, child: Child, deliver: int = 0) -> None:
        if self._stopping or child is self._due:
            self._stopped[child.pid] = deliver
        else:
            super()._let_go(child, deliver)
