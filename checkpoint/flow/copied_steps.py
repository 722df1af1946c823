# SPDX-License-Identifier: Apache-2.0
"""Steps of a traced process made in copies of its code, which note what they use (copied_block.py)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from checkpoint.binary.syscall_names import call_number
from checkpoint.errors import ProgramFailed
from checkpoint.flow.copied_block import (
    EXIT_BYTES,
    FULL,
    HEAD_NOTES,
    LEFT_AT,
    LINK,
    MOST_INSTRUCTIONS,
    NEXT_AT,
    CopiedBlock,
    Exit,
    copied_block,
)
from checkpoint.flow.flow import Window
from checkpoint.flow.stepping import Areas, step, window_of, without_area
from checkpoint.flow.stubs_in_place import MappedImage
from checkpoint.linux import PAGE_SIZE, PTRACE_CONT
from checkpoint.process.maps import MapEntry, find_gap, read_maps
from checkpoint.process.ptrace import Registers, ptrace
from checkpoint.process.tracee import Tracee
from checkpoint.process.waiting import last_processor
from checkpoint.restore.watched_phase import Lost

_AREA = 8 << 20
_HIGHEST_STATE, _LOWEST_STATE = 0x70000000, 0x10000000
"""Where the page of state and the notes may lie: every instruction reaches them without a register."""

_MOST_NOTED = HEAD_NOTES + 3 * MOST_INSTRUCTIONS
_MOST_BLOCKS = 8192
_NOTES = _MOST_BLOCKS * _MOST_NOTED * 8
_BLOCK_INSTRUCTIONS = 4
"""Blocks have about as many: steps that are missing are asked for in so many fewer blocks, so that few are too many."""

_REACH = 1 << 31
_LONGEST_COPY = 16 << 10
_RETURN = (b"\xc3", b"\xf3\xc3", b"\xf2\xc3")

_CHANGING_CODE = {call_number(name) for name in ("mmap", "munmap", "mremap", "mprotect", "pkey_mprotect")}
_REMAP = call_number("mremap")

Signalled = Callable[[int], NoReturn]
"""Told of a signal that comes while steps are noted: raises Lost. Its handler would see addresses of the copies."""

Wait = Callable[[], int]
"""Waits for the next stop of the process, and gives its status. Raises Lost at the run's deadline."""


class _Area:
    """Room for copies near one image."""

    def __init__(self, base: int) -> None:
        self.base, self.used = base, 0

    @property
    def free(self) -> int:
        return self.base + self.used

    def has_room(self) -> bool:
        return self.used + _LONGEST_COPY <= _AREA

    def reaches(self, address: int) -> bool:
        return abs(address - self.base) < _REACH - _AREA - PAGE_SIZE


class CopiedSteps:
    """Copies of the code of one traced process, which is stopped: of images and stubs, which stay as they are while no
    call maps memory over them. Raises LookupError, OSError where the copies have no room."""

    def __init__(
        self, tracee: Tracee, images: Sequence[MappedImage], stubs: Areas, signalled: Signalled, wait: Wait
    ) -> None:
        self._tracee, self._pid, self._stubs = tracee, tracee.pid, stubs
        self._signalled, self._wait = signalled, wait
        self._images = [(one.low, one.high) for one in images]
        self._code: list[tuple[int, int]] | None = None
        self._state = self._low_memory()
        self._areas = []
        for one in images:
            # Its stubs are copied, too, and refer to counters beside them.
            its = [(one.low, one.high), *(area for area in stubs if abs(area[0] - one.low) < _REACH)]
            low, high = min(start for start, _ in its), max(end for _, end in its)
            # Without room near it, its steps are made one by one.
            with contextlib.suppress(LookupError):
                base = find_gap(read_maps(self._pid), low, high, _AREA)
                tracee.map_memory(base, _AREA, executable=True)
                self._areas.append(_Area(base))
        self._forget()

    def _forget(self) -> None:
        """Copy all code anew where it is reached again. The room of the old copies stays used."""
        self._code = None
        self._blocks: dict[int, CopiedBlock | None] = {}
        self._start: dict[int, int] = {}
        self._original: dict[int, int] = {}
        self._exits: dict[int, Exit] = {}

    def _low_memory(self) -> int:
        for address in range(_HIGHEST_STATE, _LOWEST_STATE, -_NOTES * 4):
            with contextlib.suppress(OSError):
                self._tracee.map_memory(address, PAGE_SIZE + _NOTES, executable=False)
                return address
        raise LookupError("no memory is free below 2 GB")

    def called(self, number: int, registers: Registers) -> None:
        """Told of each system call of the process."""
        if number not in _CHANGING_CODE:
            return
        changed = [(registers.rdi, registers.rdi + registers.rsi)]
        if number == _REMAP:
            changed.append((registers.r8, registers.r8 + registers.rdx))
        if any(a < high and low < b for a, b in changed for low, high in (*self._images, *self._stubs)):
            self._forget()

    def call_unseen(self) -> None:
        """Told before steps are made where system calls were made of which `called` was not told."""
        self._forget()

    def make(
        self, most: int, note_call: Callable[[npt.NDArray[np.uint64]], None], stubs: Areas, until: float
    ) -> tuple[Window, int]:
        """Make so many steps: the window, and the status of a stop that was none (0: all were made). `note_call` gets
        the registers of steps made one by one, among them all system calls; `stubs` as in `window_of`. Raises Lost, and
        TimeoutError where one has not ended at `until` (time.monotonic)."""
        self._until = until
        parts: list[Window] = []
        made = status = 0
        ours = os.sched_getaffinity(0)
        # On one processor with it: waking another one takes many times as long as a stop.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {last_processor(self._pid)})
        try:
            while made < most and not status:
                registers = self._tracee.registers()
                self._outside(registers.rip)
                if self._block(registers.rip) is not None:
                    status = self._run(registers, min(_MOST_BLOCKS, (most - made) // _BLOCK_INSTRUCTIONS + 1))
                    if status and not os.WIFSTOPPED(status):
                        break
                    part = self._noted(int(registers.fs_base))
                else:
                    noted, status = self._step()
                    note_call(noted)
                    part = window_of(noted, self._tracee.read, ())
                parts.append(part)
                made += len(part)
        finally:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, ours)
        return _joined(parts, most, stubs), status

    def _step(self) -> tuple[npt.NDArray[np.uint64], int]:
        noted, status = step(self._pid, 1, self._until)
        if os.WIFSTOPPED(status):
            self._only_stops(os.WSTOPSIG(status))
        return noted, status

    def _only_stops(self, number: int) -> None:
        if number not in (0, signal.SIGSTOP, signal.SIGTRAP):
            self._signalled(number)

    def _outside(self, address: int) -> None:
        if any(area.base <= address < area.base + _AREA for area in self._areas):
            raise Lost(f"it was stopped at {address:#x}, in the midst of a copy of its code")

    def _block(self, address: int) -> CopiedBlock | None:
        if address not in self._blocks:
            self._blocks[address] = self._copied(address)
        return self._blocks[address]

    def _copied(self, address: int) -> CopiedBlock | None:
        if self._code is None:
            self._code = [*self._stubs, *_lasting_code(read_maps(self._pid), self._images)]
        end = next((end for start, end in self._code if start <= address < end), None)
        if end is None:
            return None
        near = min((a for a in self._areas if a.reaches(address)), key=lambda a: abs(a.base - address), default=None)
        if near is None or not near.has_room():
            return None
        read = self._tracee.read
        found = copied_block(lambda at, size: read(at, min(size, end - at)), address, near.free, self._state)
        if found is not None:
            self._tracee.write(near.free, found.code)
            self._start[address], self._original[near.free] = near.free, address
            self._exits.update((one.at, one) for one in found.exits)
            near.used += len(found.code)
        return found

    def _run(self, registers: Registers, blocks: int) -> int:
        """Run copies from where the process is, until so many blocks were begun, or an instruction has no copy; the
        status of another stop, or 0."""
        notes = self._state + PAGE_SIZE
        self._tracee.write(self._state + LEFT_AT, struct.pack("<QQ", blocks, notes))
        registers.rip = self._start[registers.rip]
        self._tracee.set_registers(registers)
        while True:
            ptrace(PTRACE_CONT, self._pid, 0, 0)
            status = self._wait()
            if not os.WIFSTOPPED(status):
                return status
            self._only_stops(os.WSTOPSIG(status))
            registers = self._tracee.registers()
            if os.WSTOPSIG(status) == signal.SIGSTOP:
                # A point that was reached in the step before: nothing of the copy has run.
                registers.rip = self._original.get(registers.rip, registers.rip)
                self._outside(registers.rip)
                self._tracee.set_registers(registers)
                return status
            left = self._exits.get(registers.rip - 1)
            if left is None:
                raise ProgramFailed(f"a trap at {registers.rip:#x} that is none of ours")
            registers.rip = left.target
            stopped = self._go_on(registers) if left.kind not in (FULL, LINK) else 0
            known = left.kind != FULL and not stopped and self._block(registers.rip) is not None
            if known:
                if left.kind == LINK:
                    self._link(left, self._start[registers.rip])
                registers.rip = self._start[registers.rip]
            if not stopped:
                self._tracee.set_registers(registers)
            if stopped or not known:
                return stopped

    def _link(self, left: Exit, goal: int) -> None:
        distance = goal - (left.at + EXIT_BYTES)
        if abs(distance) < _REACH:
            self._tracee.write(left.at, b"\xe9" + struct.pack("<i", distance))

    def _go_on(self, registers: Registers) -> int:
        """Execute the instruction at `registers.rip` that says itself where to go on; a status as in `_run`."""
        code = self._tracee.read(registers.rip, 2)
        if code.startswith(_RETURN):
            # Most are these. A step under ptrace takes much longer.
            registers.rip = int.from_bytes(self._tracee.read(registers.rsp, 8), "little")
            registers.rsp += 8
            return 0
        self._tracee.set_registers(registers)
        _, status = self._step()
        if not status:
            now = self._tracee.registers()
            ctypes.memmove(ctypes.byref(registers), ctypes.byref(now), ctypes.sizeof(Registers))
        return status

    def _noted(self, segment: int) -> Window:
        notes = self._state + PAGE_SIZE
        end = int.from_bytes(self._tracee.read(self._state + NEXT_AT, 8), "little")
        words = np.frombuffer(self._tracee.read(notes, end - notes), dtype=np.uint64) if end > notes else _NOTHING
        blocks, starts = [], []
        at = 0
        while at < len(words):
            block = self._blocks.get(int(words[at]))
            starts.append(at)
            at += HEAD_NOTES + len(block.noted[0]) if block else len(words)
            if block is None or at > len(words):
                raise Lost("its steps were not noted as its blocks are")
            blocks.append(block)
        return _window(words, blocks, np.array(starts, dtype=np.int64), segment)


def _lasting_code(maps: Sequence[MapEntry], images: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Where the images' files are mapped as code that cannot be written: no code is made there while the program
    runs."""
    return [
        (one.start, one.end)
        for one in maps
        if one.path.startswith("/") and "x" in one.permissions and "w" not in one.permissions
        and any(low <= one.start and one.end <= high for low, high in images)
    ]  # fmt: skip


_NOTHING = np.zeros(0, dtype=np.uint64)


def _window(
    words: npt.NDArray[np.uint64], blocks: Sequence[CopiedBlock], starts: npt.NDArray[np.int64], segment: int
) -> Window:
    """The steps of blocks whose notes begin at `starts` in `words`. The stack pointer is that of a block's head."""
    if not blocks:
        return Window(_NOTHING, _NOTHING, _NOTHING, np.zeros(0, dtype=np.bool_))
    lengths = np.array([len(one.places) for one in blocks], dtype=np.int64)
    first = np.cumsum(lengths) - lengths
    used = np.zeros(int(lengths.sum()), dtype=np.uint64)
    number = np.array([one.address for one in blocks], dtype=np.uint64)
    for address in np.unique(number):
        rows = np.flatnonzero(number == address)
        block = blocks[int(rows[0])]
        for word, (at, by) in enumerate(zip(*block.noted, strict=True)):
            used[first[rows] + at] += words[starts[rows] + HEAD_NOTES + word] * by
        for at in np.flatnonzero(block.segment).tolist():
            used[first[rows] + at] += np.uint64(segment)
    return Window(
        np.concatenate([one.places for one in blocks]),
        np.repeat(words[starts + 1], lengths),
        used,
        np.concatenate([one.unknown for one in blocks]),
    )


def _joined(parts: Sequence[Window], most: int, stubs: Areas) -> Window:
    if not parts:
        return Window(_NOTHING, _NOTHING, _NOTHING, np.zeros(0, dtype=np.bool_))
    places, stack, used, unknown = (
        np.concatenate([getattr(part, name) for part in parts])[:most]
        for name in ("places", "stack", "used", "unknown")
    )
    return Window(without_area(places, stubs), stack, used, unknown)
