# SPDX-License-Identifier: Apache-2.0
"""Ask the kernel, from inside a stopped process, for what it tells nobody else: one piece of code makes all the calls.

One call at a time would cost half a millisecond each, and there are seventy.
"""

from __future__ import annotations

import mmap
import signal
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from checkpoint.binary.syscall_names import call_number
from checkpoint.errors import ProgramFailed
from checkpoint.flat.image import SIGNALS
from checkpoint.linux import (
    PAGE_SIZE,
    PR_GET_THP_DISABLE,
    PR_GET_TID_ADDRESS,
)
from checkpoint.memory_shortage import room_in
from checkpoint.process.ptrace import registers_of, run_to_breakpoint, set_registers, swap_signal_mask
from checkpoint.process.tracee import Tracee

_CODE_BYTES, _DATA_BYTES = 4 * PAGE_SIZE, 2 * PAGE_SIZE
_ARGUMENTS = (b"\x48\xbf", b"\x48\xbe", b"\x48\xba", b"\x49\xba", b"\x49\xb8", b"\x49\xb9")
"""mov $imm64 into rdi, rsi, rdx, r10, r8, r9."""
_STORE_RAX = b"\x48\xa3"
_MOVE_RBX_TO_RAX = b"\x48\x89\xd8"
_CPUID = b"\x0f\xa2"
_SYSCALL, _BREAKPOINT = b"\x0f\x05", b"\xcc"
_XSTATE_LEAF = 0xD
XSTATE_COMPONENTS = (2, 5, 6, 7, 9, 11)
"""Upper halves of YMM, AVX-512 masks, upper halves of ZMM0-15, ZMM16-31, protection keys, shadow stack."""
ACTIONS = tuple(n for n in range(1, SIGNALS + 1) if n not in (signal.SIGKILL, signal.SIGSTOP))
TIMERS = 3

_ANSWER_SECONDS = 60.0


@dataclass(frozen=True)
class Answers:
    """actions: (handler, flags, restorer, mask) of the signals in ACTIONS. timers: as ProcessState. stack: address,
    bytes, flags of the alternate signal stack. places: (bytes, offset) of each extended-state component that this
    processor has, in a buffer of PTRACE_GETREGSET."""

    actions: tuple[tuple[int, int, int, int], ...]
    timers: tuple[tuple[int, int, int, int], ...]
    stack: tuple[int, int, int]
    clear_tid: int
    no_huge_pages: int
    brk: int
    places: dict[int, tuple[int, int]]


def ask(tracee: Tracee) -> Answers:
    """As `ask_all`, the first thread alone."""
    return ask_all(tracee, ())[0]


def ask_all(tracee: Tracee, others: Sequence[int]) -> list[Answers]:
    """The answers of the stopped process's kernel to its marking thread, and to these others, which are stopped too.

    Memory and registers are as before afterwards. Raises NodeUnfit where the process may not map the few pages that
    the code needs, ProgramFailed where it ends meanwhile.
    """
    code = _map(tracee, _CODE_BYTES, mmap.PROT_READ | mmap.PROT_EXEC)
    try:
        data = _map(tracee, _DATA_BYTES, mmap.PROT_READ | mmap.PROT_WRITE)
        try:
            questions = _Questions(data)
            tracee.write(code, questions.code)
            _run(tracee, code)
            found = [questions.answers(tracee.read(data, _DATA_BYTES))]
            for number in others:
                tracee.write(data, bytes(_DATA_BYTES))
                _run_in(number, code)
                found.append(questions.answers(tracee.read(data, _DATA_BYTES)))
            return found
        finally:
            _unmap(tracee, data, _DATA_BYTES)
    finally:
        _unmap(tracee, code, _CODE_BYTES)


def _map(tracee: Tracee, size: int, protection: int) -> int:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with room_in(tracee.program.argv[0]):
        return tracee.system_call(call_number("mmap"), 0, size, protection, flags, -1, 0)


def _unmap(tracee: Tracee, address: int, size: int) -> None:
    if tracee.is_stopped:
        tracee.system_call(call_number("munmap"), address, size)


def _run(tracee: Tracee, code: int) -> None:
    start = tracee.registers()
    start.rip, start.orig_rax = code, 2**64 - 1
    tracee.run_to_trap(start)


def _run_in(number: int, code: int) -> None:
    """The same in another thread. Out of a system call it comes back to what the kernel had left it in there."""
    saved = registers_of(number)
    start = saved.copy()
    start.rip, start.orig_rax = code, 2**64 - 1
    set_registers(number, start)
    mask = swap_signal_mask(number)
    # Whatever else it had stopped for comes to nothing, SIGSTOP among it, as everywhere while it is traced.
    if not run_to_breakpoint(number, _ANSWER_SECONDS):
        raise ProgramFailed(f"thread {number}: ended, or did not answer, when its state was asked for")
    set_registers(number, saved)
    swap_signal_mask(number, mask)


class _Questions:
    """The code, and where each answer will be."""

    def __init__(self, data: int) -> None:
        self._data, self._room = data, 0
        self.code = b""
        self._actions = [self._pointed("rt_sigaction", 32, n, 0, ..., 8) for n in ACTIONS]
        self._timers = [self._pointed("getitimer", 32, n, ...) for n in range(TIMERS)]
        self._stack = self._pointed("sigaltstack", 24, 0, ...)
        self._clear_tid = self._pointed("prctl", 8, PR_GET_TID_ADDRESS, ..., 0, 0, 0)
        self._no_huge_pages = self._returned("prctl", PR_GET_THP_DISABLE, 0, 0, 0, 0)
        self._brk = self._returned("brk", 0)
        self._places = {number: self._component(number) for number in XSTATE_COMPONENTS}
        self.code += _BREAKPOINT
        assert len(self.code) <= _CODE_BYTES and self._room <= _DATA_BYTES

    def answers(self, data: bytes) -> Answers:
        def number(at: int) -> int:
            return int(struct.unpack_from("<q", data, at)[0])

        def four(at: int) -> tuple[int, int, int, int]:
            first, second, third, fourth = struct.unpack_from("<4Q", data, at)
            return first, second, third, fourth

        address, flags, _, size = struct.unpack_from("<QIIQ", data, self._stack)
        return Answers(
            actions=tuple(four(at) for at in self._actions),
            timers=tuple(four(at) for at in self._timers),
            stack=(address, size, flags),
            clear_tid=number(self._clear_tid),
            # A kernel that does not know the question has not been told to do without them either.
            no_huge_pages=max(0, number(self._no_huge_pages)),
            brk=number(self._brk),
            places={n: (number(at), number(at + 8)) for n, at in self._places.items() if number(at)},
        )

    def _take(self, size: int) -> int:
        self._room += size
        return self._room - size

    def _store(self, at: int) -> None:
        self.code += _STORE_RAX + struct.pack("<Q", self._data + at)

    def _call(self, name: str, arguments: tuple[int, ...]) -> None:
        for opcode, value in zip(_ARGUMENTS, arguments, strict=False):
            self.code += opcode + struct.pack("<Q", value)
        self.code += b"\xb8" + struct.pack("<I", call_number(name)) + _SYSCALL

    def _pointed(self, name: str, size: int, *arguments: object) -> int:
        """A call that writes `size` bytes where the argument `...` points; where they will be, zeros if it fails."""
        at = self._take(size)
        self._call(name, tuple(self._data + at if a is ... else int(str(a)) for a in arguments))
        return at

    def _returned(self, name: str, *arguments: int) -> int:
        at = self._take(8)
        self._call(name, arguments)
        self._store(at)
        return at

    def _component(self, number: int) -> int:
        """Bytes and offset of a component of the extended state, by CPUID: makers of processors differ."""
        at = self._take(16)
        self.code += b"\xb8" + struct.pack("<I", _XSTATE_LEAF) + b"\xb9" + struct.pack("<I", number) + _CPUID
        self._store(at)
        self.code += _MOVE_RBX_TO_RAX
        self._store(at + 8)
        return at
