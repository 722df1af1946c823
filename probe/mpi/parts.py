# SPDX-License-Identifier: Apache-2.0
"""Reader of the files that the recorder writes: parts with a header, sums over their words, and records behind it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from checkpoint.errors import ProbeFileDamaged, StorageError
from checkpoint.foreign_file import read_foreign
from probe.mpi.library.calls import names

VERSION = 2
LAYOUT, BEGIN, END, COPY, DELETE = 0xFFF0, 0xFFF1, 0xFFF2, 0xFFF3, 0xFFF4
MOST_RANKS = 1 << 20
MOST_PARTS = 1 << 16

_HEADER: Final = struct.Struct("<8sIIIIQQQ")
_RECORD: Final = struct.Struct("<HHIQ")
_RUN_BYTES = 16
_LAYOUT_HEAD = 24
_MAGICS = {"inbox": b"PRBINBOX", "calls": b"PRBCALLS"}


@dataclass(frozen=True)
class Part:
    """Contents of one part, behind its header. ranks: of the whole program."""

    path: Path
    ranks: int
    contents: bytes

    def damaged(self, text: str, place: int) -> ProbeFileDamaged:
        return ProbeFileDamaged(f"{self.path}: {text} at byte {place + _HEADER.size}; record the program again")


def parts(folder: Path, kind: str, rank: int) -> Iterator[Part]:
    """The parts of a rank's `inbox` or `calls`, in order, each checked against its sums.

    Raises ProbeFileDamaged: no part, one cut short or changed, one of another rank or place. Raises StorageError.
    """
    for number in range(MOST_PARTS):
        path = folder / f"{kind}.{rank}.{number:03}"
        if not path.exists():
            if number == 0:
                raise ProbeFileDamaged(f"{folder}: has no {kind} of rank {rank}")
            return
        yield _part(path, kind, rank, number)


def _part(path: Path, kind: str, rank: int, number: int) -> Part:
    # One message alone may be larger than any bound.
    try:
        size = path.stat().st_size
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
    data = read_foreign(path, size)
    if len(data) < _HEADER.size:
        raise ProbeFileDamaged(f"{path}: is cut short; record the program again")
    magic, version, own_rank, ranks, own_number, size, plain, weighted = _HEADER.unpack_from(data)
    if magic != _MAGICS[kind]:
        raise ProbeFileDamaged(f"{path}: is no {kind} of a recorded rank")
    if version != VERSION:
        raise ProbeFileDamaged(f"{path}: has version {version}; this probe reads version {VERSION}")
    if (own_rank, own_number) != (rank, number) or not rank < ranks <= MOST_RANKS:
        raise ProbeFileDamaged(f"{path}: is part {own_number} of rank {own_rank}, under another's name")
    contents = data[_HEADER.size :]
    if size != len(contents) or size % 8:
        raise ProbeFileDamaged(f"{path}: has {len(contents)} bytes, not {size}: it is cut short")
    if (plain, weighted) != sums(contents):
        raise ProbeFileDamaged(f"{path}: its contents have changed since they were recorded")
    return Part(path, ranks, contents)


def sums(contents: bytes) -> tuple[int, int]:
    """Sum of the 64-bit words, and the same with each word times its place from one; both modulo 2^64."""
    words = np.frombuffer(contents, dtype="<u8")
    places = np.arange(1, len(words) + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        return int(words.sum(dtype=np.uint64)), int((words * places).sum(dtype=np.uint64))


@dataclass(frozen=True)
class Inbox:
    """What one rank's inbox holds. answers: calls that it answers, repeated ones too. size: bytes."""

    ranks: int
    answers: int
    size: int


def check_inbox(folder: Path, rank: int) -> Inbox:
    """Check the inbox of one rank, record by record. Raises ProbeFileDamaged and StorageError."""
    answers = size = ranks = 0
    known, layouts, last = len(names()), 0, None
    for part in parts(folder, "inbox", rank):
        place = 0
        ranks = part.ranks
        size += len(part.contents)
        while place < len(part.contents):
            if last == END:
                raise part.damaged("goes on after its end", place)
            function, repeats, length = _record(part, place)
            if (last is None) != (function == BEGIN):
                raise part.damaged("does not begin with MPI_Init", place)
            place += _RECORD.size
            if function == LAYOUT:
                layouts += 1
                _check_layout(part, place, length, layouts)
            elif function < known:
                answers += 1 + repeats
                if length < 8:
                    raise part.damaged("a call without its result", place)
            elif function in (COPY, DELETE):
                if length != 8:
                    raise part.damaged("a function of an attribute without its key", place)
            elif function not in (BEGIN, END):
                raise part.damaged(f"call number {function}, which is none,", place)
            place += length
            last = function
    if last != END:
        raise ProbeFileDamaged(f"{folder}: the inbox of rank {rank} has no end: the rank ended before MPI_Finalize")
    return Inbox(ranks, answers, size)


def _record(part: Part, place: int) -> tuple[int, int, int]:
    if len(part.contents) - place < _RECORD.size:
        raise part.damaged("half of a record", place)
    function, reserved, length, repeats = _RECORD.unpack_from(part.contents, place)
    if reserved or length % 8 or length > len(part.contents) - place - _RECORD.size:
        raise part.damaged("a record longer than its part", place)
    if repeats and function >= LAYOUT:
        raise part.damaged("a repeated record of another kind than calls", place)
    return function, repeats, length


def _check_layout(part: Part, place: int, length: int, expected: int) -> None:
    if length < _LAYOUT_HEAD:
        raise part.damaged("half of a layout", place)
    number, _, runs = struct.unpack_from("<QqQ", part.contents, place)
    if number != expected or length != _LAYOUT_HEAD + runs * _RUN_BYTES or not runs:
        raise part.damaged(f"a layout of {runs} runs in {length} bytes", place)
    found = np.frombuffer(part.contents, dtype="<u8", count=runs * 2, offset=place + _LAYOUT_HEAD)
    if not found[1::2].all() or (found[1::2] > 1 << 30).any():
        raise part.damaged("a layout with a run of no length", place)
