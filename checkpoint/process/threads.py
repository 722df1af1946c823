# SPDX-License-Identifier: Apache-2.0
"""Follow the threads of a program beside its first, which wait and are left out."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import statistics
import time
from pathlib import Path

from checkpoint import linux
from checkpoint.errors import ProgramUnsupported
from checkpoint.process.children import (
    FIRST_WORKS,
    STARTED,
    Child,
    Children,
    busiest,
    end,
    event_message,
    is_thread,
    most_working,
    name_thread,
    reap,
    reap_threads,
)
from checkpoint.process.plain_run import running_time, turns_of
from checkpoint.process.ptrace import is_breakpoint, move_by, ptrace, stands_at
from checkpoint.process.waiting import awake, is_about_to_be_killed, threads_of

ADVICE = "run it with one thread (an option of its own, or OMP_NUM_THREADS=1)"

_BREAKPOINT = 0xCC
_SETTLE_SECONDS = 2.0
_POLL_SECONDS = 0.0005


class WorkingThreads(ProgramUnsupported):
    """Threads beside the first do work, in a run that was to have one working thread. `threads`: how many work."""

    def __init__(self, message: str, threads: int = 2) -> None:
        super().__init__(message)
        self.threads = max(2, threads)


class HelperThreads(Children):
    """The threads of program `name` beside its first.

    They are traced, or breakpoints in the code that they share would end them. None may do what is known of the first
    thread alone: meet a marker's stop, start a process, replace the program. Where one meets a breakpoint, as the
    loader's, the marking thread is to be stopped for it: see Tracee.
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
        self._held: list[Child] = []
        """Each stands at a breakpoint, and executes it again where it is let go."""
        self._acting: list[int] = []
        self.marking_ends = False
        """Whether the marking thread was seen at its exit event: it can no longer be stopped for another."""

    @property
    def meet_breakpoint(self) -> bool:
        """Whether one stands at a breakpoint, for which nothing was done yet."""
        return bool(self._held)

    def at_breakpoint(self) -> int:
        """Number of a thread that stands at one, now behind it: what is to be done there is about to be. 0 where it has
        ended, or the breakpoint was taken out meanwhile."""
        number = self._held.pop(0).pid
        self._acting.append(number)
        with contextlib.suppress(OSError):
            if stands_at(number, _BREAKPOINT):
                move_by(number, 1)
                return number
        return 0

    @property
    def watched(self) -> bool:
        """See Children.watched; also where one may have ended before anybody knew of it."""
        return super().watched or (self.marking_ends and bool(self.all) and Path(f"/proc/{self._pid}").exists())

    def look(self) -> None:
        """See Children.look. Raises ProgramUnsupported where a thread does what only the first may."""
        super().look()
        self._end_untold()
        now, turns = time.monotonic(), {number: turns_of(number) for number in self._living}
        if turns != self._turns:
            self.active.append((self._looked, now))
        self._turns, self._looked = turns, now
        if self._refusal is not None:
            raise self._refusal

    def _end_untold(self) -> None:
        """See threads past their exit events that ended with their process before their start was told: by the thread
        that had started them, which ended as well. The process cannot be waited for before them."""
        if not (self.marking_ends and self.all):
            return
        with contextlib.suppress(OSError):
            for number in set(threads_of(self._pid)) - self._living.keys() - {self._pid}:
                told = os.WSTOPPED | os.WNOWAIT | os.WNOHANG | linux.WALL
                found = os.waitid(os.P_PID, number, told)
                if found is not None and found.si_status >> 8 == linux.PTRACE_EVENT_EXIT:
                    reap(number)

    def awake(self) -> bool:
        """Whether one computes at this moment, or waits for a disk."""
        return awake(self._living) > 0

    def settle(self) -> None:
        """Wait until all are asleep, while the first thread is stopped. Raises ProgramUnsupported where one works on.

        So nothing runs in code that is about to be changed, nor writes to memory that is about to be copied.
        """
        deadline, seen = time.monotonic() + _SETTLE_SECONDS, list[int]()
        while now := awake(self._living) or self._wakes():
            seen.append(now)
            if time.monotonic() > deadline:
                said = self._refused("works on by itself while the first is stopped")
                # Some are awake but now and then.
                raise WorkingThreads(str(said), statistics.median_low(seen) + self._first_works())
            time.sleep(_POLL_SECONDS)
            self.look()

    def _wakes(self) -> int:
        """How many are awake behind a look: it lets those go on that stood at another stop than a breakpoint, which may
        be taken out next."""
        self.look()
        return awake(self._living)

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
        if not event and stop == signal.SIGTRAP and is_breakpoint(child.pid):
            if self.marking_ends and not is_about_to_be_killed(child.pid):
                self._refusal = self._refused("loads a library when the first has ended", child)
            self._hold(child)
            return
        if event == linux.PTRACE_EVENT_EXIT:
            name_thread(child)
            self._note_end(child)
        super()._go_on(child, stop, event)

    def _hold(self, child: Child) -> None:
        """Leave a thread at the breakpoint that it has executed, as if it had not."""
        move_by(child.pid, -1)
        self._held.append(child)

    @staticmethod
    def _wrong(child: Child, stop: int, event: int) -> str:
        if event in STARTED and not is_thread(started := event_message(child.pid)):
            # It has our changes to the code, and nobody to answer its breakpoints.
            end(started)
            return "starts a process"
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

    def _forget(self, child: Child) -> None:
        """That it stands at a breakpoint, where it does."""
        self._held = [one for one in self._held if one is not child]

    def _note_end(self, child: Child) -> None:
        self._forget(child)
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
        stand = [*self._acting, *(child.pid for child in self._held)]
        self._acting.clear()
        self._held.clear()
        for number in stand:
            with contextlib.suppress(OSError):
                ptrace(linux.PTRACE_CONT, number)
