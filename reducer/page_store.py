# SPDX-License-Identifier: Apache-2.0
"""Each distinct page once: raw pages images in, new pages and an index of page numbers out.

Pages are numbered from 1 in the order of their first use; number 0 is the page of zeros, never stored.
An image's index is a list of runs (first number, count): pages are first used in address order, so that a
checkpoint of millions of pages has an index of some kilobytes.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from checkpoint.errors import ProbeFileDamaged, StorageError
from checkpoint.flat.file_names import PACKED
from checkpoint.linux import PAGE_SIZE
from reducer.packed_image import PackedImage

_CHUNK_PAGES = 256
_ZERO = bytes(PAGE_SIZE)
_RUN = struct.Struct("<II")
_MAX_PAGES = (1 << 32) - 1
_PLACE_BITS = 40


class PageStore:
    """Tells pages seen before from new ones, across all images it is given.

    Pages are found by a fast hash (Python's own for bytes: keyed, 64 bits, several GB/s) and then compared
    with the first page of that hash, which is read back from its image: two different pages are never taken
    for one another. The images must therefore stay as they are until `close`. Memory: about 120 bytes a
    distinct page.
    """

    def __init__(self, page_hash: Callable[[bytes], int] = hash) -> None:
        self._hash = page_hash
        self._numbers: dict[int, int] = {}
        # Pages whose fast hash belongs to another page, by a hash that has no collisions.
        self._collided: dict[bytes, int] = {}
        # Where each page was first seen: number of its image, and page in it.
        self._places = array("Q")
        self._images: list[_Image] = []
        self._undo = ExitStack()
        self.pages = 0
        """Pages seen."""
        self.zero_pages = 0
        """Pages of zeros among them."""

    def __enter__(self) -> PageStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def distinct_pages(self) -> int:
        """Different pages seen, without the page of zeros: the largest page number."""
        return len(self._places)

    def close(self) -> None:
        """Let go of the images."""
        self._undo.close()

    def add_image(self, path: Path, sink: Callable[[bytes], Any]) -> bytes:
        """Number all pages of the raw pages image `path`; pass the contents of new ones to `sink`, in order. Where its
        pages are kept elsewhere (reducer/packed_image.py) they are read from there.

        Returns the index: runs of two little-endian 32-bit integers, the first page's number (0: all zero
        pages) and how many pages follow it with rising numbers. Reads 1 MB at a time. ProbeFileDamaged if the
        image does not consist of whole pages, StorageError if it cannot be read or there are 2**32 pages.
        """
        image = _opened(path)
        self._undo.callback(image.close)
        self._images.append(image)
        index = Runs()
        position = 0
        while True:
            try:
                chunk = image.read(_CHUNK_PAGES * PAGE_SIZE, position * PAGE_SIZE)
            except OSError as error:
                raise StorageError(f"cannot read {path}: {error.strerror}") from error
            if not chunk:
                return index.encoded()
            if len(chunk) % PAGE_SIZE:
                raise ProbeFileDamaged(f"{path} does not consist of whole pages; take the checkpoint again")
            new: list[bytes] = []
            for offset in range(0, len(chunk), PAGE_SIZE):
                page = chunk[offset : offset + PAGE_SIZE]
                if page == _ZERO:
                    self.zero_pages += 1
                    index.add(0)
                    continue
                before = len(self._places)
                number = self._number(page, position + offset // PAGE_SIZE)
                if number > before:
                    new.append(page)
                index.add(number)
            if new:
                sink(chunk if len(new) * PAGE_SIZE == len(chunk) else b"".join(new))
            self.pages += len(chunk) // PAGE_SIZE
            position += len(chunk) // PAGE_SIZE

    def _number(self, page: bytes, position: int) -> int:
        """The page's number, a new one if it was not seen before."""
        key = self._hash(page)
        number = self._numbers.get(key)
        if number is None:
            self._numbers[key] = number = self._place(position)
        elif self._page(number) != page:
            strong = blake2b(page, digest_size=16).digest()
            number = self._collided.get(strong)
            if number is None:
                self._collided[strong] = number = self._place(position)
        return number

    def _place(self, position: int) -> int:
        if len(self._places) == _MAX_PAGES:
            raise StorageError(f"the checkpoints hold more than {_MAX_PAGES} pages: use fewer phases")
        self._places.append((len(self._images) - 1) << _PLACE_BITS | position)
        return len(self._places)

    def _page(self, number: int) -> bytes:
        place = self._places[number - 1]
        offset = (place & ((1 << _PLACE_BITS) - 1)) * PAGE_SIZE
        return self._images[place >> _PLACE_BITS].read(PAGE_SIZE, offset)


class _Image(Protocol):
    def read(self, size: int, offset: int) -> bytes:
        """So many bytes from there; fewer at the end."""

    def close(self) -> None:
        """Close it."""


class _RawImage:
    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error

    def read(self, size: int, offset: int) -> bytes:
        return os.pread(self._file, size, offset)

    def close(self) -> None:
        os.close(self._file)


def _opened(path: Path) -> _Image:
    if (path.parent / PACKED).exists():
        packed = PackedImage(path.parent)
        if packed.path == path:
            return packed
        packed.close()
    return _RawImage(path)


class Runs:
    """Page numbers gathered into runs of rising numbers, or of zeros."""

    def __init__(self) -> None:
        self._out = bytearray()
        self._first = 0
        self._count = 0

    def add(self, number: int, count: int = 1) -> None:
        """Append `count` pages with rising numbers from `number` on, or that many zero pages."""
        follows = number == (self._first and self._first + self._count)
        if self._count and follows and self._count + count <= _MAX_PAGES:
            self._count += count
            return
        self._flush()
        self._first, self._count = number, count

    def encoded(self) -> bytes:
        self._flush()
        self._count = 0
        return bytes(self._out)

    def _flush(self) -> None:
        if self._count:
            self._out += _RUN.pack(self._first, self._count)
