# SPDX-License-Identifier: Apache-2.0
"""Read the pages of a phase that are kept elsewhere, or put them in place as long as they are needed.

A phase's pages image has given way to a list of page numbers, PACKED, among its images. The pages are in two files
beside the phases' folders: compressed blocks, and a table that says where each begins. Numbers count from 1, and 0 is
the page of zeros. A block holds BLOCK_PAGES numbers, of which a phase's last one may leave some unused.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from pathlib import Path

from checkpoint.errors import ProbeFileDamaged
from checkpoint.flat.file_names import PACKED
from checkpoint.linux import PAGE_SIZE
from reducer.compression import Corrupt, inflated_block
from reducer.output_file import create_file, storage_errors
from reducer.page_spool import CHUNK_PAGES, RUN, write_all

BLOCK_PAGES = 16
"""Pages compressed together: few, since one of them may be all that a later phase wants."""

BLOCKS, TABLE = "kept-pages.blocks", "kept-pages.table"

HEADER, MAGIC = struct.Struct("<8sIQQ"), b"PBPAGES1"
"""Of PACKED: the magic, the number in the image's name, its pages, the runs of page numbers that follow."""

ROW = struct.Struct("<QII")
"""Of the table: offset, size and CRC-32 of a block as it is stored."""

_CACHED = 32
"""Blocks that stay unpacked while a phase is open: 2 MB, since packing a probe has all phases open."""

_MOST_STORED = 2 * BLOCK_PAGES * PAGE_SIZE
"""Bytes of a block that does not compress, with much to spare."""

_MOST_OFFSET = 1 << 62


class PackedImage:
    """The pages image that a phase's folder would hold, read from where its pages are kept.

    Raises StorageError where a file cannot be read, ProbeFileDamaged where it is not what it should be.
    """

    def __init__(self, images: Path) -> None:
        self._path = images / PACKED
        with storage_errors("read", self._path):
            data = self._path.read_bytes()
        if len(data) < HEADER.size:
            raise self._damaged("it is cut off")
        magic, number, pages, runs = HEADER.unpack_from(data)
        self.pages: int = pages
        if magic != MAGIC or len(data) != HEADER.size + runs * RUN.size:
            raise self._damaged("it is no list of pages, or cut off")
        self._firsts, counts = array("I"), array("I")
        for first, count in RUN.iter_unpack(memoryview(data)[HEADER.size :]):
            self._firsts.append(first)
            counts.append(count)
        self._begins = list(accumulate(counts, initial=0))
        if self._begins[-1] != self.pages:
            raise self._damaged(f"it lists {self._begins[-1]} pages where {self.pages} are said")
        self.path = images / f"pages-{number}.img"
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        with storage_errors("read", images.parent / BLOCKS):
            self._blocks, self._table, self._opened = open_both(images.parent, os.O_RDONLY)

    def __enter__(self) -> PackedImage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._opened.close()

    @property
    def size(self) -> int:
        """Bytes of the image."""
        return self.pages * PAGE_SIZE

    def read(self, size: int, offset: int) -> bytes:
        """So many bytes from there, both of whole pages; fewer at the end."""
        begin, end = offset // PAGE_SIZE, min(self.pages, (offset + size) // PAGE_SIZE)
        return b"".join(self._pieces(begin, end))

    def holds_something(self, begin: int, end: int) -> bool:
        """Whether one of these pages is no page of zeros."""
        at = bisect_right(self._begins, begin) - 1
        while at < len(self._firsts) and self._begins[at] < end:
            if self._firsts[at]:
                return True
            at += 1
        return False

    def _pieces(self, begin: int, end: int) -> Iterator[bytes]:
        at = bisect_right(self._begins, begin) - 1
        while begin < end:
            stop = min(end, self._begins[at + 1])
            first = self._firsts[at]
            if first:
                yield from self._stretch(first + begin - self._begins[at], stop - begin)
            else:
                yield bytes((stop - begin) * PAGE_SIZE)
            begin, at = stop, at + 1

    def _stretch(self, first: int, count: int) -> Iterator[bytes]:
        while count:
            block, within = divmod(first - 1, BLOCK_PAGES)
            now = min(count, BLOCK_PAGES - within)
            piece = self._block(block)[within * PAGE_SIZE : (within + now) * PAGE_SIZE]
            if len(piece) != now * PAGE_SIZE:
                raise self._damaged(f"it names page {first + now - 1}, which is not kept")
            yield piece
            first, count = first + now, count - now

    def _block(self, number: int) -> bytes:
        if number in self._cache:
            self._cache.move_to_end(number)
            return self._cache[number]
        row = os.pread(self._table, ROW.size, number * ROW.size)
        if len(row) < ROW.size:
            raise self._damaged(f"{TABLE} beside its folder has no row {number}")
        offset, size, check = ROW.unpack(row)
        packed = os.pread(self._blocks, size, offset) if size <= _MOST_STORED and offset < _MOST_OFFSET else b""
        if len(packed) != size or zlib.crc32(packed) != check:
            raise self._damaged(f"{BLOCKS} beside its folder is not what was written at {offset}")
        try:
            self._cache[number] = block = inflated_block(packed, BLOCK_PAGES * PAGE_SIZE)
        except Corrupt as error:
            raise self._damaged(f"{BLOCKS} beside its folder {error}") from error
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return block

    def _damaged(self, what: str) -> ProbeFileDamaged:
        return ProbeFileDamaged(f"{self._path}: damaged: {what}; build without --resume")


def open_both(folder: Path, flags: int) -> tuple[int, int, ExitStack]:
    """Descriptors of blocks and table in `folder`, and what closes both. Raises OSError."""
    with ExitStack() as opened:
        found = []
        for name in (BLOCKS, TABLE):
            found.append(os.open(folder / name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            opened.callback(os.close, found[-1])
        return found[0], found[1], opened.pop_all()


@contextmanager
def pages_in_place(images: Path) -> Iterator[None]:
    """The phase's pages image is in its folder `images` as long as this lasts, where its pages are kept elsewhere.

    Raises StorageError where there is no room for it, and ProbeFileDamaged.
    """
    if not (images / PACKED).exists():
        yield
        return
    with PackedImage(images) as packed, ExitStack() as undo:
        with storage_errors("write", packed.path, packed.size):
            # A killed build has left it.
            packed.path.unlink(missing_ok=True)
            _unpack(packed, undo)
        yield


def _unpack(packed: PackedImage, undo: ExitStack) -> None:
    with create_file(packed.path, undo) as out:
        out.truncate(packed.size)
        for begin in range(0, packed.pages, CHUNK_PAGES):
            # Pages of zeros are holes.
            if packed.holds_something(begin, min(packed.pages, begin + CHUNK_PAGES)):
                data = packed.read(CHUNK_PAGES * PAGE_SIZE, begin * PAGE_SIZE)
                write_all(out.fileno(), memoryview(data), begin * PAGE_SIZE)
