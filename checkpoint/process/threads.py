# SPDX-License-Identifier: Apache-2.0
"""Follow the threads of a program beside its first, which does the work: they wait, and a probe goes without them."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

from checkpoint import linux
from checkpoint.errors import ProgramUnsupported
from checkpoint.process.children import STARTED, Child, Children, end, event_message, is_thread, reap
from checkpoint.process.plain_run import turns_of
from checkpoint.process.ptrace import ptrace
from checkpoint.process.waiting import process_state

ADVICE = "run it with one thread (an option of its own, or OMP_NUM_THREADS=1)"

_ASLEEP = ("S", "t", "T", "")
_SETTLE_SECONDS = 2.0
_POLL_SECONDS = 0.0005


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
        return any(process_state(number) not in _ASLEEP for number in list(self._living))

    def settle(self) -> None:
        """Wait until all are asleep, while the first thread is stopped. Raises ProgramUnsupported where one works on.

        So nothing runs in code that is about to be changed, nor writes to memory that is about to be copied.
        """
        deadline = time.monotonic() + _SETTLE_SECONDS
        while self.awake():
            if time.monotonic() > deadline:
                raise self._refused("works on by itself while the first is stopped")
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
            ptrace(linux.PTRACE_CONT, child.pid)
            return
        if event == linux.PTRACE_EVENT_EXIT:
            self._name_of(child)
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


def threads_of(pid: int) -> set[int]:
    """Numbers of all threads of a process, the first among them. Raises OSError where it is gone."""
    return {int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()}
