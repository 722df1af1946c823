# SPDX-License-Identifier: Apache-2.0
"""Keep the pages of a build's phases in its work folder: each distinct page of all of them once, compressed.

What that leaves, and how it is read, is in `reducer.packed_image`.
"""

from __future__ import annotations

import os
import zlib
from contextlib import ExitStack
from functools import partial
from hashlib import blake2b
from pathlib import Path

from checkpoint.errors import ProbeFileDamaged, StorageError
from checkpoint.flat.file_names import PACKED
from checkpoint.linux import PAGE_SIZE
from reducer.compression import deflated
from reducer.output_file import create_file, forgiving, storage_errors
from reducer.packed_image import BLOCK_PAGES, BLOCKS, HEADER, MAGIC, ROW, TABLE, open_both
from reducer.page_spool import CHUNK_PAGES, RUN, write_all
from reducer.page_store import Runs

_ZERO = bytes(PAGE_SIZE)
_MOST_NUMBERS = (1 << 32) - BLOCK_PAGES


class KeptPages:
    """Packs phases below one folder. Pages are told apart by their BLAKE2b hashes of 128 bits.

    Memory: some 150 bytes a distinct page. A second one for the same folder adds to what the first has left, and knows
    none of its pages.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers: dict[bytes, int] = {}
        self._left = 0, 0

    def pack(self, images: Path, image: Path) -> None:
        """Put the pages of `image`, which is in the folder `images` of a phase, away. Raises StorageError, and leaves
        all as it was, where the disk is full, and ProbeFileDamaged where the image is none of whole pages."""
        if images.parent != self.folder:
            raise ValueError(f"{images} is not below {self.folder}")
        size = image.stat().st_size
        if size % PAGE_SIZE:
            raise ProbeFileDamaged(f"{image} does not consist of whole pages; take the checkpoint again")
        target = images / PACKED
        with storage_errors("write", self.folder / BLOCKS, size), ExitStack() as undo:
            runs = Runs()
            with _Blocks(self.folder, undo, self._numbers) as new, image.open("rb") as source:
                if new.state != self._left:
                    # What it knows was removed.
                    self._numbers.clear()
                while chunk := source.read(CHUNK_PAGES * PAGE_SIZE):
                    for at in range(0, len(chunk), PAGE_SIZE):
                        page = chunk[at : at + PAGE_SIZE]
                        runs.add(0 if page == _ZERO else new.number(page))
                new.finish()
                left = new.state
            encoded = runs.encoded()
            head = (MAGIC, _number_of(image), size // PAGE_SIZE, len(encoded) // RUN.size)
            with create_file(target, undo) as out:
                out.write(HEADER.pack(*head) + encoded)
            undo.pop_all()
            self._left = left
        image.unlink()


class _Blocks:
    """New blocks at the end of the two files. `undo` takes them away, and forgets all numbers."""

    def __init__(self, folder: Path, undo: ExitStack, numbers: dict[bytes, int]) -> None:
        self._numbers = numbers
        self._blocks, self._table, self._opened = open_both(folder, os.O_RDWR | os.O_CREAT)
        self._rows = os.fstat(self._table).st_size // ROW.size
        self._end = 0
        if self._rows:
            offset, size, _ = ROW.unpack(os.pread(self._table, ROW.size, (self._rows - 1) * ROW.size))
            self._end = offset + size
        # What a killed build has left beyond the last whole row belongs to nothing.
        for name, end in ((BLOCKS, self._end), (TABLE, self._rows * ROW.size)):
            os.truncate(folder / name, end)
            undo.callback(forgiving, partial(os.truncate, folder / name, end))
        undo.callback(numbers.clear)
        self._pages: list[bytes] = []

    @property
    def state(self) -> tuple[int, int]:
        """Which table it is, and its rows."""
        return os.fstat(self._table).st_ino, self._rows

    def __enter__(self) -> _Blocks:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def number(self, page: bytes) -> int:
        """The number of a page, a new one if it was not seen before."""
        key = blake2b(page, digest_size=16).digest()
        known = self._numbers.get(key)
        if known is None:
            known = self._rows * BLOCK_PAGES + len(self._pages) + 1
            if known > _MOST_NUMBERS:
                raise StorageError(f"the checkpoints hold more than {_MOST_NUMBERS} pages: use fewer phases")
            self._numbers[key] = known
            self._pages.append(page)
            if len(self._pages) == BLOCK_PAGES:
                self._write()
        return known

    def finish(self) -> None:
        """Write what is left of the last block."""
        if self._pages:
            self._write()

    def _write(self) -> None:
        packed = deflated(b"".join(self._pages))
        write_all(self._blocks, memoryview(packed), self._end)
        row = ROW.pack(self._end, len(packed), zlib.crc32(packed))
        write_all(self._table, memoryview(row), self._rows * ROW.size)
        self._end += len(packed)
        self._rows += 1
        self._pages = []


def remove_kept(folder: Path) -> None:
    """Remove the pages kept in `folder`, which no phase refers to any more."""
    for name in (BLOCKS, TABLE):
        (folder / name).unlink(missing_ok=True)


def _number_of(image: Path) -> int:
    return int(image.name.removeprefix("pages-").removesuffix(".img"))
