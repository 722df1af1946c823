# SPDX-License-Identifier: Apache-2.0
"""Read what ptrace and /proc say of a stopped process: registers, signals, limits, layout."""

from __future__ import annotations

import ctypes
import resource
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from checkpoint.binary.syscall_names import call_number
from checkpoint.capture.injected import Answers
from checkpoint.criu.fields import REGISTERS
from checkpoint.flat.image import LIMITS, MOST_PENDING
from checkpoint.linux import PTRACE_GET_RSEQ_CONFIGURATION, PTRACE_GETREGSET, PTRACE_PEEKSIGINFO
from checkpoint.process.plain_run import running_nanoseconds
from checkpoint.process.ptrace import Registers, ptrace
from checkpoint.process.waiting import stat_fields, status_of
from checkpoint.state.process_state import ExtendedState, Layout, ThreadState
from checkpoint.state.shared_memory import NEVER_SENT, QueuedSignal

_NT_X86_XSTATE = 0x202
_MOST_STATE = 1 << 16
_LEGACY_BYTES = 416
"""Of the 512 bytes of FXSAVE, those that hold registers."""
_BITMAP_AT = 512
_COMPONENTS = ((2, "ymm_high"), (5, "opmask"), (6, "zmm_high"), (7, "zmm_more"))
_KEYS, _SHADOW_STACK = 9, 11
_NAMES = {"ax": "rax", "bx": "rbx", "cx": "rcx", "dx": "rdx", "si": "rsi", "di": "rdi", "sp": "rsp", "bp": "rbp",
          "ip": "rip", "orig_ax": "orig_rax", "flags": "eflags"}  # fmt: skip
"""ptrace's names of registers that a process's state calls otherwise."""
_NO_LIMIT = (1 << 64) - 1
_FIRST_STAT_FIELD = 3
_TICK = 10**7
"""Nanoseconds: the longest that kernels have."""
_PROCESS_CLOCK = 2
"""Beside the complement of a process number, shifted by three bits: clock_getcpuclockid(3)."""
_PEEKSIGINFO_SHARED, _SIGINFO_BYTES, _AT_ONCE = 1, 128, 64

_libc = ctypes.CDLL(None, use_errno=True)


class _Peek(ctypes.Structure):
    """struct ptrace_peeksiginfo_args."""

    _fields_ = [("offset", ctypes.c_uint64), ("flags", ctypes.c_uint32), ("count", ctypes.c_int32)]


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class _Rseq(ctypes.Structure):
    """struct ptrace_rseq_configuration."""

    _fields_ = [
        ("pointer", ctypes.c_uint64), ("size", ctypes.c_uint32), ("signature", ctypes.c_uint32),
        ("flags", ctypes.c_uint32), ("pad", ctypes.c_uint32),
    ]  # fmt: skip


def name_of(pid: int, number: int) -> str:
    """What a thread of the process calls itself."""
    said = Path(f"/proc/{pid}/task/{number}/comm").read_bytes()
    return said.removesuffix(b"\n").decode("utf-8", "surrogateescape")


def clocks_of(pid: int, shift: int) -> tuple[int, ...]:
    """What the clocks say that checkpoint/flat/vdso.py names, in nanoseconds: those of time a tick later. Coarse ones
    lag by a part of a tick, and shall not go back. `shift`: by how much the program's time of day is later."""
    process = time.clock_gettime_ns(~pid << 3 | _PROCESS_CLOCK)
    real, monotonic, boot, raw, atomic = (
        time.clock_gettime_ns(clock) + _TICK
        for clock in (
            time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC_RAW, time.CLOCK_TAI,
        )
    )  # fmt: skip
    # The kernel tells no other process a thread's clock; of the first thread it writes the same number here.
    own = running_nanoseconds(pid) or process
    return real + shift, monotonic, boot, process, own, raw, atomic + shift


def registers_of(found: Registers) -> dict[str, int]:
    """General registers by the names of a process's state."""
    return {name: int(getattr(found, _NAMES.get(name, name))) for name in REGISTERS}


def extended_state(pid: int, places: dict[int, tuple[int, int]]) -> ExtendedState:
    """x87, SSE and later registers; `places`: (bytes, offset) of the components."""
    buffer = ctypes.create_string_buffer(_MOST_STATE)
    vector = _Vector(ctypes.addressof(buffer), len(buffer))
    ptrace(PTRACE_GETREGSET, pid, _NT_X86_XSTATE, ctypes.addressof(vector))
    data = buffer.raw[: vector.size]
    (in_use,) = struct.unpack_from("<Q", data, _BITMAP_AT)

    def component(number: int) -> bytes:
        size, offset = places.get(number, (0, 0))
        return data[offset : offset + size] if in_use >> number & 1 and offset + size <= len(data) else b""

    keys = component(_KEYS)
    return ExtendedState(
        in_use=in_use,
        legacy=data[:_LEGACY_BYTES],
        protection_keys=struct.unpack_from("<I", keys)[0] if keys else None,
        shadow_stack=any(component(_SHADOW_STACK)),
        **{name: component(number) for number, name in _COMPONENTS},
    )


def thread_state(pid: int, clear_tid: int) -> ThreadState:
    """What the kernel keeps of the thread. Before Linux 5.13 it does not tell of restartable sequences."""
    head, size = ctypes.c_uint64(), ctypes.c_size_t()
    if _libc.syscall(call_number("get_robust_list"), pid, ctypes.byref(head), ctypes.byref(size)):
        head.value = 0
    rseq = _Rseq()
    try:
        ptrace(PTRACE_GET_RSEQ_CONFIGURATION, pid, ctypes.sizeof(rseq), ctypes.addressof(rseq))
    except OSError:
        rseq = _Rseq()
    registered = bool(rseq.pointer)
    return ThreadState(
        clear_tid=clear_tid,
        robust_list=head.value,
        robust_size=size.value if head.value else 0,
        rseq=rseq.pointer,
        rseq_size=rseq.size if registered else 0,
        rseq_signature=rseq.signature if registered else 0,
    )


def layout_of(pid: int, answers: Answers) -> Layout:
    """Where the kernel thinks the parts of the program are (proc(5): fields 26 to 28 and 45 to 51 of stat)."""
    fields = stat_fields(pid)

    def at(number: int) -> int:
        return int(fields[number - _FIRST_STAT_FIELD])

    return Layout(
        start_code=at(26),
        end_code=at(27),
        start_data=at(45),
        end_data=at(46),
        start_brk=at(47),
        brk=answers.brk,
        start_stack=at(28),
        arg_start=at(48),
        arg_end=at(49),
        env_start=at(50),
        env_end=at(51),
    )


def limits_of(pid: int) -> tuple[tuple[int, int], ...]:
    """(soft, hard) of each resource limit."""
    found = (resource.prlimit(pid, number) for number in range(LIMITS))
    return tuple((soft & _NO_LIMIT, hard & _NO_LIMIT) for soft, hard in found)


def pending_signals(status: dict[str, str]) -> tuple[int, ...]:
    """Signals sent to the process and not yet delivered."""
    bits = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
    return tuple(number + 1 for number in range(64) if bits >> number & 1)


def queued_signals(number: int) -> Iterator[QueuedSignal]:
    """Signals that wait in the queues of a thread and of its process, as they will be delivered. Not those that nobody
    can send again, or that the kernel had no room to say more of than their numbers."""
    for flags in (0, _PEEKSIGINFO_SHARED):
        found: list[bytes] = []
        # One too many, so that it is noticed.
        while len(found) <= MOST_PENDING:
            asked = _Peek(len(found), flags, _AT_ONCE)
            room = ctypes.create_string_buffer(_SIGINFO_BYTES * _AT_ONCE)
            got = ptrace(PTRACE_PEEKSIGINFO, number, ctypes.addressof(asked), ctypes.addressof(room))
            found += [room.raw[i * _SIGINFO_BYTES : (i + 1) * _SIGINFO_BYTES] for i in range(got)]
            # The kernel may say less at once than it was asked for.
            if not got:
                break
        signals = [QueuedSignal(not flags, information) for information in found]
        yield from (one for one in signals if one.number not in NEVER_SENT)


def is_filtered(status: dict[str, str]) -> bool:
    """Whether it has a seccomp filter beyond those that we have ourselves, in a container."""
    own = status_of("self")
    filters = "Seccomp_filters"
    return (status.get("Seccomp"), status.get(filters)) != (own.get("Seccomp"), own.get(filters))


def has_posix_timers(pid: int) -> bool:
    """Whether it has timers made by timer_create."""
    try:
        return bool(Path(f"/proc/{pid}/timers").read_bytes())
    except OSError:
        # A kernel without CONFIG_POSIX_TIMERS or CONFIG_CHECKPOINT_RESTORE does not tell.
        return False
