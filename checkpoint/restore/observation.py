# SPDX-License-Identifier: Apache-2.0
"""Restore a phase once under ptrace, to its region's end, and see which of its pages are there. Build time only.

With its anonymous memory mapped from the pages file (checkpoint/restorer/observe.c), a page is there once somebody has
asked for it: the program, or the kernel on its behalf. Restored as usual, a page that was left out is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from checkpoint import strict_json
from checkpoint.binary.syscall_names import call_number
from checkpoint.errors import NodeUnfit, PhaseFailed
from checkpoint.flat.control import Confined, Option
from checkpoint.flat.image import FlatImage
from checkpoint.linux import (
    MAP_FIXED,
    MREMAP_FIXED,
    PAGE_SIZE,
    PTRACE_CONT,
    PTRACE_EVENT_SECCOMP,
    PTRACE_GETREGS,
    PTRACE_O_EXITKILL,
    PTRACE_O_TRACESECCOMP,
    PTRACE_O_TRACESYSGOOD,
    PTRACE_SETOPTIONS,
    PTRACE_SETREGS,
    PTRACE_SYSCALL,
    WALL,
)
from checkpoint.page_table import PageTable
from checkpoint.parent import die_with_parent
from checkpoint.process.memory import most_mappings
from checkpoint.process.ptrace import Registers, ptrace
from checkpoint.process.waiting import WAITS_FOR_EVER, EndlessWait
from checkpoint.restore.criu_restore import RESTORE_SECONDS, RestoreJob, region_limit
from checkpoint.restore.direct_agent import RESTORED, Control, launch
from checkpoint.restore.direct_restore import direct_spec
from checkpoint.restore.mapping_calls import LazyMemory, Spans
from checkpoint.restore.watched_phase import (
    Endless,
    Lost,
    NeverEnds,
    answer_of_child,
    confined,
    end_phase,
    ending,
    restorer_said,
)

_SYSCALL_STOP = signal.SIGTRAP | 0x80
_POLL_SECONDS = 0.0005
_LONGEST_ANSWER = 1 << 28
_MMAP, _MUNMAP, _MREMAP, _MADVISE, _BRK = map(call_number, ("mmap", "munmap", "mremap", "madvise", "brk"))
_DISCARDING = {4, 24}
"""MADV_DONTNEED, MADV_DONTNEED_LOCKED: pages are zeros afterwards; of a file they would be the file's."""
_FOR_ANONYMOUS = {8, 18}
"""MADV_FREE, MADV_WIPEONFORK: refused where memory is mapped from a file."""
_PAGING_OUT = {21}
"""MADV_PAGEOUT: pages of a file that were only read are then as if nobody had asked for them."""


@dataclass(frozen=True)
class Observed:
    """Addresses of the pages that were there, in rising order, and which of them were written. `in_groups`: this kernel
    shows up to fifteen neighbours with a page."""

    pages: tuple[int, ...]
    written: tuple[int, ...]
    in_groups: bool


def observe(
    job: RestoreJob,
    flat: FlatImage,
    pages: Path,
    restorer: Path,
    spans: Iterable[tuple[int, int]],
    *,
    lazily: bool,
    scratch: Path,
    margin: float = 0.0,
    cpu: int | None = None,
) -> Observed:
    """Restore the phase once, run it `margin` seconds beyond its region's end, and end it: pages of `spans` (address,
    pages) that were there at any time. Raises PhaseFailed, NodeUnfit."""
    if lazily:
        _refuse_pieces(job, flat)
    with tempfile.TemporaryDirectory(prefix=f"pages-{job.phase}-", dir=scratch) as name:
        spec = direct_spec(job, flat, pages, restorer, Path(name), cpu)
        watch = _Watch(spec, flat, Path(name), list(spans), lazily=lazily, margin=margin, job=job)
        text = answer_of_child(partial(_report, watch), _LONGEST_ANSWER)
    answer: dict[str, Any] = strict_json.loads(text) if text else {"failure": "its observer ended without an answer"}
    if "refused" in answer:
        raise NodeUnfit(f"phase {job.phase}: its pages could not be watched: {answer['refused']}")
    if "failure" in answer:
        error = NeverEnds if answer.get("endless") else PhaseFailed
        raise error(f"phase {job.phase}: {answer['failure']} while its pages were watched")
    return Observed(tuple(_pages(answer["pages"])), tuple(_pages(answer["written"])), bool(answer["in_groups"]))


def _refuse_pieces(job: RestoreJob, flat: FlatImage) -> None:
    """Raise NodeUnfit where the kernel lets no process have as many mappings as there are pieces of its memory: each
    gets one of its own, and so does what lies between two in a mapping."""
    starts, ends = {m.start for m in flat.mappings}, {m.end for m in flat.mappings}
    edges = {run.address for run in flat.runs} | {run.address + run.pages * PAGE_SIZE for run in flat.runs}
    most, needed = most_mappings(), len(starts | edges | ends) - len(ends - starts)
    if needed > most:
        raise NodeUnfit(
            f"phase {job.phase}: its memory is in {needed} pieces, and a process may have {most} mappings here: build "
            "with a larger vm.max_map_count"
        )


def _pages(stretches: Iterable[tuple[int, int]]) -> Iterator[int]:
    for address, pages in stretches:
        yield from range(address, address + pages * PAGE_SIZE, PAGE_SIZE)


def _report(watch: _Watch, writer: int, parent: int) -> NoReturn:
    """In a child of its own: watch the phase and write what was found to `writer`."""
    answer: dict[str, Any] = {"failure": "it failed"}
    try:
        die_with_parent(parent)
        answer = watch.run()
    except Lost as error:
        answer = {"failure": str(error), "endless": isinstance(error, Endless)}
    except OSError as error:
        answer = {"refused": str(error)}
    finally:
        with os.fdopen(writer, "wb") as out:
            out.write(strict_json.dumps(answer).encode())
        os._exit(0)


class _Watch:
    def __init__(
        self,
        spec: dict[str, Any],
        flat: FlatImage,
        folder: Path,
        spans: list[tuple[int, int]],
        *,
        lazily: bool,
        margin: float,
        job: RestoreJob,
    ) -> None:
        self._spec, self._folder, self._lazily, self._margin = spec, folder, lazily, margin
        self._stamps = flat.stamps
        self._spans = Spans((start, start + pages * PAGE_SIZE) for start, pages in spans)
        self._runs = self._spans.copy()
        self._seen, self._written = Spans(), Spans()
        self._brk = int(flat.header.mm.brk)
        self._limit = region_limit(job) + margin
        self._gone, self._ended = False, 0

    def run(self) -> dict[str, Any]:
        options = Option.FILTER_CALLS | Option.TRACE_MAPPINGS | (Option.MAP_LAZILY if self._lazily else 0)
        options |= confined(self._spec, self._folder)
        self._spec["option_bits"] = options
        control = Control(self._stamps, str(self._folder))
        self._deadline = time.monotonic() + RESTORE_SECONDS + self._limit
        self._restored = False
        self._pid = launch(self._spec, str(self._folder), control.fd, traced=True)
        self._waits = EndlessWait(self._pid)
        self._control = control
        try:
            self._to_the_end(control)
        finally:
            self._end()
        reported = control.report()[7]
        return {
            "pages": self._seen.stretches(),
            "written": self._written.stretches(),
            "in_groups": bool(self._lazily and reported & Confined.TOUCHES_IN_GROUPS),
        }

    def _to_the_end(self, control: Control) -> None:
        if not os.WIFSTOPPED(self._wait()):
            raise Lost(f"it could not be started ({restorer_said(control)})")
        wanted = PTRACE_O_EXITKILL | PTRACE_O_TRACESECCOMP | PTRACE_O_TRACESYSGOOD
        ptrace(PTRACE_SETOPTIONS, self._pid, 0, wanted)
        self._memory = LazyMemory(self._pid, self._spec["pages"])

        def has_ended() -> bool:
            return bool(control.event(self._spec["end"])[0])

        if not self._go_on(lambda: control.report()[0] == RESTORED, has_ended):
            raise Lost(f"it ended before its region did ({ending(self._ended, control)})")
        self._look()
        if self._margin:
            # That it ends behind its region is its own matter.
            with suppress(Lost, OSError):
                self._deadline = time.monotonic() + self._margin
                if self._go_on(lambda: True, lambda: False, stop_at_deadline=True):
                    self._look()

    def _go_on(
        self, restored: Callable[[], bool], has_ended: Callable[[], bool], *, stop_at_deadline: bool = False
    ) -> bool:
        """Let it run until it has stopped itself at its end, or was stopped at the deadline; whether it still lives."""
        deliver = 0
        while True:
            ptrace(PTRACE_CONT, self._pid, 0, deliver)
            deliver = 0
            status = self._wait(stop_at_deadline)
            if not os.WIFSTOPPED(status):
                return False
            if status >> 16 == PTRACE_EVENT_SECCOMP:
                if restored():
                    self._at_call()
                continue
            stopped = os.WSTOPSIG(status)
            if stopped != signal.SIGSTOP:
                deliver = stopped
            elif has_ended() or (stop_at_deadline and time.monotonic() >= self._deadline):
                return True

    def _wait(self, stop_at_deadline: bool = False) -> int:
        asked = False
        while True:
            found, status = os.waitpid(self._pid, os.WNOHANG | WALL)
            if found:
                self._gone = os.WIFEXITED(status) or os.WIFSIGNALED(status)
                self._ended = status
                return status
            if self._waits.is_found():
                if not stop_at_deadline:
                    raise Endless(WAITS_FOR_EVER)
                self._deadline = time.monotonic()
            if not (self._restored or stop_at_deadline) and self._control.report()[0] == RESTORED:
                self._restored, self._deadline = True, time.monotonic() + self._limit
            if time.monotonic() >= self._deadline and not asked:
                if not stop_at_deadline:
                    raise Endless("its region did not end")
                os.kill(self._pid, signal.SIGSTOP)
                asked = True
            time.sleep(_POLL_SECONDS)

    def _end(self) -> None:
        if not self._gone:
            end_phase(self._pid)

    def _look(self, start: int = 0, end: int = 1 << 47) -> None:
        """Note which pages of [start, end) are there."""
        with PageTable(self._pid) as table:
            for low, high in self._spans.inside(start, end):
                self._seen.add_all((a, a + n * PAGE_SIZE) for a, n in table.present(low, high))
                self._written.add_all((a, a + n * PAGE_SIZE) for a, n in table.own_pages(low, high))

    def _at_call(self) -> None:
        """The program is about to make a call that may take pages away, move them, or not work on a file's."""
        registers = Registers()
        ptrace(PTRACE_GETREGS, self._pid, 0, ctypes.addressof(registers))
        number, first, second, third = registers.orig_rax, registers.rdi, registers.rsi, registers.rdx
        going: list[tuple[int, int]] = []
        if first % PAGE_SIZE and number != _BRK:
            # Refused by the kernel.
            return
        if number == _MUNMAP or (number == _MMAP and registers.r10 & MAP_FIXED):
            going = [(first, first + second)]
        elif number == _BRK and first:
            going = [(first, self._brk)] if first < self._brk else []
            self._brk = first
        elif number == _MREMAP:
            if self._make_anonymous(registers, first, first + second, keep=True):
                return
            going = [(first, first + second)]
            going += [(registers.r8, registers.r8 + third)] if registers.r10 & MREMAP_FIXED else []
        elif number == _MADVISE and third in _DISCARDING | _FOR_ANONYMOUS:
            if self._make_anonymous(registers, first, first + second, keep=third in _FOR_ANONYMOUS):
                return
            going = [(first, first + second)] if third in _DISCARDING else []
        elif number == _MADVISE and third in _PAGING_OUT:
            self._look(first, first + second)
        going = [(low & -PAGE_SIZE, -(-high // PAGE_SIZE) * PAGE_SIZE) for low, high in going if low < high <= 1 << 47]
        if not going:
            return
        for low, high in going:
            self._look(low, high)
        if self._made():
            for low, high in going:
                self._spans.remove(low, high)

    def _made(self) -> bool:
        """Let the call happen; whether it succeeded."""
        ptrace(PTRACE_SYSCALL, self._pid, 0, 0)
        if os.WSTOPSIG(self._wait()) != _SYSCALL_STOP:
            raise Lost("it did not come back from a system call")
        after = Registers()
        ptrace(PTRACE_GETREGS, self._pid, 0, ctypes.addressof(after))
        return not -4096 < ctypes.c_long(after.rax).value < 0

    def _make_anonymous(self, registers: Registers, start: int, end: int, *, keep: bool) -> bool:
        """Turn one piece of [start, end) that is mapped from the pages file into anonymous memory, `keep`: with its
        contents. Whether there was one; then the program makes its call once more."""
        piece = self._memory.first_lazy(start, end) if self._lazily else None
        if piece is None:
            return False
        self._look(piece.start, piece.end)
        contents = self._memory.read(self._runs.inside(piece.start, piece.end)) if keep else []
        if keep:
            self._seen.add_all(self._runs.inside(piece.start, piece.end))
        call = registers.copy()
        call.orig_rax = call.rax = _MMAP
        call.rdi, call.rsi, call.rdx, call.r10 = piece.start, piece.end - piece.start, piece.protection, piece.flags
        call.r8, call.r9 = 2**64 - 1, 0
        ptrace(PTRACE_SETREGS, self._pid, 0, ctypes.addressof(call))
        if not self._made():
            raise Lost("its memory could not be made anonymous")
        self._memory.write(contents)
        again = registers.copy()
        again.rip -= 2
        again.rax = registers.orig_rax
        ptrace(PTRACE_SETREGS, self._pid, 0, ctypes.addressof(again))
        return True
