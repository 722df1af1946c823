# SPDX-License-Identifier: Apache-2.0
"""Let a phase that is watched make calls that tell nothing without a stop: by a filter put into it (seccomp(2)).

A stop and the look at it take some 50 us. A region that blocks and unblocks signals in a loop makes a million calls a
second.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import struct
from collections.abc import Callable, Collection, Mapping

from checkpoint.binary.syscall_names import call_number
from checkpoint.linux import (
    PR_SET_NO_NEW_PRIVS,
    PTRACE_O_EXITKILL,
    PTRACE_O_TRACESECCOMP,
    PTRACE_O_TRACESYSGOOD,
    PTRACE_SETOPTIONS,
    PTRACE_SYSCALL,
)
from checkpoint.process.memory import patch_memory
from checkpoint.process.ptrace import Registers, ptrace, registers_of, set_registers, swap_signal_mask
from checkpoint.restore.known_calls import HARMLESS
from checkpoint.restore.watched_phase import Lost

FEWEST = 50_000
"""Calls that are watched one by one before any is let through."""

_LEAST_SHARE = 0.9
"""Share of all calls that those let through must have: or the rest takes long enough."""

_SYSCALL_STOP = signal.SIGTRAP | 0x80
_SYSCALL = b"\x0f\x05"
_RESTARTS = range(-516, -511)
"""What a call that was interrupted has returned before the kernel makes it again (ERESTARTSYS to its like)."""

_OPTIONS = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACESECCOMP | PTRACE_O_EXITKILL
_SET_MODE_FILTER, _SPEC_ALLOW = 1, 4
"""Operation of seccomp, and its flag without which older kernels make the processor speculate less from then on."""

# struct sock_filter (linux/filter.h), and what seccomp looks at (linux/seccomp.h: struct seccomp_data)
_FILTER = struct.Struct("<HBBI")
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER, _ARCHITECTURE = 0, 4
_X86_64 = 0xC000003E
_TRACE, _ALLOW = 0x7FF00000, 0x7FFF0000


def worth_it(counts: Mapping[int, int], made: int) -> frozenset[int]:
    """Which of the calls made so far, `made` in all, are to be let through; empty where that saves little."""
    those = HARMLESS & counts.keys()
    return those if sum(counts[number] for number in those) >= _LEAST_SHARE * made else frozenset()


def let_through(pid: int, numbers: Collection[int], wait: Callable[[], int]) -> bool:
    """Stop phase `pid`, which stands behind a system call, no longer for calls of these numbers, but by a seccomp event
    for all others. What it starts later inherits the filter.

    `wait` gives the status of its next stop, or raises Lost. Returns whether it is so: not behind a call that is to be
    made again, nor where another instruction made it, nor where the kernel takes no filter. Raises Lost.
    """
    saved = registers_of(pid)
    if not in_call(saved) or ctypes.c_long(saved.rax).value in _RESTARTS:
        return False
    program, mask = _program(numbers), None
    try:
        mask = swap_signal_mask(pid)
        if _bytes_at(pid, saved.rip - len(_SYSCALL), len(_SYSCALL)) != _SYSCALL:
            return False
        ptrace(PTRACE_SETOPTIONS, pid, 0, _OPTIONS)
        readable, own = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        at = _call(pid, wait, saved, "mmap", 0, mmap.PAGESIZE, readable, own, -1, 0)
        head = struct.pack("<H6xQ", len(program) // _FILTER.size, at + mmap.PAGESIZE - len(program))
        patch_memory(pid, [(at, head), (at + mmap.PAGESIZE - len(program), program)])
        _call(pid, wait, saved, "prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        try:
            _call(pid, wait, saved, "seccomp", _SET_MODE_FILTER, _SPEC_ALLOW, at)
        finally:
            with contextlib.suppress(OSError):
                _call(pid, wait, saved, "munmap", at, mmap.PAGESIZE)
        return True
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):  # it ended
            set_registers(pid, saved)
            if mask is not None:
                swap_signal_mask(pid, mask)


def in_call(registers: Registers) -> bool:
    """Whether a stop found the phase in a system call, or on its way out."""
    return ctypes.c_long(registers.orig_rax).value >= 0


def _program(numbers: Collection[int]) -> bytes:
    ordered = sorted(numbers)
    lines = [(_LOAD, 0, 0, _ARCHITECTURE), (_IF_EQUAL, 0, len(ordered) + 1, _X86_64), (_LOAD, 0, 0, _NUMBER)]
    lines += [(_IF_EQUAL, len(ordered) - k, 0, number) for k, number in enumerate(ordered)]
    return b"".join(_FILTER.pack(*line) for line in [*lines, (_RETURN, 0, 0, _TRACE), (_RETURN, 0, 0, _ALLOW)])


def _bytes_at(pid: int, address: int, size: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(size)


def _call(pid: int, wait: Callable[[], int], behind: Registers, name: str, *arguments: int) -> int:
    """Make a call by the instruction that the phase has just executed, and stand behind it again."""
    call = behind.calling(call_number(name), arguments)
    call.rip -= len(_SYSCALL)
    set_registers(pid, call)
    for _ in ("into it", "out of it"):
        stopped = 0
        # Behind the filter an event of it comes in between.
        while stopped != _SYSCALL_STOP:
            ptrace(PTRACE_SYSCALL, pid)
            status = wait()
            if not os.WIFSTOPPED(status):
                raise Lost("it ended while a filter was put into it")
            stopped = os.WSTOPSIG(status)
    return registers_of(pid).returned(name)
