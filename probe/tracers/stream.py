# SPDX-License-Identifier: Apache-2.0
"""Read a collector's stream (`pintools/collector/stream.h`) without holding more than the result.

An instruction-exact tracer cannot know how long a run will be. Its collector doubles the length of its intervals
now and then; here the earlier ones are joined to the same length, as they come. Where there is too much in them they
are joined earlier (`probe.tracers.joining`), and those that come after to the length of these.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from checkpoint.errors import ProbeFileDamaged, StorageError
from probe.formats.arrays import FloatArray, IntArray
from probe.tracers.joining import MOST_ENTRIES, join_neighbours, matrix_of, sum_of_vectors

VERSION = 1
NO_IMAGE = 0

_MAGIC = b"PRBTRACE"
_HEAD = struct.Struct("<8sIQQ")
_KIND = struct.Struct("<I")
_IMAGE, _BLOCK, _INTERVAL, _CANDIDATES, _END = range(1, 6)
_IMAGE_RECORD, _BLOCK_RECORD = struct.Struct("<II"), struct.Struct("<IQII")
_INTERVAL_RECORD, _CANDIDATES_RECORD, _END_RECORD = struct.Struct("<IQQQ"), struct.Struct("<I"), struct.Struct("<IQ")
_ENTRY = np.dtype([("block", "<u4"), ("value", "<u8")])
_LONGEST_PATH = 1 << 16
_LARGEST, _LARGEST_BLOCK = (1 << 62) - 1, (1 << 31) - 1
"""What fits the arrays, sums included; offsets alone may be larger."""


class Ending(enum.IntEnum):
    """Why a stream ends (enum ending)."""

    PROGRAM_ENDED = 0
    THREAD_STARTED = 1
    CHILD_STARTED = 2
    CODE_WRITABLE = 3


class Origin(enum.IntEnum):
    """What offsets in an image count from (enum origin)."""

    FILE_OFFSET = 0
    LINK_ADDRESS = 1


@dataclass(frozen=True)
class Candidates:
    """Blocks that began behind a boundary, arrays of one length: boundary k lies between intervals k - 1 and k.

    `distance`: instructions from the boundary to the block's first one.
    """

    boundary: IntArray
    block: IntArray
    distance: IntArray


@dataclass(frozen=True)
class Recorded:
    """One stream: N intervals of `interval` instructions, the last one shorter, and B blocks.

    image    B, position in `images`, -1 for code that lies in no file
    offset, size, instructions  B, of each block; the offset by the image's origin
    counts   N x B sparse, executions
    lengths  N, instructions of each interval
    seconds  N, time of each
    ending   None where the stream breaks off
    """

    interval: int
    images: tuple[tuple[str, Origin], ...]
    image: npt.NDArray[np.int32]
    offset: IntArray
    size: npt.NDArray[np.int32]
    instructions: npt.NDArray[np.int32]
    counts: sp.csr_array = field(repr=False)
    lengths: IntArray = field(repr=False)
    seconds: FloatArray = field(repr=False)
    candidates: Candidates = field(repr=False)
    ending: Ending | None


@dataclass
class _Row:
    blocks: IntArray
    executions: IntArray
    instructions: int
    nanoseconds: int


@dataclass
class _Reading:
    """`come`: how many intervals of `length` instructions there were. Kept are rows of `interval`, the same or a
    multiple; the last one may lack some. `entries`: of all rows."""

    path: Path
    file: BinaryIO
    length: int = 0
    come: int = 0
    interval: int = 0
    entries: int = 0
    images: list[tuple[str, Origin]] = field(default_factory=list)
    blocks: list[tuple[int, int, int, int]] = field(default_factory=list)
    rows: list[_Row] = field(default_factory=list)
    candidates: dict[int, tuple[IntArray, IntArray]] = field(default_factory=dict)
    ending: Ending | None = None

    def damaged(self, what: str) -> ProbeFileDamaged:
        return ProbeFileDamaged(f"{self.path}: not a readable trace ({what}); trace the program again")

    def take(self, size: int) -> bytes | None:
        """The next `size` bytes; None where the stream breaks off."""
        data = self.file.read(size)
        return data if len(data) == size else None

    def record(self) -> bool:
        """Read one record. False at the end, whether it was written or the stream breaks off."""
        head = self.take(_KIND.size)
        if head is None:
            return False
        kind = _KIND.unpack(head)[0]
        readers: dict[int, tuple[struct.Struct, Callable[..., bool]]] = {
            _IMAGE: (_IMAGE_RECORD, self._image),
            _BLOCK: (_BLOCK_RECORD, self._block),
            _INTERVAL: (_INTERVAL_RECORD, self._interval),
            _CANDIDATES: (_CANDIDATES_RECORD, self._candidates),
            _END: (_END_RECORD, self._end),
        }
        if kind not in readers:
            raise self.damaged(f"record of unknown kind {kind}")
        layout, read = readers[kind]
        rest = self.take(layout.size)
        if rest is None:
            return False
        values = layout.unpack(rest)
        if max(values) > _LARGEST and kind != _BLOCK:
            raise self.damaged("a number that no run reaches")
        return read(*values)

    def _image(self, origin: int, length: int) -> bool:
        if origin not in tuple(Origin) or length > _LONGEST_PATH:
            raise self.damaged(f"image with a path of {length} bytes")
        path = self.take(length)
        if path is not None:
            self.images.append((path.decode(errors="surrogateescape"), Origin(origin)))
        return path is not None

    def _block(self, image: int, offset: int, size: int, instructions: int) -> bool:
        if image > len(self.images):
            raise self.damaged(f"block of image {image}, of which nothing was said")
        if max(size, instructions) > _LARGEST_BLOCK:
            raise self.damaged(f"block of {size} bytes and {instructions} instructions")
        self.blocks.append((image - 1, offset, size, instructions))
        return True

    def _entries(self, count: int) -> tuple[IntArray, IntArray] | None:
        if count > len(self.blocks):
            raise self.damaged(f"{count} entries for {len(self.blocks)} blocks")
        data = self.take(count * _ENTRY.itemsize)
        if data is None:
            return None
        found = np.frombuffer(data, dtype=_ENTRY)
        if count and int(found["block"].max()) >= len(self.blocks):
            raise self.damaged("entry of a block of which nothing was said")
        if count and int(found["value"].max()) > _LARGEST:
            raise self.damaged("a number that no run reaches")
        return found["block"].astype(np.int64), found["value"].astype(np.int64)

    def _interval(self, count: int, length: int, instructions: int, nanoseconds: int) -> bool:
        entries = self._entries(count)
        if entries is None:
            return False
        while length > self.length:
            self._lengthen()
        if length != self.length:
            raise self.damaged(f"interval of {length} instructions after some of {self.length}")
        row = _Row(*entries, instructions, nanoseconds)
        if self.come % (self.interval // self.length):
            last = self.rows.pop()
            self.entries -= len(last.blocks)
            row = _joined(last, row)
        self.rows.append(row)
        self.entries += len(row.blocks)
        self.come += 1
        while self.entries > MOST_ENTRIES and len(self.rows) > 1:
            self._double()
        return True

    def _candidates(self, count: int) -> bool:
        entries = self._entries(count)
        boundary, inside = divmod(self.come, self.interval // self.length)
        if entries is not None and not inside:
            self.candidates[boundary] = entries
        return entries is not None

    def _end(self, ending: int, instructions: int) -> bool:
        if ending not in tuple(Ending) or instructions != sum(r.instructions for r in self.rows):
            raise self.damaged("its totals do not agree")
        self.ending = Ending(ending)
        return False

    def _lengthen(self) -> None:
        """Intervals that come are twice as long from here on."""
        if self.come % 2:
            raise self.damaged("an interval has no neighbour to be joined to")
        self.length, self.come = 2 * self.length, self.come // 2
        if self.length > self.interval:
            self._double()

    def _double(self) -> None:
        """Join neighbours; boundaries between joined ones are gone."""
        join_neighbours(self.rows, _joined)
        self.entries = sum(len(row.blocks) for row in self.rows)
        self.candidates = {k // 2: found for k, found in self.candidates.items() if k % 2 == 0}
        self.interval *= 2


def _joined(a: _Row, b: _Row) -> _Row:
    vector = sum_of_vectors((a.blocks, a.executions), (b.blocks, b.executions))
    return _Row(*vector, a.instructions + b.instructions, a.nanoseconds + b.nanoseconds)


def read_stream(path: Path) -> Recorded:
    """Read a stream as far as it goes. Raises StorageError, or ProbeFileDamaged where it is not one."""
    try:
        with path.open("rb") as file:
            reading = _Reading(path, file)
            head = reading.take(_HEAD.size)
            if head is not None:
                magic, version, reading.length, _ = _HEAD.unpack(head)
                reading.interval = reading.length
                if magic != _MAGIC:
                    raise reading.damaged("it does not begin like one")
                if version != VERSION:
                    raise ProbeFileDamaged(f"{path}: trace of version {version}, this program reads {VERSION}")
                if reading.interval < 1:
                    raise reading.damaged("intervals of no length")
                while reading.record():
                    pass
    except OSError as error:
        raise StorageError(f"{path}: the trace cannot be read: {error.strerror}") from error
    return _recorded(reading)


def _recorded(reading: _Reading) -> Recorded:
    rows = reading.rows
    columns = list(zip(*reading.blocks, strict=True)) if reading.blocks else [()] * 4
    empty = np.zeros(0, dtype=np.int64)
    vectors = ((r.blocks, r.executions) for r in rows)
    counts = matrix_of([len(r.blocks) for r in rows], vectors, len(reading.blocks))
    marked = sorted(reading.candidates.items())
    return Recorded(
        interval=reading.interval,
        images=tuple(reading.images),
        image=np.array(columns[0], dtype=np.int32),
        offset=np.array(columns[1], dtype=np.uint64).astype(np.int64),
        size=np.array(columns[2], dtype=np.int32),
        instructions=np.array(columns[3], dtype=np.int32),
        counts=counts,
        lengths=np.array([r.instructions for r in rows], dtype=np.int64),
        seconds=np.array([r.nanoseconds for r in rows], dtype=np.float64) * 1e-9,
        candidates=Candidates(
            boundary=np.repeat([k for k, _ in marked], [len(b) for _, (b, _) in marked]).astype(np.int64),
            block=np.concatenate([b for _, (b, _) in marked]) if marked else empty,
            distance=np.concatenate([d for _, (_, d) in marked]) if marked else empty,
        ),
        ending=reading.ending,
    )
