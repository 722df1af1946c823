# SPDX-License-Identifier: Apache-2.0
"""Follow the threads of a program beside its first: they wait and are left out, or they share its work."""

from __future__ import annotations

import contextlib
import resource
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from checkpoint import linux
from checkpoint.errors import ProgramFailed, ProgramUnsupported
from checkpoint.process.children import STARTED, Child, Children, end, event_message, is_thread, reap
from checkpoint.process.plain_run import running_time, turns_of
from checkpoint.process.ptrace import ptrace
from checkpoint.process.waiting import process_state

ADVICE = "run it with one thread (an option of its own, or OMP_NUM_THREADS=1)"

SLOT_BYTES = 4 << 20
"""From one thread's counters to those of the thread in the next slot: what GS bases differ by."""

_FEWEST_SLOTS, MOST_SLOTS, _SLOTS_PER_WORKER = 32, 128, 4
"""Slots that there are: as many threads may live at the same time."""

MOST_STARTS = 1000
"""Threads that may be started in a run whose threads share its work."""

_GS_BASE = 22 * 8
"""struct user: where PTRACE_POKEUSER finds the GS base."""

WORKING = 0.02
"""Share of a process's CPU time from which on a thread counts as one that works."""

_ASLEEP = ("S", "t", "T", "")
_SETTLE_SECONDS = 2.0
_POLL_SECONDS = 0.0005
_STOP_SECONDS = 30.0
_SHORT_POLL_SECONDS = 0.00005


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

    def __init__(self, name: str) -> None:
        super().__init__()
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
        """Whether one computes at this moment, or waits for a disk: any state but asleep."""
        return self._awake() > 0

    def _awake(self) -> int:
        return sum(process_state(number) not in _ASLEEP for number in list(self._living))

    def settle(self) -> None:
        """Wait until all are asleep, while the first thread is stopped. Raises ProgramUnsupported where one works on.

        So nothing runs in code that is about to be changed, nor writes to memory that is about to be copied.
        """
        deadline = time.monotonic() + _SETTLE_SECONDS
        while self.awake():
            if time.monotonic() > deadline:
                said = self._refused("works on by itself while the first is stopped")
                raise WorkingThreads(str(said), 1 + self._awake())
            time.sleep(_POLL_SECONDS)
            self.look()

    def names(self) -> tuple[str, ...]:
        """What each calls itself, in the order they were started."""
        return tuple(f"thread {child.command}" for child in self.all)

    def end(self, pid: int) -> None:
        """After process `pid` was sent SIGKILL: see its threads past their exit events, so that it can be waited for.

        One that it had just started is traced already, and not yet known.
        """
        known = set(self._living)
        with contextlib.suppress(OSError):
            known |= threads_of(pid)
        for number in known - {pid}:
            reap(number)
        for child in list(self._living.values()):
            self._end(child, None)

    def adopt(self, pid: int, parent: Child | None = None) -> Child:
        """See Children.adopt; a thread's command is what it calls itself."""
        child = super().adopt(pid, parent)
        self._name_of(child)
        return child

    def _name_of(self, child: Child) -> None:
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{child.pid}/comm").read_text(errors="replace").strip()
            child.command = "".join(c if c.isprintable() else "?" for c in name)

    def _go_on(self, child: Child, stop: int, event: int) -> None:
        wrong = self._wrong(child, stop, event)
        if wrong:
            self._refusal = self._refused(wrong)
            self._let_go(child)
            return
        if event == linux.PTRACE_EVENT_EXIT:
            self._name_of(child)
            child.own_cpu = running_time(child.pid)
        super()._go_on(child, stop, event)

    @staticmethod
    def _wrong(child: Child, stop: int, event: int) -> str:
        if event in STARTED and not is_thread(started := event_message(child.pid)):
            # It has our changes to the code, and nobody to answer its breakpoints.
            end(started)
            return "starts a process"
        if not event and stop == signal.SIGTRAP:
            return "loads a library"
        if not event and stop == signal.SIGSTOP:
            return "runs the code at which a phase begins"
        return ""

    def _refused(self, what: str) -> ProgramUnsupported:
        return ProgramUnsupported(
            f"{self._name}: a thread beside its first one {what}; a probe holds one working thread. To go on, {ADVICE}."
        )

    def working(self, whole: float) -> int:
        """How many threads worked at the same time, the first one counted in any case; `whole`: CPU seconds of all."""
        return 1 + _most_at_once([child for child in self.all if self._seconds(child) > WORKING * whole])

    @staticmethod
    def _seconds(child: Child) -> float:
        return child.own_cpu if child.ended is not None else running_time(child.pid)

    def release(self) -> None:
        """The first thread is about to go on: so do those that were stopped with it."""


class Team(HelperThreads):
    """The threads of program `name` beside its first, where they share its work.

    At every stop of the first all are stopped. Each has a slot of its own, the lowest free one from 1 on, and with it
    copies of all counters. `working`: about how many do work.
    """

    def __init__(self, name: str, working: int) -> None:
        super().__init__(name)
        self.most = min(MOST_SLOTS, max(_FEWEST_SLOTS, _SLOTS_PER_WORKER * working))
        """Slots that there are."""
        self._slots: dict[int, int] = {}
        self._stopped: dict[int, int] = {}
        self._stopping = False
        self.slots = 1
        """Slots used so far, the first thread's among them."""
        self.started: list[float] = []
        """When each was started, by the monotonic clock."""

    def look(self) -> None:
        """See Children.look. Raises ProgramUnsupported where a thread does what only the first may."""
        Children.look(self)
        if self._refusal is not None:
            raise self._refusal

    def settle(self) -> None:
        """Stop all, while the first thread is stopped. Raises ProgramFailed where one does not stop."""
        self._stopping = True
        for number in self._living.keys() - self._stopped.keys():
            with contextlib.suppress(OSError):
                ptrace(linux.PTRACE_INTERRUPT, number)
        deadline = time.monotonic() + _STOP_SECONDS
        while self._living.keys() - self._stopped.keys():
            self.look()
            if time.monotonic() > deadline:
                raise ProgramFailed(f"{self._name}: its threads do not all stop within {_STOP_SECONDS:g} s")
            time.sleep(_SHORT_POLL_SECONDS)

    def release(self) -> None:
        """Let all go on that were stopped with the first."""
        self._stopping = False
        stopped, self._stopped = self._stopped, {}
        for number, deliver in stopped.items():
            with contextlib.suppress(OSError):
                ptrace(linux.PTRACE_CONT, number, 0, deliver)

    def stopped(self) -> list[int]:
        """Numbers of all, by their slots."""
        return sorted(self._living, key=self._slots.__getitem__)

    def held_back(self, number: int) -> tuple[int, ...]:
        """The signal that a stopped thread was about to get."""
        return tuple(signal for signal in (self._stopped.get(number, 0),) if signal)

    def base(self, number: int) -> int:
        """The GS base of a thread: how far its counters are from the first's."""
        return self._slots[number] * SLOT_BYTES

    def _refused(self, what: str) -> ProgramUnsupported:
        return ProgramUnsupported(
            f"{self._name}: a thread beside its first one {what}: in a probe only the first may; {ADVICE}"
        )

    def _begin(self, child: Child) -> None:
        taken = set(self._slots.values())
        slot = next(slot for slot in range(1, len(taken) + 2) if slot not in taken)
        self._slots[child.pid] = slot
        self.slots = max(self.slots, slot + 1)
        self.started.append(child.began)
        if slot >= self.most:
            self._refusal = ProgramUnsupported(
                f"{self._name}: has more than {self.most} threads at the same time; run it with fewer (an option of "
                "its own, or OMP_NUM_THREADS)"
            )
        elif len(self.started) > MOST_STARTS:
            self._refusal = ProgramUnsupported(
                f"{self._name}: threads were started {len(self.started)} times (over {MOST_STARTS}): use its thread "
                "pool, or one thread"
            )
        else:
            ptrace(linux.PTRACE_POKEUSER, child.pid, _GS_BASE, slot * SLOT_BYTES)

    def _end(self, child: Child, usage: resource.struct_rusage | None, status: int = -1) -> None:
        super()._end(child, usage, status)
        self._slots.pop(child.pid, None)
        self._stopped.pop(child.pid, None)

    def _go_on(self, child: Child, stop: int, event: int) -> None:
        if event == linux.PTRACE_EVENT_EXIT:
            child.own_cpu = running_time(child.pid)
            ptrace(linux.PTRACE_CONT, child.pid)
        elif stop == signal.SIGSTOP:
            # Of the whole process, as the first thread's, which Tracee.wait does not deliver either.
            self._let_go(child)
        else:
            super()._go_on(child, stop, event)

    def _let_go(self, child: Child, deliver: int = 0) -> None:
        if self._stopping:
            self._stopped[child.pid] = deliver
        else:
            super()._let_go(child, deliver)


def _most_at_once(threads: Sequence[Child]) -> int:
    """Most of them alive at the same time."""
    edges = [(t.began, 1) for t in threads] + [(t.ended, -1) for t in threads if t.ended is not None]
    alive = most = 0
    for _, change in sorted(edges):
        alive += change
        most = max(most, alive)
    return most


def threads_of(pid: int) -> set[int]:
    """Numbers of all threads of a process, the first among them. Raises OSError where it is gone."""
    return {int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()}
