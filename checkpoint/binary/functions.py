# SPDX-License-Identifier: Apache-2.0
"""Functions of an image as instructions: their blocks and inner loops, and whether the reading can be trusted.

Code is read from a function's start to its end. A jump reaches the inside of an instruction where code skips a prefix,
or where such a reading has mistaken data for code: see `is_trusted`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from iced_x86 import Code, Decoder, FlowControl, Instruction, Mnemonic, OpKind

from checkpoint.binary.elf import Addresses, ElfImage
from checkpoint.binary.reachable import address_in, constant_of, reachable_code

NEGATIVE = 1 << 63
"""From here on an address is one before the image, with a negative sign."""

LONGEST_LOOP = 1024
"""Bytes of an inner loop that can be counted by copies of it: in a longer one, a counter costs little."""

_LEAST_ADDRESS_BYTES, _LEAST_CONSTANT_BYTES = 6, 5
"""An instruction that names an address by itself: an opcode, an operand byte, and a displacement of 32 bits. With a
constant of 32 bits it is an opcode and the constant."""

_PADDING = frozenset((Mnemonic.NOP, Mnemonic.INT3))

References = tuple[list[int], list[int]]
"""Targets of direct branches, and code addresses that instructions use as data, each in order."""


@dataclass(frozen=True)
class Function:
    """leaps: the places in `instructions` of those that transfer control."""

    start: int
    end: int
    instructions: list[Instruction]
    leaps: list[int]


def decode_functions(image: ElfImage) -> Iterator[Function]:
    """Every function that decodes cleanly to its very end, with its instructions in order."""
    return decoded(image, functions_of(image))


def functions_of(image: ElfImage) -> Addresses:
    """Their starts and ends, one row each: as the image tells them, or as far as code can be reached."""
    return image.functions if image.functions_known else reachable_code(image)


def decoded(image: ElfImage, functions: Addresses) -> Iterator[Function]:
    """Of these functions those that decode cleanly to their very end."""
    for start, end in functions.tolist():
        code = image.bytes_at(start, end - start)
        decoder = Decoder(64, code, ip=start)
        instructions = list(decoder)
        leaps = [at for at, i in enumerate(instructions) if i.flow_control != FlowControl.NEXT]
        # What is no instruction counts as one that raises an exception.
        if not instructions or any(instructions[at].code == Code.INVALID for at in leaps):
            continue
        yield Function(start, end, instructions, leaps)


def inner_loops(function: Function, heads: Sequence[int]) -> list[tuple[int, int]]:
    """Inner loops of a function, as [start, end): from a branch's target to the branch, and on this way nothing but
    conditional branches that leave the loop. heads: where its instructions begin."""
    found = []
    for last_leap, at in enumerate(function.leaps):
        last = function.instructions[at]
        if last.flow_control not in (FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH):
            continue
        if not _is_direct_branch(last) or not _relocatable_branch(last):
            continue
        start, end = last.near_branch_target, last.next_ip
        if start >= end or end - start > LONGEST_LOOP:
            continue
        first = bisect_left(heads, start)
        if heads[first] != start:
            continue
        inside = function.leaps[bisect_left(function.leaps, first) : last_leap]
        leaves = (function.instructions[leap] for leap in inside)
        if all(
            i.flow_control == FlowControl.CONDITIONAL_BRANCH
            and _relocatable_branch(i)
            and not start <= i.near_branch_target < end
            for i in leaves
        ):
            found.append((start, end))
    return found


def _relocatable_branch(i: Instruction) -> bool:
    """Whether the branch exists with any distance: `loop` and `jrcxz` do not."""
    return i.is_jcc_short_or_near or i.is_jmp_short_or_near


def _is_direct_branch(instruction: Instruction) -> bool:
    return instruction.op_count > 0 and instruction.op0_kind == OpKind.NEAR_BRANCH64


def references(functions: list[Function], ranges: list[tuple[int, int]], absolute: bool) -> References:
    """What the functions refer to.

    `absolute`: the image is linked to a fixed address, so that plain 32-bit constants may be addresses too.
    """
    targets: set[int] = set()
    data: set[int] = set()
    least = _LEAST_CONSTANT_BYTES if absolute else _LEAST_ADDRESS_BYTES

    def in_code(address: int) -> bool:
        return any(start <= address < end for start, end in ranges)

    for function in functions:
        leaping = (function.instructions[at] for at in function.leaps)
        targets.update(i.near_branch_target for i in leaping if _is_direct_branch(i))
        for i in function.instructions:
            if i.len < least:
                continue
            if (address := address_in(i)) and in_code(address):
                data.add(address)
            if absolute and (constant := constant_of(i)) and in_code(constant):
                data.add(constant)
    return sorted(target for target in targets if target < NEGATIVE), sorted(data)


def is_trusted(function: Function, heads: Sequence[int], entered: Sequence[int], data: Sequence[int]) -> bool:
    """Whether the linear reading agrees with everything known about the code.

    Not where a function's inside is addressed as data (tables between instructions, as in hand-written assembly), nor
    where a branch lands between two instructions as read (data read as code, a skipped prefix, overlapping code).
    Taking a function's start as an address is ordinary. entered: targets of direct branches in it.
    """
    after = bisect_left(data, function.start + 1)
    if after < len(data) and data[after] < function.end:
        return False
    return set(heads).issuperset(entered) if entered else True


def basic_blocks(function: Function, heads: Sequence[int], entered: Sequence[int]) -> Iterator[list[Instruction]]:
    """Basic blocks: split after control transfers and before direct branch targets.

    Padding at a block's head is left out: behind an unconditional transfer it never runs, yet an indirect jump
    reaches the instruction after it, and a site in the padding would count none of those.
    """
    cuts = {at + 1 for at in function.leaps} | {bisect_left(heads, target) for target in entered}
    first = 0
    for end in sorted(cuts | {len(heads)}):
        while first < end and function.instructions[first].mnemonic in _PADDING:
            first += 1
        if first < end:
            yield function.instructions[first:end]
        first = end
