# SPDX-License-Identifier: Apache-2.0
"""Read which pages of a process are its own: /proc/PID/pagemap, of which any user sees the flag bits."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from checkpoint.linux import PAGE_SIZE

_PRESENT, _SWAPPED, _OF_FILE, _GUARD = 1 << 63, 1 << 62, 1 << 61, 1 << 58
_MOST_PAGES = 1 << 22
"""Entries read at once: of a mapping of 60 GB there are 16 million."""

Entries = npt.NDArray[np.uint64]


class PageTable:
    """The page map of one process; `descriptor` of it is taken over, else it is opened. Use as a context manager."""

    def __init__(self, pid: int) -> None:
        self._file = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> PageTable:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def own_pages(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(address, pages) of the stretches of [start, end) that are no longer what they were mapped from: written or
        touched anonymous pages, private copies of file pages, either of them swapped out."""
        for address, entries in self._entries(start, end):
            own = (entries & _PRESENT != 0) & (entries & _OF_FILE == 0) | (entries & _SWAPPED != 0)
            yield from stretches(own, address)

    def present(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(address, pages) of the stretches that are there or swapped out, whatever they are."""
        for address, entries in self._entries(start, end):
            yield from stretches(entries & (_PRESENT | _SWAPPED) != 0, address)

    def guarded(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(address, pages) of the stretches that are guard regions (MADV_GUARD_INSTALL)."""
        for address, entries in self._entries(start, end):
            yield from stretches(entries & _GUARD != 0, address)

    def _entries(self, start: int, end: int) -> Iterator[tuple[int, Entries]]:
        while start < end:
            stop = min(end, start + _MOST_PAGES * PAGE_SIZE)
            size = (stop - start) // PAGE_SIZE * 8
            data = os.pread(self._file, size, start // PAGE_SIZE * 8)
            if not data:
                return
            yield start, np.frombuffer(data[: len(data) // 8 * 8], dtype="<u8")
            start += len(data) // 8 * PAGE_SIZE


def stretches(flags: npt.NDArray[np.bool_], address: int) -> Iterator[tuple[int, int]]:
    """(address, pages) of each stretch of set flags, one for each page from `address` on."""
    # Nearly all there is of mappings of few pages, of which some programs have tens of thousands.
    if flags.all() or not flags.any():
        yield from [(address, len(flags))] if len(flags) and flags[0] else []
        return
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    for low, high in edges.reshape(-1, 2).tolist():
        yield address + low * PAGE_SIZE, high - low
