# SPDX-License-Identifier: Apache-2.0
"""Capture the threads of a stopped process that share its work: what the kernel keeps of each."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from checkpoint.binary.syscall_names import call_number
from checkpoint.capture import process_facts
from checkpoint.capture.injected import Answers
from checkpoint.process.ptrace import registers_of, signal_mask
from checkpoint.process.team import Team
from checkpoint.process.tracee import Tracee
from checkpoint.process.waiting import status_of
from checkpoint.state.process_state import OtherThread, SignalState

_RESTARTS = {-512, -513, -514}
"""Results of a call that the kernel makes again when the thread goes on (linux/errno.h: ERESTARTSYS and others)."""

_RESTARTS_OTHERWISE = -516
"""ERESTART_RESTARTBLOCK: what it waited for, and how long, is in the kernel alone."""

_FUTEX_COMMAND = 0x7F
_BY_OWNER = {6, 7, 8, 11, 12, 13}
"""linux/futex.h: FUTEX_LOCK_PI, UNLOCK_PI, TRYLOCK_PI, WAIT_REQUEUE_PI, CMP_REQUEUE_PI, LOCK_PI2."""

_INTERRUPTED = 2**64 - 4
_SYSCALL_BYTES = 2
_ROBUST_HEAD = struct.Struct("<QqQ")


def other_threads(tracee: Tracee, team: Team, answers: Sequence[Answers]) -> Iterator[OtherThread]:
    """The state of each; `answers`: what the kernel said to each, in the order of `team.stopped()`."""
    for number, said in zip(team.stopped(), answers, strict=True):
        registers = process_facts.registers_of(registers_of(number))
        waiting = (*pending(tracee.pid, number), *team.held_back(number))
        settle_call(registers)
        yield OtherThread(
            slot=team.slot(number),
            comm=process_facts.name_of(tracee.pid, number),
            registers=registers,
            signals=SignalState(signal_mask(number), (), *said.stack, waiting),
            thread=process_facts.thread_state(number, said.clear_tid),
            extended=process_facts.extended_state(number, said.places),
        )


def settle_call(registers: dict[str, int]) -> None:
    """Let registers of a thread stopped inside a system call be those of one right before it, or, where the kernel
    would go on otherwise, of one whose call a signal has interrupted."""
    result = registers["ax"] - 2**64 if registers["ax"] >= 2**63 else registers["ax"]
    if registers["orig_ax"] >= 2**63:
        return
    if result in _RESTARTS:
        registers["ip"] -= _SYSCALL_BYTES
        registers["ax"] = registers["orig_ax"]
    elif result == _RESTARTS_OTHERWISE:
        registers["ax"] = _INTERRUPTED
    registers["orig_ax"] = 2**64 - 1


def pending(pid: int, number: int) -> tuple[int, ...]:
    """Signals sent to this thread alone and not yet delivered."""
    bits = int(status_of(f"{pid}/task/{number}")["SigPnd"], 16)
    return tuple(signal + 1 for signal in range(64) if bits >> signal & 1)


def locks_in_use(tracee: Tracee, team: Team) -> list[str]:
    """Words for robust or priority-inheriting mutexes that threads of the stopped process hold: the kernel knows their
    owners by numbers that restored threads do not have."""
    for number in (tracee.marking, *team.stopped()):
        head = process_facts.thread_state(number, 0).robust_list
        if (head and _holds(tracee, head)) or _waits_for_owner(number):
            return ["a robust or priority-inheriting lock in use"]
    return []


def _waits_for_owner(number: int) -> bool:
    """Whether a thread stands in futex(2) with an operation by which the kernel looks up a lock's owner."""
    found = registers_of(number)
    return found.orig_rax == call_number("futex") and found.rsi & _FUTEX_COMMAND in _BY_OWNER


def _holds(tracee: Tracee, head: int) -> bool:
    try:
        first, _, being_locked = _ROBUST_HEAD.unpack(tracee.read(head, _ROBUST_HEAD.size))
    except OSError:
        return False
    return bool(first != head or being_locked)
