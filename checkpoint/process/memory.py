# SPDX-License-Identifier: Apache-2.0
"""Memory and mappings of another process: read at any time, written and mapped while it is stopped."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from checkpoint import linux
from checkpoint.binary.syscall_names import call_number
from checkpoint.errors import ProgramFailed
from checkpoint.process.maps import MapEntry, parsed_maps
from checkpoint.process.occurrence import ENDED_MEANWHILE
from checkpoint.process.ptrace import Registers
from checkpoint.process.waiting import last_processor, threads_of

_PIECE = 1 << 16
_SYSCALL_TRAP = b"\x0f\x05\xcc"
_MOST_MAPPINGS = Path("/proc/sys/vm/max_map_count")


class ProcessMemory:
    """/proc/PID/mem and /proc/PID/maps of one process, once `reopen_memory` was called.

    Both stay open: a program that has called prctl(PR_SET_DUMPABLE, 0) lets its own user open neither any more.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._memory: int | None = None
        self._maps: int | None = None
        self._written = False

    def reopen_memory(self) -> None:
        """They stay with the address space they were opened on: open them again after an execve."""
        self.close_memory()
        self._memory = os.open(f"/proc/{self.pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        self._maps = os.open(f"/proc/{self.pid}/maps", os.O_RDONLY | os.O_CLOEXEC)

    def mappings(self) -> list[MapEntry]:
        """All mappings of the process, in address order."""
        assert self._maps is not None
        os.lseek(self._maps, 0, os.SEEK_SET)
        text = bytearray()
        while piece := os.read(self._maps, _PIECE):
            text += piece
        return parsed_maps(os.fsdecode(bytes(text)))

    def read(self, address: int, size: int) -> bytes:
        """Exactly `size` bytes at `address`. Raises OSError where they are not mapped."""
        assert self._memory is not None
        data = os.pread(self._memory, size, address)
        if len(data) != size:
            raise OSError(errno.EFAULT, f"only {len(data)} of {size} bytes at {address:#x}")
        return data

    def read_counters(self, address: int, into: npt.NDArray[np.int64]) -> None:
        """Fill `into` with the 64-bit counters at `address`, while the program may be running."""
        assert self._memory is not None
        if len(into) and os.preadv(self._memory, [into.view(np.uint8).data], address) != into.nbytes:
            raise OSError(errno.EFAULT, f"counters at {address:#x} are gone")

    def write(self, address: int, data: bytes | memoryview) -> None:
        """Write `data` even where the program may not (its text becomes private copies). Process stopped.

        Raises OSError where nothing is mapped, ProgramFailed where it was killed meanwhile.
        """
        assert self._memory is not None
        self._written, done = True, 0
        while done < len(data):
            written = os.pwrite(self._memory, data[done:], address + done)
            if not written:
                # Of a process whose memory is gone the kernel takes nothing, and calls it no error.
                raise ProgramFailed(f"process {self.pid}{ENDED_MEANWHILE}")
            done += written

    def settle(self) -> None:
        """What was written since the last time counts as if the program had always had it: it runs as fast."""
        if self._written:
            self._written = False
            visit_processors_of(self.pid)

    def auxiliary(self, key: int) -> int:
        """The value of an auxiliary vector entry (AT_*), 0 where it is absent."""
        with open(f"/proc/{self.pid}/auxv", "rb") as file:
            raw = file.read()
        found: dict[int, int] = dict(struct.iter_unpack("<QQ", raw[: len(raw) // 16 * 16]))
        return found.get(key, 0)

    def close_memory(self) -> None:
        for file in (self._memory, self._maps):
            if file is not None:
                os.close(file)
        self._memory = self._maps = None


def visit_processors_of(pid: int) -> None:
    """Run for a moment on each processor that a thread of the stopped process was on last, where we may.

    Code that was written from another processor runs slower, by a quarter and for seconds, until a processor that had
    nothing else to do meanwhile has switched to another process and back: seen on a virtual machine (AMD EPYC, Linux
    6.18), with jumps in a loop. Plain runs have no such code.
    """
    before, last = os.sched_getaffinity(0), set()
    with contextlib.suppress(OSError):
        for number in threads_of(pid):
            with contextlib.suppress(OSError):
                last.add(last_processor(f"{pid}/task/{number}"))
    try:
        for cpu in last:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, {cpu})
    finally:
        os.sched_setaffinity(0, before)


def most_mappings() -> int:
    """How many mappings a process may have on this machine (vm.max_map_count)."""
    try:
        return int(_MOST_MAPPINGS.read_text())
    except (OSError, ValueError):
        return sys.maxsize


def patch_memory(pid: int, patches: Iterable[tuple[int, bytes]]) -> None:
    """Write each piece to its address in a process that is stopped."""
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for address, data in patches:
            memory.seek(address)
            memory.write(data)


class CallableProcess(ProcessMemory):
    """A process that can be stopped and made to run code put into it: system calls, then."""

    @property
    def is_stopped(self) -> bool:
        """Whether ptrace can be asked."""
        raise NotImplementedError

    def registers(self) -> Registers:
        """Those of the stopped process."""
        raise NotImplementedError

    def run_to_trap(self, start: Registers) -> Registers:
        """Run code that was put into it, from `start` to its breakpoint; the registers there."""
        raise NotImplementedError

    def system_call(self, number: int, *arguments: int) -> int:
        """Make one system call inside the process, stopped at an instruction of its own (entry, breakpoint).

        Raises OSError where the call fails, ProgramFailed where the process is killed meanwhile.
        """
        try:
            saved = self.registers()
            code = self.read(saved.rip, len(_SYSCALL_TRAP))
            self.write(saved.rip, _SYSCALL_TRAP)
            try:
                after = self.run_to_trap(saved.calling(number, arguments))
            finally:
                if self.is_stopped:
                    self.write(saved.rip, code)
        except ProcessLookupError as error:
            raise ProgramFailed(f"process {self.pid}{ENDED_MEANWHILE}") from error
        return after.returned(f"system call {number} inside process {self.pid}")

    def map_memory(self, address: int, size: int, *, executable: bool) -> None:
        """Map `size` bytes of private memory at exactly `address`. Raises OSError where something lies there."""
        protection = mmap.PROT_READ | (mmap.PROT_EXEC if executable else mmap.PROT_WRITE)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | linux.MAP_FIXED_NOREPLACE
        if (got := self.system_call(call_number("mmap"), address, size, protection, flags, -1, 0)) != address:
            raise OSError(errno.EEXIST, f"asked to map at {address:#x}, got {got:#x}")
