# SPDX-License-Identifier: Apache-2.0
"""A copy of a block of code that notes the addresses it uses: the original's instructions, moved, and notes between.

A step under ptrace costs a stop of the process: some microseconds, tens of them in a virtual machine. A copy notes an
address in a few nanoseconds. Notes use `mov`, `lea` and `jrcxz` alone, which leave all flags, and keep two registers in
memory below 2 GB, which every instruction reaches. The stack is left alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from iced_x86 import (
    Code,
    ConditionCode,
    Decoder,
    Encoder,
    FlowControl,
    Instruction,
    MemoryOperand,
    Mnemonic,
    OpKind,
    Register,
    RegisterExt,
)

RAX_AT, RCX_AT, LEFT_AT, NEXT_AT = 0, 8, 16, 24
"""In the page of state: two registers, blocks that may still be begun, and where the next note goes."""

HEAD_NOTES = 2
"""Words noted at a block's head: its address and the stack pointer."""

MOST_INSTRUCTIONS = 64
_READ = MOST_INSTRUCTIONS * 15
EXIT_BYTES = 5
_TRAP = b"\xcc\x90\x90\x90\x90"
_SOURCE_KINDS = (OpKind.MEMORY_SEG_RSI, OpKind.MEMORY_SEG_ESI, OpKind.MEMORY_SEG_SI)
_GOAL_KINDS = (OpKind.MEMORY_ESRDI, OpKind.MEMORY_ESEDI, OpKind.MEMORY_ESDI, OpKind.MEMORY_SEG_RDI)
_FROM_RSI, _FROM_RDI, _FROM_RCX = b"\x48\x89\xf0", b"\x48\x89\xf8", b"\x48\x89\xc8"
_BY_REGISTER = (FlowControl.INDIRECT_BRANCH, FlowControl.INDIRECT_CALL, FlowControl.RETURN)
_REACH = 0x7FFF0000

Read = Callable[[int, int], bytes]


@dataclass(frozen=True)
class Exit:
    """Where a copy is left: `at` is its address; the original goes on at `target`. `kind`: LINK to another copy, FULL
    where no more blocks may be begun, REGISTER where the instruction at `target` itself says where to go on."""

    at: int
    kind: int
    target: int


LINK, FULL, REGISTER = 0, 1, 2


@dataclass(frozen=True)
class CopiedBlock:
    """A copy of the instructions from `address` on.

    places   their addresses, (N,)
    noted    positions among them of the words noted behind those of the head, and by what each is multiplied before it
             is added to that instruction's address, two arrays of one length
    unknown  which of them use addresses that vector registers say, (N,)
    segment  which of them add the base of FS, (N,)
    """

    address: int
    code: bytes
    exits: tuple[Exit, ...]
    places: npt.NDArray[np.uint64]
    noted: tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]
    unknown: npt.NDArray[np.bool_]
    segment: npt.NDArray[np.bool_]


def copied_block(read: Read, address: int, base: int, state: int) -> CopiedBlock | None:
    """A copy for address `base` of the code at `address`, which may be reached there alone; None where its first
    instruction can only be executed in its place (system calls). `state`: address of the page of state."""
    return _Copy(address, base, state).made(_readable(read, address))


def _readable(read: Read, address: int) -> bytes:
    for size in (_READ, 4096 - address % 4096):
        try:
            return read(address, size)
        except OSError:
            continue
    return b""


class _Copy:
    def __init__(self, address: int, base: int, state: int) -> None:
        self._address, self._base, self._state = address, base, state
        self._code = bytearray()
        self._exits: list[Exit] = []
        self._places: list[int] = []
        self._noted: list[tuple[int, int]] = []
        self._unknown: list[bool] = []
        self._segment: list[bool] = []

    def made(self, code: bytes) -> CopiedBlock | None:
        decoder = Decoder(64, code, ip=self._address)
        self._head()
        end = self._address
        while len(self._places) < MOST_INSTRUCTIONS and decoder.can_decode:
            i = decoder.decode()
            raw = code[i.ip - self._address : i.next_ip - self._address]
            ends = i.flow_control != FlowControl.NEXT
            if not _movable(i) or (not ends and not self._fits(i)):
                break
            self._note(i)
            end = i.next_ip
            if ends:
                self._leave(i, raw)
                break
            self._code += self._moved(i, raw, decoder)
        else:
            ends = False
        if not self._places:
            return None
        if not (self._exits[1:]):
            self._exit(LINK, end)
        return CopiedBlock(
            self._address,
            bytes(self._code),
            tuple(self._exits),
            np.array(self._places, dtype=np.uint64),
            (
                np.array([at for at, _ in self._noted], dtype=np.int64),
                np.array([by for _, by in self._noted], dtype=np.uint64),
            ),
            np.array(self._unknown),
            np.array(self._segment),
        )

    # -- notes

    def _keep(self, register: int, at: int) -> None:
        self._code += struct.pack("<4sI", bytes((0x48, 0x89, register, 0x25)), self._state + at)

    def _get(self, register: int, at: int) -> None:
        self._code += struct.pack("<4sI", bytes((0x48, 0x8B, register, 0x25)), self._state + at)

    def _head(self) -> None:
        self._keep(_RCX, RCX_AT)
        self._get(_RCX, LEFT_AT)
        self._code += b"\xe3\x02\xeb\x0d"  # jrcxz over the next jump, which goes over the exit
        self._get(_RCX, RCX_AT)
        self._exit(FULL, self._address)
        self._code += b"\x48\x8d\x49\xff"  # lea -1(%rcx), %rcx
        self._keep(_RCX, LEFT_AT)
        self._keep(_RAX, RAX_AT)
        self._get(_RCX, NEXT_AT)
        self._code += b"\x48\xb8" + struct.pack("<Q", self._address)  # movabs
        self._code += b"\x48\x89\x01\x48\x89\x61\x08\x48\x8d\x49\x10"  # both words, and 16 further
        self._note_end()

    def _note_end(self) -> None:
        self._keep(_RCX, NEXT_AT)
        self._get(_RAX, RAX_AT)
        self._get(_RCX, RCX_AT)

    def _word(self, into_rax: bytes, multiplied: int) -> None:
        self._keep(_RAX, RAX_AT)
        self._keep(_RCX, RCX_AT)
        self._code += into_rax
        self._get(_RCX, NEXT_AT)
        self._code += b"\x48\x89\x01\x48\x8d\x49\x08"  # mov %rax, (%rcx); lea 8(%rcx), %rcx
        self._note_end()
        self._noted.append((len(self._places) - 1, multiplied))

    def _note(self, i: Instruction) -> None:
        """What the instruction uses, before it runs; as stepping.py has it."""
        self._places.append(i.ip)
        self._unknown.append(False)
        self._segment.append(False)
        kinds = [i.op_kind(at) for at in range(i.op_count)]
        source, goal = (any(kind in some for kind in kinds) for some in (_SOURCE_KINDS, _GOAL_KINDS))
        if source:
            self._word(_FROM_RSI, 3 if goal else 1)
        if goal:
            self._word(_FROM_RDI, 1)
        if (source or goal) and (i.has_rep_prefix or i.has_repne_prefix):
            self._word(_FROM_RCX, 7)
        if OpKind.MEMORY not in kinds or i.memory_base in (Register.RIP, Register.EIP):
            return
        if not all(map(_general, (i.memory_base, i.memory_index))):
            self._unknown[-1] = True
            return
        self._segment[-1] = i.segment_prefix == Register.FS
        self._word(_effective_address(i), 1)

    # -- instructions

    def _fits(self, i: Instruction) -> bool:
        return i.memory_base != Register.RIP or abs(i.ip_rel_memory_address - self._base) < _REACH

    def _moved(self, i: Instruction, raw: bytes, decoder: Decoder) -> bytes:
        if i.memory_base != Register.RIP:
            return raw
        at = decoder.get_constant_offsets(i).displacement_offset
        distance = i.ip_rel_memory_address - (self._base + len(self._code) + len(raw))
        return raw[:at] + struct.pack("<i", distance) + raw[at + 4 :]

    def _exit(self, kind: int, target: int) -> None:
        self._exits.append(Exit(self._base + len(self._code), kind, target))
        self._code += _TRAP

    def _leave(self, i: Instruction, raw: bytes) -> None:
        if i.flow_control in _BY_REGISTER:
            self._exit(REGISTER, i.ip)
            return
        if i.flow_control == FlowControl.CALL:
            low, high = i.next_ip & 0xFFFFFFFF, i.next_ip >> 32
            self._code += b"\x48\x8d\x64\x24\xf8"  # lea -8(%rsp), %rsp
            self._code += b"\xc7\x04\x24" + struct.pack("<I", low) + b"\xc7\x44\x24\x04" + struct.pack("<I", high)
        elif i.flow_control == FlowControl.CONDITIONAL_BRANCH:
            over = struct.pack("<i", EXIT_BYTES)
            if i.condition_code != ConditionCode.NONE and i.is_jcc_short_or_near:
                self._code += bytes((0x0F, 0x80 + int(i.condition_code) - 1)) + over
            else:
                self._code += raw[:-1] + bytes((EXIT_BYTES,))
            self._exit(LINK, i.next_ip)
        self._exit(LINK, i.near_branch_target)


_RAX, _RCX = 0x04, 0x0C
"""Second byte of the operands of a move between the register and an absolute address."""


def _movable(i: Instruction) -> bool:
    if i.code == Code.INVALID or i.memory_base == Register.EIP:
        return False
    if i.flow_control == FlowControl.NEXT or i.flow_control in _BY_REGISTER:
        # A far transfer, or one through memory beside the code, is left to the processor.
        return i.mnemonic not in (Mnemonic.IRETQ, Mnemonic.RETF) and not _stepped_alone(i)
    near = i.op_count > 0 and i.op0_kind == OpKind.NEAR_BRANCH64
    return near and i.flow_control in (
        FlowControl.UNCONDITIONAL_BRANCH,
        FlowControl.CONDITIONAL_BRANCH,
        FlowControl.CALL,
    )


_BY_64_BITS = (
    Code.MOV_AL_MOFFS8, Code.MOV_AX_MOFFS16, Code.MOV_EAX_MOFFS32, Code.MOV_RAX_MOFFS64,
    Code.MOV_MOFFS8_AL, Code.MOV_MOFFS16_AX, Code.MOV_MOFFS32_EAX, Code.MOV_MOFFS64_RAX,
)  # fmt: skip
"""No `lea` has their operand."""

_UNTIL_DIFFERENT = (
    Mnemonic.CMPSB, Mnemonic.CMPSW, Mnemonic.CMPSD, Mnemonic.CMPSQ,
    Mnemonic.SCASB, Mnemonic.SCASW, Mnemonic.SCASD, Mnemonic.SCASQ,
)  # fmt: skip
"""Repeated, contents of memory say how often. What is noted before they run does not tell."""


def _stepped_alone(i: Instruction) -> bool:
    repeated = i.is_string_instruction and (i.has_rep_prefix or i.has_repne_prefix)
    return i.code in _BY_64_BITS or (repeated and i.mnemonic in _UNTIL_DIFFERENT)


def _general(register: Any) -> bool:
    return register == Register.NONE or RegisterExt.is_gpr64(register) or RegisterExt.is_gpr32(register)


def _effective_address(i: Instruction) -> bytes:
    """`lea OPERAND, %rax`."""
    distance = i.memory_displacement
    operand = MemoryOperand(
        i.memory_base,
        i.memory_index,
        i.memory_index_scale,
        distance - (1 << 64) if distance >> 63 else distance,
        i.memory_displ_size,
    )
    encoder = Encoder(64)
    encoder.encode(Instruction.create_reg_mem(Code.LEA_R64_M, Register.RAX, operand), 0)
    return encoder.take_buffer()
