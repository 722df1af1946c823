# SPDX-License-Identifier: Apache-2.0
"""Copies of an inner loop that count its turns: many turns, one addition.

A counter in a loop of a few instructions costs as much as the loop. So the loop is written many times one behind the
other, into the area of stubs. The branch back of each copy but the last falls into the next; behind the last one all
turns are added at once. A branch that leaves a copy adds the turns made so far, which its place says, and goes where
the loop's own branch goes. The counts are exact, whatever the loop does.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from iced_x86 import Decoder, FlowControl, Instruction, Register

from checkpoint.binary.elf import ElfImage
from checkpoint.stubs.encode import GS_PREFIX, templates

MOST_TURNS = 64
_MOST_BYTES = 2048
"""Of all copies: as many as the processor's caches of decoded instructions hold along with other code."""


@dataclass(frozen=True)
class Loop:
    """One inner loop as linked: its instructions from `start` to the branch back, and the sites in it by their
    vaddr, with the addresses of their counters. It is entered at the site `entered`. `many`: each thread has counters
    of its own."""

    image: ElfImage
    bias: int
    start: int
    end: int
    entered: int
    counters: Mapping[int, int]
    left: int
    flags_dead: bool
    many: bool = False

    @property
    def turns(self) -> int:
        """How many copies there are."""
        return max(2, min(MOST_TURNS, _MOST_BYTES // (self.end - self.start)))


def encode_loop(loop: Loop, base: int) -> bytes | None:
    """The copies' code, to be written at `base`, which is where the site `loop.entered` jumps to.

    Every way out adds one to the counter at `loop.left`. None where an instruction cannot be moved. Raises
    OverflowError where 2 GB do not reach.
    """
    instructions = list(Decoder(64, loop.image.bytes_at(loop.start, loop.end - loop.start), ip=loop.start))
    heads = [i.ip for i in instructions]
    if loop.entered not in heads or any(i.memory_base == Register.EIP for i in instructions):
        return None
    return _Writer(loop, base, instructions).whole()


class _Writer:
    """Writes the copies in order, then the ways out of them."""

    def __init__(self, loop: Loop, base: int, instructions: list[Instruction]) -> None:
        first = next(at for at, i in enumerate(instructions) if i.ip == loop.entered)
        self._loop, self._base, self._code = loop, base, bytearray()
        self._turn = instructions[first:] + instructions[:first]
        self._place = {i.ip: at for at, i in enumerate(self._turn)}
        self._last = instructions[-1]
        self._ways_out: list[tuple[int, int, int, int]] = []

    def whole(self) -> bytes:
        for copy in range(1, self._loop.turns + 1):
            for at, i in enumerate(self._turn):
                self._one(copy, at, i)
        self._count(self._loop.turns, len(self._turn), saving=not self._loop.flags_dead, leaving=False)
        self._jump(self._base)
        for hole, target, copy, at in self._ways_out:
            self._code[hole : hole + 4] = self._distance(self._base + len(self._code), self._base + hole + 4)
            self._count(copy, at, saving=True, leaving=True)
            self._jump(target)
        return bytes(self._code)

    def _one(self, copy: int, at: int, i: Instruction) -> None:
        """Instruction `at` of turn `copy`; a branch becomes a way out, or nothing."""
        if i.flow_control == FlowControl.NEXT:
            self._code += self._moved(i)
            return
        if i.flow_control == FlowControl.UNCONDITIONAL_BRANCH:
            return
        back = i.ip == self._last.ip
        condition = _condition(self._loop.image.bytes_at(i.ip, i.len)) ^ (1 if back else 0)
        self._code += bytes((0x0F, 0x80 | condition, 0, 0, 0, 0))
        target = (i.next_ip if back else i.near_branch_target) + self._loop.bias
        self._ways_out.append((len(self._code) - 4, target, copy, at))

    def _moved(self, i: Instruction) -> bytes:
        code = bytearray(self._loop.image.bytes_at(i.ip, i.len))
        if i.memory_base == Register.RIP:
            decoder = Decoder(64, bytes(code), ip=i.ip)
            hole = decoder.get_constant_offsets(decoder.decode()).displacement_offset
            behind = self._base + len(self._code) + i.len
            code[hole : hole + 4] = self._distance(i.ip_rel_memory_address + self._loop.bias, behind)
        return bytes(code)

    def _count(self, copy: int, at: int, *, saving: bool, leaving: bool) -> None:
        """Add the executions of every site since the first copy was entered, in turn `copy` before place `at`."""
        keep, give_back = (templates()[name].code for name in ("flags_kept", "flags_back"))
        self._code += keep if saving else b""
        for site, counter in self._loop.counters.items():
            if executions := copy if self._place[site] < at else copy - 1:
                self._add(counter, executions)
        if leaving:
            self._add(self._loop.left, 1)
        self._code += give_back if saving else b""

    def _add(self, counter: int, executions: int) -> None:
        """`addq $executions, counter(%rip)`."""
        self._code += GS_PREFIX if self._loop.many else b""
        behind = self._base + len(self._code) + 8
        self._code += b"\x48\x83\x05" + self._distance(counter, behind) + bytes((executions,))

    def _jump(self, target: int) -> None:
        self._code += b"\xe9" + self._distance(target, self._base + len(self._code) + 5)

    @staticmethod
    def _distance(target: int, behind: int) -> bytes:
        try:
            return struct.pack("<i", target - behind)
        except struct.error as error:
            raise OverflowError("a loop's copies lie more than 2 GB from what they refer to") from error


def _condition(code: bytes) -> int:
    """The condition of a short or near conditional branch, whatever prefixes it has."""
    opcode = next(at for at, byte in enumerate(code) if byte == 0x0F or 0x70 <= byte <= 0x7F)
    return (code[opcode + 1] if code[opcode] == 0x0F else code[opcode]) & 0x0F
