# SPDX-License-Identifier: Apache-2.0
"""Sites at which an image can be counted: one for every basic block that offers a safe instruction.

A site is one instruction of at least five bytes that does not transfer control: replaced as a whole by a jump it
stays correct whatever jumps to the block, indirect jumps included, because nothing can jump *into* it. A direct
`call rel32` or `jmp rel32` serves too: its target is redirected. Blocks that offer neither are left out.

Where a block of a hot inner loop offers neither, neighbours that are five bytes together serve as one instruction: a
loop's block is reached at its head alone, unless its function jumps by a table.

Functions that cannot be read for certain are left alone (`is_trusted`). A large image is decoded in several processes.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import tempfile
import zipfile
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
from iced_x86 import Code, Decoder, FlowControl, Instruction, Mnemonic, Register, RflagsBits

from checkpoint.binary.elf import Addresses, ElfImage
from checkpoint.binary.functions import (
    NEGATIVE,
    Function,
    References,
    basic_blocks,
    decoded,
    functions_of,
    inner_loops,
    is_trusted,
    references,
)
from checkpoint.binary.two_passes import two_passes
from checkpoint.paths import cache_dir

JUMP_BYTES = 5
LONGEST_INSTRUCTION = 15
DISPLACED, REDIRECTED = 0, 1

_CACHE_VERSION = 7
_ARITHMETIC_FLAGS = RflagsBits.OF | RflagsBits.SF | RflagsBits.ZF | RflagsBits.AF | RflagsBits.CF | RflagsBits.PF
# Only instructions that set all six flags whatever their operands: a shift by zero, or a repeat of zero, sets none.
_FLAG_KILLERS = frozenset(
    (Mnemonic.ADD, Mnemonic.SUB, Mnemonic.CMP, Mnemonic.TEST, Mnemonic.AND, Mnemonic.OR, Mnemonic.XOR, Mnemonic.NEG)
)
_CALL_OR_JUMP_REL32 = frozenset((Code.CALL_REL32_64, Code.JMP_REL32_64))
_NO_LOOP = (0, 0)
LEAST_PART_BYTES, MOST_PARTS = 1 << 20, 8
"""Of code that gets a process of its own, which takes half a second; and such processes."""

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


def find_sites(image: ElfImage, processors: Collection[int] = ()) -> SiteTable:
    """All sites of `image`; kept in the cache folder by the file's checksum, since decoding takes seconds.

    processors: those that a large image is decoded on, beside those that this process may use.
    """
    key = hashlib.sha256(f"{_CACHE_VERSION} {image.sha256}".encode()).hexdigest()[:32]
    cached = cache_dir() / "sites" / f"{key}.npz"
    try:
        with np.load(cached, allow_pickle=False) as stored:
            return SiteTable(**{f.name: stored[f.name] for f in fields(SiteTable)})
    except (OSError, KeyError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile):
        pass
    table = _analyse(image, os.sched_getaffinity(0).union(processors))
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


def _analyse(image: ElfImage, processors: Collection[int] = (0,)) -> SiteTable:
    """Decode, and find the sites when it is known where in the whole image branches go."""
    functions = functions_of(image)

    def first(part: Addresses) -> tuple[list[Function], References]:
        found = list(decoded(image, part))
        return found, references(found, image.executable_ranges(), not image.position_independent)

    def second(found: list[Function], known: References) -> SiteTable:
        return _table([row for function in found for row in _rows_of(image, function, *known)])

    with _without_collection():
        parts = _parts(functions, len(processors))
        made = two_passes(parts, first, _merged, second, processors) if len(parts) > 1 else None
        if made is None:
            return second(*first(functions))
    columns = {f.name: np.concatenate([getattr(one, f.name) for one in made]) for f in fields(SiteTable)}
    return SiteTable(**columns).take(np.argsort(columns["offset"], kind="stable"))


def _parts(functions: Addresses, most: int) -> list[Addresses]:
    """The functions in at most so many parts of about equal size, each worth a process of its own."""
    sizes = np.cumsum(functions[:, 1] - functions[:, 0])
    number = min(most, MOST_PARTS, int(sizes[-1]) // LEAST_PART_BYTES if len(sizes) else 0)
    if number < 2:
        return [functions]
    cuts = np.searchsorted(sizes, sizes[-1] * np.arange(1, number) / number)
    return [part for part in np.split(functions, cuts) if len(part)]


def _merged(told: Sequence[References]) -> References:
    """References of all parts, in order."""
    targets, data = (sorted({address for part in told for address in part[at]}) for at in (0, 1))
    return targets, data


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


def _rows_of(image: ElfImage, function: Function, targets: Sequence[int], data: Sequence[int]) -> Iterator[_Row]:
    """The sites of a function, none where it is not trusted. targets, data: as of `references`."""
    heads = [i.ip for i in function.instructions]
    entered = targets[bisect_left(targets, function.start) : bisect_left(targets, function.end)]
    if not is_trusted(function, heads, entered, data):
        return
    loops = inner_loops(function, heads)
    # A table of addresses may lead anywhere in the function, and so may code that was not found.
    by_table = any(function.instructions[at].flow_control == FlowControl.INDIRECT_BRANCH for at in function.leaps)
    for block in basic_blocks(function, heads, entered):
        loop = next((span for span in loops if span[0] <= block[0].ip < span[1]), _NO_LOOP)
        row = _site_of(image, block, together=loop != _NO_LOOP and not by_table and image.functions_known)
        if row is not None:
            yield (*row, *loop)


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


def _displaceable(i: Instruction) -> bool:
    """Not one that counts from addresses before the image, as libmvec does: a stub may lie too far from there."""
    if i.flow_control != FlowControl.NEXT:
        return False
    base = i.memory_base
    return base != Register.EIP and (base != Register.RIP or i.ip_rel_memory_address < NEGATIVE)


def _flags_dead(block: list[Instruction], first: int) -> tuple[bool, int]:
    """Whether the block overwrites all arithmetic flags, from its instruction `first` on, before it reads any; and the
    place of the instruction that decides it: so it is from any instruction between on.

    A block that ends undecided counts as reading them: a caller or jump target might.
    """
    for at in range(first, len(block)):
        i = block[at]
        if i.rflags_read & _ARITHMETIC_FLAGS:
            return False, at
        if i.mnemonic in _FLAG_KILLERS:
            return True, at
    return False, len(block)


def _site_of(image: ElfImage, block: list[Instruction], *, together: bool) -> _Site | None:
    """The cheapest site of a block: flags dead before flags alive, displaced before redirected.

    `together`: neighbours may serve as one instruction.
    """
    best: Instruction | None = None
    dead = best_dead = False
    # Generated code has blocks of 50,000 instructions: looking to the end from each would take minutes.
    decided = -1
    for position, i in enumerate(block):
        if i.len >= JUMP_BYTES and _displaceable(i):
            if position > decided:
                dead, decided = _flags_dead(block, position)
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
        if last.code not in _CALL_OR_JUMP_REL32 or last.len != JUMP_BYTES or last.near_branch_target >= NEGATIVE:
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
    found, dead, decided = None, False, -1
    for first in range(len(block)):
        if first > decided:
            dead, decided = _flags_dead(block, first)
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
