# SPDX-License-Identifier: Apache-2.0
"""ptrace(2), called from Python."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from collections.abc import Sequence

from checkpoint import linux
from checkpoint.errors import PrivilegeMissing

ALL_BUT_TRAP = ~(1 << (signal.SIGTRAP - 1)) & (2**64 - 1)
"""A signal mask under which code put into a program reaches its breakpoint, and no handler of the program's runs."""

_LARGEST_ERRNO = 4095
_POLL_SECONDS = 0.00005

_GS_BASE = 22 * 8
"""struct user: where PTRACE_POKEUSER finds the GS base."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Registers(ctypes.Structure):
    """struct user_regs_struct of x86-64 Linux."""

    _fields_ = [
        (name, ctypes.c_ulonglong)
        for name in (
            *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
            *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
        )
    ]

    def copy(self) -> Registers:
        return Registers.from_buffer_copy(self)

    def calling(self, number: int, arguments: Sequence[int]) -> Registers:
        """The same, about to make a system call."""
        call = self.copy()
        call.rax, call.orig_rax = number, 2**64 - 1
        padded = [a & (2**64 - 1) for a in arguments] + [0] * (6 - len(arguments))
        call.rdi, call.rsi, call.rdx, call.r10, call.r8, call.r9 = padded
        return call

    def returned(self, what: str) -> int:
        """What a system call has returned. Raises OSError with `what` where it failed."""
        value = ctypes.c_longlong(self.rax).value
        if -_LARGEST_ERRNO <= value < 0:
            raise OSError(-value, f"{what}: {os.strerror(-value)}")
        return value


def ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> int:
    """One request; its result. Raises PrivilegeMissing, OSError."""
    ctypes.set_errno(0)
    result: int = _libc.ptrace(request, pid, address, data)
    if result == -1 and ctypes.get_errno():
        number = ctypes.get_errno()
        if number == errno.EPERM:
            raise PrivilegeMissing(
                f"ptrace of process {pid} is refused (kernel.yama.ptrace_scope, or a container's filter)"
            )
        raise OSError(number, f"ptrace request {request:#x} on {pid}: {os.strerror(number)}")
    return result


def registers_of(number: int) -> Registers:
    """The registers of a stopped thread."""
    found = Registers()
    ptrace(linux.PTRACE_GETREGS, number, 0, ctypes.addressof(found))
    return found


def set_registers(number: int, registers: Registers) -> None:
    """Give a stopped thread other registers."""
    ptrace(linux.PTRACE_SETREGS, number, 0, ctypes.addressof(registers))


def move_by(number: int, bytes_: int) -> None:
    """Let a stopped thread go on so many bytes behind where it would."""
    registers = registers_of(number)
    registers.rip += bytes_
    set_registers(number, registers)


def stands_at(number: int, code: int) -> bool:
    """Whether a stopped thread is about to execute an instruction that begins with this byte."""
    return ptrace(linux.PTRACE_PEEKTEXT, number, registers_of(number).rip) & 0xFF == code


def interrupt(number: int) -> None:
    """Ask a running thread to stop wherever it is. One that has ended is not asked."""
    with contextlib.suppress(ProcessLookupError):
        ptrace(linux.PTRACE_INTERRUPT, number)


class GsBases:
    """The GS bases that threads of one process were given; that of its `first` is 0 from the start."""

    def __init__(self, first: int) -> None:
        self._given: dict[int, int] = {first: 0}

    def give(self, number: int, base: int) -> None:
        """Give it to a stopped thread."""
        ptrace(linux.PTRACE_POKEUSER, number, _GS_BASE, base)
        self._given[number] = base

    def kept(self, number: int, event: int) -> bool:
        """Whether a thread that stands at a ptrace event, or another stop (0), still has its own, or is gone."""
        if event == linux.PTRACE_EVENT_EXEC:
            self._given[number] = 0
        if number not in self._given:
            # Killed before it could be given one: it has that of the thread which started it.
            return True
        try:
            return bool(registers_of(number).gs_base == self._given[number])
        except ProcessLookupError:
            return True


def signal_mask(number: int) -> int:
    """The signals that a stopped thread has blocked, bit number - 1."""
    found = ctypes.c_uint64()
    ptrace(linux.PTRACE_GETSIGMASK, number, ctypes.sizeof(found), ctypes.addressof(found))
    return found.value


def swap_signal_mask(number: int, mask: int = ALL_BUT_TRAP) -> int:
    """Block the signals of `mask` (bit number - 1) in a stopped thread; those blocked so far."""
    before = signal_mask(number)
    after = ctypes.c_uint64(mask)
    ptrace(linux.PTRACE_SETSIGMASK, number, ctypes.sizeof(after), ctypes.addressof(after))
    return before


def is_breakpoint(number: int) -> bool:
    """Whether a thread that stands at a SIGTRAP executed int3: a signal sent by the program carries another code."""
    info = (ctypes.c_int * 32)()
    ptrace(linux.PTRACE_GETSIGINFO, number, 0, ctypes.addressof(info))
    return bool(info[2] == linux.SI_KERNEL)


def run_to_breakpoint(number: int, seconds: float) -> bool:
    """Let a stopped thread run until it executes int3, past other stops, which come to nothing. False where it ends, or
    `seconds` pass."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError):
        ptrace(linux.PTRACE_CONT, number)
        while time.monotonic() < deadline:
            found, status = os.waitpid(number, linux.WALL | os.WNOHANG)
            if not found:
                time.sleep(_POLL_SECONDS)
                continue
            if not os.WIFSTOPPED(status) or status >> 16 == linux.PTRACE_EVENT_EXIT:
                break
            if os.WSTOPSIG(status) == signal.SIGTRAP and not status >> 16 and is_breakpoint(number):
                return True
            ptrace(linux.PTRACE_CONT, number)
    return False
