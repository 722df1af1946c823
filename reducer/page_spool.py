# SPDX-License-Identifier: Apache-2.0
"""Put a phase's pages into its pages images, by its index: each page straight to its place if it is needed once.

Standard library only. Pages that a phase refers to again, its own or those of earlier phases, wait in an unnamed file
at the place their number gives them; between them it has holes.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, NamedTuple

from checkpoint.linux import PAGE_SIZE

RUN = struct.Struct("<II")
CHUNK_PAGES = 256

_CHUNK = 1 << 18


class Place(NamedTuple):
    """`pages` pages from number `first` on belong at page `position` of the images; `fresh`: for the first time."""

    position: int
    first: int
    pages: int
    fresh: bool


def runs_of(index: IO[bytes]) -> Iterator[tuple[int, int]]:
    """(first page number or 0 for zero pages, count) of every run of a page index."""
    index.seek(0)
    while True:
        piece = index.read(_CHUNK)
        if len(piece) < RUN.size:
            return
        yield from RUN.iter_unpack(piece[: len(piece) - len(piece) % RUN.size])


def places(runs: Iterable[tuple[int, int]], own: int) -> Iterator[Place]:
    """Where the pages of a phase belong whose own pages start at number `own`; zero pages are left out.

    Fresh places come with rising page numbers.
    """
    position = 0
    for first, count in runs:
        if first and first < own:
            old = min(count, own - first)
            yield Place(position, first, old, False)
            position, first, count = position + old, first + old, count - old
        if first and count:
            yield Place(position, first, count, True)
            own = first + count
        position += count


class PageStream:
    """Pages out of the pieces of a member, whatever their lengths."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def read(self, pages: int) -> memoryview:
        """The next `pages` pages. There must be as many."""
        size = pages * PAGE_SIZE
        if len(self._rest) < size:
            found = [self._rest]
            have = len(self._rest)
            while have < size:
                found.append(memoryview(next(self._pieces)))
                have += len(found[-1])
            self._rest = memoryview(b"".join(found))
        read, self._rest = self._rest[:size], self._rest[size:]
        return read

    def finish(self) -> None:
        """Use up the pieces: only after that is what was read known to be right."""
        for _ in self._pieces:
            pass


class PageImages:
    """The pages images of one phase as one row of pages. `files` are new; lengths in pages."""

    def __init__(self, files: Sequence[tuple[IO[bytes], int]]) -> None:
        self._files = files

    def write(self, position: int, data: memoryview) -> None:
        """Put whole pages from page `position` on."""
        for file, offset, pages in self._parts(position, len(data) // PAGE_SIZE):
            size = pages * PAGE_SIZE
            write_all(file.fileno(), data[:size], offset)
            data = data[size:]

    def copy(self, source: IO[bytes], first: int, position: int, count: int) -> None:
        """Put `count` pages of `source` from page `first` on there, inside the kernel."""
        for file, offset, pages in self._parts(position, count):
            os.lseek(file.fileno(), offset, os.SEEK_SET)
            start, left = first * PAGE_SIZE, pages * PAGE_SIZE
            while left:
                done = os.sendfile(file.fileno(), source.fileno(), start, left)
                if not done:
                    raise OSError(errno.EIO, "temporary data vanished")
                start, left = start + done, left - done
            first += pages

    def finish(self) -> None:
        """Give the files their lengths: zero pages at the end are holes like all others."""
        for file, pages in self._files:
            file.truncate(pages * PAGE_SIZE)

    def _parts(self, position: int, count: int) -> Iterator[tuple[IO[bytes], int, int]]:
        """(file, offset in bytes, pages) of each image that these pages fall into."""
        for file, pages in self._files:
            if not count:
                return
            if position < pages:
                now = min(count, pages - position)
                yield file, position * PAGE_SIZE, now
                position, count = position + now, count - now
            position -= pages


class PageSpool:
    """Pages that are needed again, by their numbers. `again` has one byte a page, from number 1 on: whether it is."""

    def __init__(self, again: bytearray, file: IO[bytes]) -> None:
        self._again = again
        self.file = file

    def keep(self, first: int, data: memoryview) -> None:
        """Keep those of the pages `data`, numbered from `first` on, that are needed again."""
        flags = self._again[first - 1 : first - 1 + len(data) // PAGE_SIZE]
        begin = flags.find(1)
        while begin >= 0:
            end = flags.find(0, begin)
            end = len(flags) if end < 0 else end
            view = data[begin * PAGE_SIZE : end * PAGE_SIZE]
            write_all(self.file.fileno(), view, (first - 1 + begin) * PAGE_SIZE)
            begin = flags.find(1, end)

    def close(self) -> None:
        self.file.close()


def write_all(descriptor: int, view: memoryview, offset: int) -> None:
    """Write all of it at that offset of an open file. Raises OSError."""
    while view:
        done = os.pwrite(descriptor, view, offset)
        view, offset = view[done:], offset + done
