# SPDX-License-Identifier: Apache-2.0
"""Code of an image that names no functions, neither by .eh_frame nor by symbols: what control flow leads to.

From the entry, and from what looks like a pointer to a function, instructions are followed through direct branches and
calls. What is between pieces found so, data or code that is reached by tables alone, is left out.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

import numpy as np
from iced_x86 import Code, Decoder, FlowControl, Instruction, Mnemonic, OpKind, Register

from checkpoint.binary.elf import Addresses, ElfImage

_WORD, _ALIGNED = 8, 16
_BEFORE = b"\x00\x90\xcc\xc3"
"""Where compilers put functions, and what the byte before may be: padding, or a return. Numbers look like addresses."""

_ENDS = (
    FlowControl.RETURN, FlowControl.UNCONDITIONAL_BRANCH, FlowControl.INDIRECT_BRANCH, FlowControl.INTERRUPT,
    FlowControl.EXCEPTION,
)  # fmt: skip
_NO_ACCESS = (Mnemonic.LEA, Mnemonic.NOP)
"""What has a memory operand and reads nothing there."""
_LEAVING = (FlowControl.CALL, FlowControl.UNCONDITIONAL_BRANCH, FlowControl.CONDITIONAL_BRANCH)


def reachable_code(image: ElfImage) -> Addresses:
    """Pieces of functions, (n, 2): start and end address, sorted, disjoint. Each consists of whole instructions, one
    after the other. A piece is left out with any that no program executes, or that is read, or overlaps another."""
    found = _Found(image)
    found.follow([image.entry])
    found.follow([address for address in _words(image) if found.may_start(address)])
    return found.pieces()


def _words(image: ElfImage) -> list[int]:
    """Words of the data that are addresses of code."""
    words, left = [], len(image.data)
    for segment in image.segments:
        left -= segment.size
        # Of a damaged file segments may overlap.
        if not segment.executable and left >= 0:
            begin = segment.offset + -segment.vaddr % _WORD
            piece = image.data[begin : segment.offset + segment.size]
            words.append(np.frombuffer(piece[: len(piece) // _WORD * _WORD], dtype="<u8"))
    values = np.unique(np.concatenate(words)) if words else np.zeros(0, dtype=np.uint64)
    bounds = np.searchsorted(values, image.functions.astype(np.uint64))
    return [value for low, high in bounds.tolist() for value in values[low:high].tolist()]


class _Found:
    """Instructions that were reached, from address to the one behind, and where functions start."""

    def __init__(self, image: ElfImage) -> None:
        self._code: list[bytes] = []
        self._sections: list[tuple[int, int]] = []
        self._absolute = not image.position_independent
        # Without sections there may be tables between the functions.
        self._by_address = image.sections_known
        left = len(image.data)
        for start, end in image.functions.tolist():
            code = image.bytes_at(start, end - start)
            left -= len(code)
            # A damaged file may have less of a section than its header says, or many of the same bytes.
            if code and left >= 0:
                self._code.append(code)
                self._sections.append((start, start + len(code)))
        self._next: dict[int, int] = {}
        self._starts: set[int] = set()
        self._wrong: set[int] = set()
        self._read: set[int] = set()

    def follow(self, functions: list[int]) -> None:
        """Go on from these addresses."""
        pending = list(functions)
        self._starts.update(functions)
        while pending:
            for i in self._from(pending.pop()):
                if i.ip in self._next:
                    break
                self._next[i.ip] = i.next_ip
                if i.code == Code.INVALID or i.is_privileged:
                    self._wrong.add(i.ip)
                    break
                if i.flow_control in _LEAVING and i.op0_kind == OpKind.NEAR_BRANCH64:
                    pending.append(i.near_branch_target)
                    if i.flow_control == FlowControl.CALL:
                        self._starts.add(i.near_branch_target)
                elif self.may_start(taken := self._taken_address(i)):
                    pending.append(taken)
                    self._starts.add(taken)
                if i.mnemonic not in _NO_ACCESS:
                    self._read.add(address_in(i))
                if i.flow_control in _ENDS:
                    break

    def may_start(self, address: int) -> bool:
        """Whether a function may start there: pointers to all else are not followed."""
        at = self._section_of(address)
        if at < 0 or address % _ALIGNED or not self._by_address:
            return False
        offset = address - self._sections[at][0]
        return offset == 0 or self._code[at][offset - 1] in _BEFORE

    def _section_of(self, address: int) -> int:
        at = bisect.bisect_right(self._sections, (address, 1 << 64)) - 1
        return at if at >= 0 and address < self._sections[at][1] else -1

    def _from(self, address: int) -> Iterator[Instruction]:
        at = self._section_of(address)
        if at >= 0:
            start = self._sections[at][0]
            decoder = Decoder(64, self._code[at], ip=start)
            decoder.position, decoder.ip = address - start, address
            yield from decoder

    def _taken_address(self, i: Instruction) -> int:
        """What an instruction loads as a constant, relative to itself or not; 0: nothing that may be an address."""
        if i.mnemonic == Mnemonic.LEA and i.is_ip_rel_memory_operand:
            return address_in(i)
        return constant_of(i) if self._absolute else 0

    def pieces(self) -> Addresses:
        """Neighbouring instructions as one, up to the next function's start."""
        read = sorted(self._read)
        pieces: list[tuple[int, int]] = []
        start = end = -1
        sound = True
        for address in sorted(self._next):
            if address < end:
                sound = False
            if address != end or address in self._starts:
                if sound and start >= 0:
                    pieces.append((start, end))
                sound, start = address >= end, address
            sound = sound and address not in self._wrong
            end = max(end, self._next[address])
        if sound and start >= 0:
            pieces.append((start, end))
        kept = [one for one in pieces if bisect.bisect_left(read, one[0]) == bisect.bisect_left(read, one[1])]
        return np.array(kept, dtype=np.int64).reshape(-1, 2)


def address_in(i: Instruction) -> int:
    """The address that a memory operand names by itself, without registers but its own place; 0 where there is none."""
    if i.is_ip_rel_memory_operand:
        return i.ip_rel_memory_address
    return i.memory_displacement if i.memory_base == Register.NONE and i.memory_displ_size else 0


def constant_of(i: Instruction) -> int:
    """The 32-bit immediate of an instruction, 0 where it has none."""
    last = i.op_kind(i.op_count - 1) if i.op_count else OpKind.REGISTER
    return i.immediate32 if last in (OpKind.IMMEDIATE32, OpKind.IMMEDIATE32TO64) else 0
