# SPDX-License-Identifier: Apache-2.0
"""Sites at which an image can be counted: one for every basic block that offers a safe instruction.

A site is one instruction of at least five bytes that does not transfer control: replaced as a whole by a jump it
stays correct whatever jumps to the block, indirect jumps included, because nothing can jump *into* it. A direct
`call rel32` or `jmp rel32` serves too: its target is redirected. Blocks that offer neither are left out.

Where a block of a hot inner loop offers neither, neighbours that are five bytes together serve as one instruction: a
loop's block is reached at its head alone, unless its function jumps by a table.

A jump does reach the inside of an instruction where code skips a prefix, or where a linear reading has mistaken
data for code. Functions that show any sign of it are left alone: see `_is_trusted`.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import tempfile
import zipfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
from iced_x86 import (
    Code,
    Decoder,
    FlowControl,
    Instruction,
    Mnemonic,
    OpKind,
    Register,
    RflagsBits,
)

from checkpoint.binary.elf import ElfImage
from checkpoint.binary.reachable import address_in, constant_of, reachable_code
from checkpoint.paths import cache_dir

JUMP_BYTES = 5
LONGEST_INSTRUCTION = 15
_LEAST_ADDRESS_BYTES = 6
"""An instruction that names an address by itself: an opcode, an operand byte, and a displacement of 32 bits."""
_NEXT = FlowControl.NEXT
DISPLACED, REDIRECTED = 0, 1

_CACHE_VERSION = 7
_ARITHMETIC_FLAGS = RflagsBits.OF | RflagsBits.SF | RflagsBits.ZF | RflagsBits.AF | RflagsBits.CF | RflagsBits.PF
# Only instructions that set all six flags whatever their operands: a shift by zero, or a repeat of zero, sets none.
_FLAG_KILLERS = frozenset(
    (Mnemonic.ADD, Mnemonic.SUB, Mnemonic.CMP, Mnemonic.TEST, Mnemonic.AND, Mnemonic.OR, Mnemonic.XOR, Mnemonic.NEG)
)
_CALL_OR_JUMP_REL32 = frozenset((Code.CALL_REL32_64, Code.JMP_REL32_64))
_PADDING = frozenset((Mnemonic.NOP, Mnemonic.INT3))
_NO_LOOP = (0, 0)
_NEGATIVE = 1 << 63
"""From here on an address is one before the image, with a negative sign."""
LONGEST_LOOP = 1024
"""Bytes of an inner loop that can be counted by copies of it: in a longer one, a counter costs little."""

_Site = tuple[int, int, int, bool, int, int, bytes, int, int, int]
_Row = tuple[int, int, int, bool, int, int, bytes, int, int, int, int, int]


@dataclass(frozen=True)
class SiteTable:
    """Sites of one image, ordered by address: arrays of one length.

    `offset` is the site's vaddr, `length` its bytes, `kind` DISPLACED or REDIRECTED. `flags_dead` says that the
    program overwrites all arithmetic flags before reading any. `displacement_at` is the place of a RIP-relative
    displacement inside the instruction (0: none) and `target` the vaddr it points to, or the branch target of a
    redirected site. `block_start`, `block_bytes` and `block_instructions` describe the block that is counted.
    `loop_start` and `loop_end` span the inner loop that the block lies in, a straight line of code that ends in a
    branch to its start (0 and 0: in no such loop).
    """

    offset: npt.NDArray[np.int64]
    length: npt.NDArray[np.uint8]
    kind: npt.NDArray[np.uint8]
    flags_dead: npt.NDArray[np.bool_]
    displacement_at: npt.NDArray[np.uint8]
    target: npt.NDArray[np.int64]
    code: npt.NDArray[np.uint8]
    block_start: npt.NDArray[np.int64]
    block_bytes: npt.NDArray[np.int32]
    block_instructions: npt.NDArray[np.int32]
    loop_start: npt.NDArray[np.int64]
    loop_end: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offset)

    def take(self, index: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> SiteTable:
        """The rows chosen by `index` (positions or a mask)."""
        return SiteTable(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


@dataclass(frozen=True)
class _Function:
    """leaps: the places in `instructions` of those that transfer control."""

    start: int
    end: int
    instructions: list[Instruction]
    leaps: list[int]


def find_sites(image: ElfImage) -> SiteTable:
    """All sites of `image`; kept in the cache folder by the file's checksum, since decoding takes seconds."""
    key = hashlib.sha256(f"{_CACHE_VERSION} {image.sha256}".encode()).hexdigest()[:32]
    cached = cache_dir() / "sites" / f"{key}.npz"
    try:
        with np.load(cached, allow_pickle=False) as stored:
            return SiteTable(**{f.name: stored[f.name] for f in fields(SiteTable)})
    except (OSError, KeyError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile):
        pass
    table = _analyse(image)
    _store(cached, table)
    return table


def _store(path: Path, table: SiteTable) -> None:
    """Keep `table` for the next run; a cache that cannot be written costs time, nothing else."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            partial = Path(folder) / path.name
            np.savez(partial, **{f.name: getattr(table, f.name) for f in fields(table)})
            partial.replace(path)


def decode_functions(image: ElfImage) -> Iterator[_Function]:
    """Every function that decodes cleanly to its very end, with its instructions in order."""
    for start, end in (image.functions if image.functions_known else reachable_code(image)).tolist():
        code = image.bytes_at(start, end - start)
        decoder = Decoder(64, code, ip=start)
        instructions = list(decoder)
        leaps = [at for at, i in enumerate(instructions) if i.flow_control != _NEXT]
        # What is no instruction counts as one that raises an exception.
        if not instructions or any(instructions[at].code == Code.INVALID for at in leaps):
            continue
        yield _Function(start, end, instructions, leaps)


def _analyse(image: ElfImage) -> SiteTable:
    with _without_collection():
        functions = list(decode_functions(image))
        targets, data = _references(functions, image.executable_ranges(), not image.position_independent)
        rows = [row for function in functions for row in _rows_of(image, function, targets, data)]
        return _table(rows)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Of millions of objects none is in a cycle; looking through them again and again takes a quarter of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _rows_of(image: ElfImage, function: _Function, targets: Sequence[int], data: Sequence[int]) -> Iterator[_Row]:
    """The sites of a function, none where it is not trusted. targets, data: as of `_references`."""
    heads = [i.ip for i in function.instructions]
    entered = targets[bisect_left(targets, function.start) : bisect_left(targets, function.end)]
    if not _is_trusted(function, heads, entered, data):
        return
    loops = inner_loops(function, heads)
    # A table of addresses may lead anywhere in the function, and so may code that was not found.
    by_table = any(function.instructions[at].flow_control == FlowControl.INDIRECT_BRANCH for at in function.leaps)
    for block in _blocks(function, heads, entered):
        loop = next((span for span in loops if span[0] <= block[0].ip < span[1]), _NO_LOOP)
        row = _site_of(image, block, together=loop != _NO_LOOP and not by_table and image.functions_known)
        if row is not None:
            yield (*row, *loop)


def inner_loops(function: _Function, heads: Sequence[int]) -> list[tuple[int, int]]:
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


def _table(rows: list[_Row]) -> SiteTable:
    rows.sort(key=lambda row: row[0])
    columns = list(zip(*rows, strict=True)) if rows else [()] * 12
    padded = b"".join(code.ljust(LONGEST_INSTRUCTION, b"\x90") for code in columns[6])
    return SiteTable(
        offset=np.array(columns[0], dtype=np.int64),
        length=np.array(columns[1], dtype=np.uint8),
        kind=np.array(columns[2], dtype=np.uint8),
        flags_dead=np.array(columns[3], dtype=np.bool_),
        displacement_at=np.array(columns[4], dtype=np.uint8),
        target=np.array(columns[5], dtype=np.int64),
        code=np.frombuffer(padded, dtype=np.uint8).reshape(-1, LONGEST_INSTRUCTION),
        block_start=np.array(columns[7], dtype=np.int64),
        block_bytes=np.array(columns[8], dtype=np.int32),
        block_instructions=np.array(columns[9], dtype=np.int32),
        loop_start=np.array(columns[10], dtype=np.int64),
        loop_end=np.array(columns[11], dtype=np.int64),
    )


def _is_direct_branch(instruction: Instruction) -> bool:
    return instruction.op_count > 0 and instruction.op0_kind == OpKind.NEAR_BRANCH64


def _references(
    functions: list[_Function], ranges: list[tuple[int, int]], absolute: bool
) -> tuple[list[int], list[int]]:
    """Targets of direct branches, and code addresses that instructions use as data, each in order.

    `absolute`: the image is linked to a fixed address, so that plain 32-bit constants may be addresses too.
    """
    targets: set[int] = set()
    data: set[int] = set()
    least = JUMP_BYTES if absolute else _LEAST_ADDRESS_BYTES

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
    return sorted(target for target in targets if target < _NEGATIVE), sorted(data)


def _is_trusted(function: _Function, heads: Sequence[int], entered: Sequence[int], data: Sequence[int]) -> bool:
    """Whether the linear reading agrees with everything known about the code.

    Not where a function's inside is addressed as data (tables between instructions, as in hand-written assembly), nor
    where a branch lands between two instructions as read (data read as code, a skipped prefix, overlapping code).
    Taking a function's start as an address is ordinary. entered: targets of direct branches in it.
    """
    after = bisect_left(data, function.start + 1)
    if after < len(data) and data[after] < function.end:
        return False
    return set(heads).issuperset(entered) if entered else True


def _blocks(function: _Function, heads: Sequence[int], entered: Sequence[int]) -> Iterator[list[Instruction]]:
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


def _displaceable(i: Instruction) -> bool:
    """Not one that counts from addresses before the image, as libmvec does: a stub may lie too far from there."""
    if i.flow_control != _NEXT:
        return False
    base = i.memory_base
    return base != Register.EIP and (base != Register.RIP or i.ip_rel_memory_address < _NEGATIVE)


def _flags_dead(block: list[Instruction], first: int) -> bool:
    """Whether the block overwrites all arithmetic flags, from its instruction `first` on, before it reads any.

    A block that ends undecided counts as reading them: a caller or jump target might.
    """
    for at in range(first, len(block)):
        i = block[at]
        if i.rflags_read & _ARITHMETIC_FLAGS:
            return False
        if i.mnemonic in _FLAG_KILLERS:
            return True
    return False


def _site_of(image: ElfImage, block: list[Instruction], *, together: bool) -> _Site | None:
    """The cheapest site of a block: flags dead before flags alive, displaced before redirected.

    `together`: neighbours may serve as one instruction.
    """
    best: Instruction | None = None
    best_dead = False
    for position, i in enumerate(block):
        if i.len >= JUMP_BYTES and _displaceable(i):
            dead = _flags_dead(block, position)
            if best is None or dead:
                best, best_dead = i, dead
            if dead:
                break
    last = block[-1]
    kind, displacement_at, target = DISPLACED, 0, 0
    start = block[0].ip
    size, instructions = last.next_ip - start, len(block)
    if best is None and together and (found := _neighbours(block)):
        group, dead = found
        at, target = _rip_displacement(image, group[-1])
        first, length = group[0].ip, group[-1].next_ip - group[0].ip
        at += (group[-1].ip - first) if at else 0
        return first, length, kind, dead, at, target, image.bytes_at(first, length), start, size, instructions
    if best is None:
        if last.code not in _CALL_OR_JUMP_REL32 or last.len != JUMP_BYTES or last.near_branch_target >= _NEGATIVE:
            return None
        best, kind, target = last, REDIRECTED, last.near_branch_target
    code = image.bytes_at(best.ip, best.len)
    if kind == DISPLACED:
        displacement_at, target = _rip_displacement(image, best)
    return best.ip, best.len, kind, best_dead, displacement_at, target, code, start, size, instructions


def _rip_displacement(image: ElfImage, i: Instruction) -> tuple[int, int]:
    """Place of the RIP-relative displacement inside the instruction, and the vaddr it points to; zeros without one."""
    if i.memory_base != Register.RIP:
        return 0, 0
    decoder = Decoder(64, image.bytes_at(i.ip, i.len), ip=i.ip)
    return decoder.get_constant_offsets(decoder.decode()).displacement_offset, i.ip_rel_memory_address


def _neighbours(block: list[Instruction]) -> tuple[list[Instruction], bool] | None:
    """Neighbours of at least five bytes together, and whether flags are dead before them. None where there are none.

    Only the last of them refers to an address relative to its own: what is moved together has one displacement.
    """
    found = None
    for first in range(len(block)):
        dead = _flags_dead(block, first)
        for after in range(first + 1, len(block) + 1):
            group = block[first:after]
            size = group[-1].next_ip - group[0].ip
            if not _displaceable(group[-1]) or size > LONGEST_INSTRUCTION:
                break
            if size >= JUMP_BYTES:
                if dead:
                    return group, dead
                found = found or (group, dead)
            if group[-1].memory_base == Register.RIP:
                break
    return found
