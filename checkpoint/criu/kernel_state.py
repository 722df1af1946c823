# SPDX-License-Identifier: Apache-2.0
"""Read what CRIU's core and mm images say of signals, timers, limits and the processor. Raises ProtobufError."""

from __future__ import annotations

import struct

from checkpoint.criu.fields import (
    REGISTERS,
    CoreEntry,
    ItimerEntry,
    MmEntry,
    RlimitEntry,
    RseqEntry,
    SaEntry,
    SiginfoEntry,
    SignalQueueEntry,
    TaskCoreEntry,
    TaskRlimitsEntry,
    TaskTimersEntry,
    ThreadCoreEntry,
    ThreadInfoX86,
    ThreadSasEntry,
    UserDescT,
    UserX86CetEntry,
    UserX86FpregsEntry,
    UserX86RegsEntry,
    UserX86XsaveEntry,
)
from checkpoint.criu.protobuf import Message
from checkpoint.state.process_state import ExtendedState, Layout, SignalState, ThreadState

_X86_64 = 1
_NATIVE_MODE, _COMPAT_MODE = 1, 2
_TIMERS = (TaskTimersEntry.real, TaskTimersEntry.virt, TaskTimersEntry.prof)
_LAYOUT = (
    MmEntry.mm_start_code, MmEntry.mm_end_code, MmEntry.mm_start_data, MmEntry.mm_end_data, MmEntry.mm_start_brk,
    MmEntry.mm_brk, MmEntry.mm_start_stack, MmEntry.mm_arg_start, MmEntry.mm_arg_end, MmEntry.mm_env_start,
    MmEntry.mm_env_end,
)  # fmt: skip
"""Fields of CRIU's message in the order of ours."""
_FXSAVE_WORDS = (UserX86FpregsEntry.cwd, UserX86FpregsEntry.swd, UserX86FpregsEntry.twd, UserX86FpregsEntry.fop)
_FXSAVE_REST = (
    UserX86FpregsEntry.rip, UserX86FpregsEntry.rdp, UserX86FpregsEntry.mxcsr, UserX86FpregsEntry.mxcsr_mask,
)  # fmt: skip
_U32_MAX = (1 << 32) - 1
_X87_AND_SSE = 3


def registers_of(core: Message) -> dict[str, int]:
    """The general registers; none unless the task is x86-64."""
    general = _part(core, CoreEntry.thread_info, ThreadInfoX86.gpregs)
    if not general.numbers():
        return {}
    return {name: general.integer(number) for number, name in enumerate(REGISTERS, start=1)}


def runs_x86_64(core: Message) -> bool:
    """Whether it is a task of this instruction set, running 64-bit code."""
    general = _part(core, CoreEntry.thread_info, ThreadInfoX86.gpregs)
    mode = general.integer(UserX86RegsEntry.mode, _NATIVE_MODE)
    return core.integer(CoreEntry.mtype) == _X86_64 and bool(general.numbers()) and mode != _COMPAT_MODE


def signals_of(core: Message) -> SignalState:
    """Signal actions, mask, alternate stack and what is pending."""
    task, thread = _part(core, CoreEntry.tc), _part(core, CoreEntry.thread_core)
    stack = _part(thread, ThreadCoreEntry.sas)
    queues = _part(task, TaskCoreEntry.signals_s), _part(thread, ThreadCoreEntry.signals_p)
    return SignalState(
        blocked=thread.integer(ThreadCoreEntry.blk_sigset, task.integer(TaskCoreEntry.blk_sigset, 0)),
        actions=tuple(
            (
                action.integer(SaEntry.sigaction), action.integer(SaEntry.flags), action.integer(SaEntry.restorer),
                action.integer(SaEntry.mask),
            )
            for action in task.messages(TaskCoreEntry.sigactions)
        ),
        stack_address=stack.integer(ThreadSasEntry.ss_sp, 0),
        stack_size=stack.integer(ThreadSasEntry.ss_size, 0),
        stack_flags=stack.integer(ThreadSasEntry.ss_flags, 0),
        pending=tuple(
            int.from_bytes(b"".join(item.raw_values(SiginfoEntry.siginfo))[:4], "little")
            for queue in queues
            for item in queue.messages(SignalQueueEntry.signals)
        ),
    )  # fmt: skip


def thread_of(core: Message) -> ThreadState:
    """Addresses that the kernel keeps of the thread."""
    thread = _part(core, CoreEntry.thread_core)
    rseq = _part(thread, ThreadCoreEntry.rseq_entry)
    return ThreadState(
        clear_tid=_part(core, CoreEntry.thread_info).integer(ThreadInfoX86.clear_tid_addr, 0),
        robust_list=thread.integer(ThreadCoreEntry.futex_rla, 0),
        robust_size=thread.integer(ThreadCoreEntry.futex_rla_len, 0),
        rseq=rseq.integer(RseqEntry.rseq_abi_pointer, 0),
        rseq_size=rseq.integer(RseqEntry.rseq_abi_size, 0),
        rseq_signature=rseq.integer(RseqEntry.signature, 0),
    )


def extended_of(core: Message) -> ExtendedState:
    """x87, SSE and what came later."""
    fpu = _part(core, CoreEntry.thread_info, ThreadInfoX86.fpregs)
    if not fpu.numbers():
        return ExtendedState()
    rest = [fpu.integer(number) for number in _FXSAVE_REST]
    legacy = struct.pack("<4H", *(fpu.integer(number) & 0xFFFF for number in _FXSAVE_WORDS))
    legacy += struct.pack("<2Q2I", *rest[:2], *(value & _U32_MAX for value in rest[2:]))
    legacy += _packed(fpu, UserX86FpregsEntry.st_space, 4) + _packed(fpu, UserX86FpregsEntry.xmm_space, 4)
    xsave = fpu.message(UserX86FpregsEntry.xsave)
    if xsave is None:
        return ExtendedState(legacy=legacy)
    return ExtendedState(
        in_use=xsave.integer(UserX86XsaveEntry.xstate_bv, 0),
        legacy=legacy,
        ymm_high=_packed(xsave, UserX86XsaveEntry.ymmh_space, 4),
        opmask=_packed(xsave, UserX86XsaveEntry.opmask_reg, 8),
        zmm_high=_packed(xsave, UserX86XsaveEntry.zmm_upper, 8),
        zmm_more=_packed(xsave, UserX86XsaveEntry.hi16_zmm, 8),
        protection_keys=next(iter(xsave.integers(UserX86XsaveEntry.pkru)), None),
        shadow_stack=bool(_part(xsave, UserX86XsaveEntry.cet).integer(UserX86CetEntry.cet, 0)),
    )


def uses_segments(core: Message) -> bool:
    """Whether thread-local storage is in the global descriptor table, as 32-bit code has it."""
    segments = _part(core, CoreEntry.thread_info).messages(ThreadInfoX86.tls)
    return any(segment.integer(UserDescT.usable, 0) for segment in segments)


def is_filtered(core: Message) -> bool:
    """Whether it has a seccomp filter."""
    task, thread = _part(core, CoreEntry.tc), _part(core, CoreEntry.thread_core)
    modes = thread.integer(ThreadCoreEntry.seccomp_mode, 0), task.integer(TaskCoreEntry.old_seccomp_mode, 0)
    return any(modes)


def layout_of(mm: Message) -> Layout:
    """Where heap, stack, arguments and the rest are."""
    return Layout(*(mm.integer(place) for place in _LAYOUT))


def timers_of(core: Message) -> tuple[tuple[int, int, int, int], ...]:
    """The three interval timers."""
    timers = _part(core, CoreEntry.tc, TaskCoreEntry.timers)
    return tuple(_timer(_part(timers, kind)) for kind in _TIMERS)


def _timer(timer: Message) -> tuple[int, int, int, int]:
    return (
        timer.integer(ItimerEntry.isec, 0), timer.integer(ItimerEntry.iusec, 0), timer.integer(ItimerEntry.vsec, 0),
        timer.integer(ItimerEntry.vusec, 0),
    )  # fmt: skip


def has_posix_timers(core: Message) -> bool:
    """Whether it has timers made by timer_create."""
    return bool(_part(core, CoreEntry.tc, TaskCoreEntry.timers).messages(TaskTimersEntry.posix))


def limits_of(core: Message) -> tuple[tuple[int, int], ...]:
    """(soft, hard) of each resource limit."""
    limits = _part(core, CoreEntry.tc, TaskCoreEntry.rlimits).messages(TaskRlimitsEntry.rlimits)
    return tuple((item.integer(RlimitEntry.cur), item.integer(RlimitEntry.max)) for item in limits)


def _packed(message: Message, number: int, size: int) -> bytes:
    mask = (1 << 8 * size) - 1
    return b"".join((value & mask).to_bytes(size, "little") for value in message.integers(number))


def _part(message: Message, *numbers: int) -> Message:
    """The message nested at these field numbers; an empty one where there is none."""
    for number in numbers:
        message = message.message(number) or Message()
    return message
