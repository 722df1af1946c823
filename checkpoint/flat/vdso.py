# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's vDSO that works under any kernel: its functions ask the node's, or the kernel.

The code in a vDSO reads pages that the kernel keeps up to date beside it; another kernel keeps them elsewhere and
otherwise. The pages of the checkpoint stay at their addresses, since the program knows where its functions are.

The clocks are read by the vDSO of the node, whose functions the restorer finds: a system call takes ten times as long,
and regions of programs that read them often would be other regions.

Where the clocks of the capture are known, those functions go on from there: a program that prints its progress every
few seconds would else do so in each restored phase, with code and data that the run did not use there.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence

from checkpoint.binary.syscall_names import call_number
from checkpoint.binary.vdso import NotAVdso, functions

CALLS = {name: call_number(name) for name in ("clock_gettime", "gettimeofday", "time", "getcpu", "clock_getres")}
"""System calls by what the functions are called, with or without `__vdso_`. All take the same arguments."""

_SECTION_BYTES = 64
_ENOSYS = 38
# __vdso_getrandom asks for the layout of its state with a length of -1 (r8), which no system call answers.
_GETRANDOM = bytes.fromhex("4983f8ff 7408 b83e010000 0f05 c3 b8daffffff c3")
_UNKNOWN = b"\xb8" + struct.pack("<i", -_ENOSYS) + b"\xc3"  # mov $-ENOSYS, %eax; ret: the C library asks the kernel


def _system_call(number: int) -> bytes:
    return b"\xb8" + struct.pack("<I", number) + b"\x0f\x05\xc3"  # mov $number, %eax; syscall; ret


CLOCKS = 7
"""Clocks that go on: CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, the CPU time of the process and of the thread,
CLOCK_MONOTONIC_RAW, CLOCK_TAI. The last two part from the first ones by what a node was set right by, and when."""
_CLOCK_GETTIME = bytes.fromhex(
    "488b0549010000 4885c0 7410"  # mov node(%rip), %rax; test %rax, %rax; jz 3f
    "57 56 4883ec08 ffd0"  # push %rdi; push %rsi; sub $8, %rsp; call *%rax
    "4883c408 5e 5f eb07"  # add $8, %rsp; pop %rsi; pop %rdi; jmp 4f
    "b8e4000000 0f05 85c0 7541"  # 3: mov $228, %eax; syscall; 4: test %eax, %eax; jnz 1f
    "83ff0b 773c"  # cmp $11, %edi; ja 1f: clocks of other processes, of devices
    "89fa 488d0d8e000000 0fb61411"  # mov %edi, %edx; lea places(%rip), %rcx; movzbl (%rcx,%rdx), %edx
    "488d0d90000000 4801d1"  # lea clocks(%rip), %rcx; add %rdx, %rcx
    "4c8b01 4c0106"  # mov (%rcx), %r8; add %r8, (%rsi): seconds
    "488b5108 48035608"  # mov 8(%rcx), %rdx; add 8(%rsi), %rdx: nanoseconds
    "4881fa00ca9a3b 720a"  # cmp $1000000000, %rdx; jb 2f
    "4881ea00ca9a3b 48ff06"  # sub $1000000000, %rdx; incq (%rsi)
    "48895608 c3"  # 2: mov %rdx, 8(%rsi); 1: ret
)
_GETTIMEOFDAY = bytes.fromhex(
    "57 4885f6 7409"  # push %rdi; test %rsi, %rsi; jz 1f
    "31ff b860000000 0f05"  # xor %edi, %edi; mov $96, %eax; syscall: the time zone
    "488b3424 4885f6 741d"  # 1: mov (%rsp), %rsi; test %rsi, %rsi; jz 2f
    "31ff e878ffffff 488b0c24"  # xor %edi, %edi; call clock_gettime; mov (%rsp), %rcx
    "488b4108 31d2 bee8030000 48f7f6 48894108"  # nanoseconds become microseconds
    "5f 31c0 c3"  # 2: pop %rdi; xor %eax, %eax; ret
)
_TIME = bytes.fromhex(
    "57 4883ec10 31ff 4889e6"  # push %rdi; sub $16, %rsp; xor %edi, %edi; mov %rsp, %rsi
    "e84fffffff 488b0424 4883c410"  # call clock_gettime; mov (%rsp), %rax; add $16, %rsp
    "5f 4885ff 7403 488907 c3"  # pop %rdi; test %rdi, %rdi; jz 1f; mov %rax, (%rdi); 1: ret
)
_PLACES = bytes(16 * place for place in (0, 1, 3, 4, 5, 0, 1, 2, 0, 2, 7, 6))
"""By a clock's number, where its seconds and nanoseconds are in the table behind. The last entry is for those that
stay as they are."""
_INSIDE = {
    "clock_gettime": 0,
    "gettimeofday": len(_CLOCK_GETTIME),
    "time": len(_CLOCK_GETTIME) + len(_GETTIMEOFDAY),
}
"""Where these begin in the code that goes on."""
_GOING_ON = _CLOCK_GETTIME + _GETTIMEOFDAY + _TIME + _PLACES + b"\x90"
_ENTRY_BYTES, _ADDRESS_BYTES = 16, 8
_TABLE_BYTES = _ENTRY_BYTES * (CLOCKS + 1) + _ADDRESS_BYTES
"""Behind the last entry is the address of the node's clock_gettime, which the restorer puts there: called in place of
the system call, with the stack aligned for it."""
_LONGEST = max(len(_GETRANDOM), len(_UNKNOWN), len(_system_call(0)))
"""Bytes that are put at the start of a function."""
_PROGRAM_BITS, _EXECUTABLE = 1, 4
"""Type and flag of a section of code: SHT_PROGBITS, SHF_EXECINSTR."""
_SECOND = 10**9


def with_system_calls(image: bytes, clocks: Sequence[int] = ()) -> tuple[bytes, int]:
    """`image` with every exported function replaced by its system call, or by ENOSYS where there is none like it.

    `clocks`: what CLOCKS said when the program was stopped, in nanoseconds; zeros where they are to be the node's.
    Where there is room the functions go on from these. Their table is at the offset that is returned with the image
    (0: none): seconds and nanoseconds of each. The restorer takes its own clocks from them. Raises NotAVdso.
    """
    out = bytearray(image)
    offsets = functions(image)
    main = _room(image, offsets.values()) if len(clocks) == CLOCKS else 0
    for name, offset in offsets.items():
        plain = name.removeprefix("__vdso_")
        code = _system_call(CALLS[plain]) if plain in CALLS else _GETRANDOM if plain == "getrandom" else _UNKNOWN
        if main and plain in _INSIDE and offset < len(out):
            code = b"\xe9" + struct.pack("<i", main + _INSIDE[plain] - offset - 5)  # jmp
        if offset + len(code) > len(out):
            raise NotAVdso(f"{name} lies outside of it")
        out[offset : offset + len(code)] = code
    if not main:
        return bytes(out), 0
    table = main + len(_GOING_ON)
    times = b"".join(struct.pack("<qQ", *divmod(clock, _SECOND)) for clock in (*clocks, 0))
    out[main : table + _TABLE_BYTES] = _GOING_ON + times + bytes(_ADDRESS_BYTES)
    return bytes(out), table


def _room(image: bytes, entries: Collection[int]) -> int:
    """Offset where the code that goes on fits, between functions that begin at `entries`; 0 where it does not.

    All that is called from outside is replaced at its start, so that nothing else of the code is ever executed.
    """
    wanted, best = len(_GOING_ON) + _TABLE_BYTES, (0, 0)
    for start, end in _code(image) or [(min(entries, default=0), max(entries, default=0))]:
        inside = sorted({entry for entry in entries if start <= entry < end})
        for after, before in zip([start, *(entry + _LONGEST for entry in inside)], [*inside, end], strict=True):
            first = -(-after // 8) * 8
            best = max(best, (min(before, len(image)) - first, first))
    return best[1] if best[0] >= wanted else 0


def _code(image: bytes) -> list[tuple[int, int]]:
    """Sections of code, where the image names them; its addresses are offsets."""
    (table,), (count,) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<H", image, 60)
    found = []
    for at in range(table, table + _SECTION_BYTES * count, _SECTION_BYTES):
        if at + _SECTION_BYTES > len(image):
            return []
        _, kind, flags, start, _, size = struct.unpack_from("<IIQQQQ", image, at)
        if kind == _PROGRAM_BITS and flags & _EXECUTABLE:
            found.append((start, start + size))
    return found
