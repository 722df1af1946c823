# SPDX-License-Identifier: Apache-2.0
"""Read which pages of a process are its own: /proc/PID/pagemap, of which any user sees the flag bits."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from checkpoint.linux import PAGE_SIZE

_PRESENT, _SWAPPED, _OF_FILE, _GUARD = 1 << 63, 1 << 62, 1 << 61, 1 << 58
_MOST_PAGES = 1 << 22
"""Entries read at once: of a mapping of 60 GB there are 16 million."""

_SPARSE_PAGES = 1 << 16
"""From so many pages on the kernel is asked first where there are any: some programs reserve a terabyte."""
_NEAR = 512 * PAGE_SIZE
"""Bytes without pages that are read along rather than parting what is read."""
_SCAN = 0xC0606610
_SCAN_ARGUMENTS = struct.Struct("<12Q")
_REGIONS = 4096
_SOME_THERE = (1 << 3 | 1 << 4 | 1 << 8, 1 << 3 | 1 << 4)
"""ioctl(PAGEMAP_SCAN) and struct pm_scan_arg, from Linux 6.7 on (linux/fs.h); pages that are present, swapped out or
guards, and without the last, which came later. Before, guards count as swapped out."""

Entries = npt.NDArray[np.uint64]


class PageTable:
    """The page map of one process; `descriptor` of it is taken over, else it is opened. Use as a context manager."""

    def __init__(self, pid: int) -> None:
        self._file = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        self._kinds = list(_SOME_THERE)

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

    def present_pages(self, start: int, number: int) -> npt.NDArray[np.int64]:
        """As `present`, of a mapping of few pages: which of the `number` pages from `start` on, rising.

        Raises OSError where the process has ended, or executed another program, since the page map was opened.
        """
        parts = [entries for _, entries in self._read(start, start + number * PAGE_SIZE)]
        if sum(map(len, parts)) != number:
            raise OSError(errno.ESRCH, f"the page map of {number} pages from {start:#x} on is gone")
        return np.flatnonzero((parts[0] if len(parts) == 1 else np.concatenate(parts)) & (_PRESENT | _SWAPPED))

    def guarded(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(address, pages) of the stretches that are guard regions (MADV_GUARD_INSTALL)."""
        for address, entries in self._entries(start, end):
            yield from stretches(entries & _GUARD != 0, address)

    def _entries(self, start: int, end: int) -> Iterator[tuple[int, Entries]]:
        for low, high in self._inhabited(start, end):
            yield from self._read(low, high)

    def _inhabited(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """[start, end) without larger stretches in which there is no page; all of it where the kernel cannot tell."""
        low = high = -_NEAR
        for begin, stop in self._regions(start, end):
            if begin > high + _NEAR:
                if high > low:
                    yield low, high
                low = begin
            high = stop
        if high > low:
            yield low, high

    def _regions(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        sparse = end - start >= _SPARSE_PAGES * PAGE_SIZE
        while start < end and sparse and self._kinds:
            try:
                walked, regions = self._scanned(start, end)
            except OSError:
                del self._kinds[0]
                continue
            yield from regions
            start = walked
        if start < end:
            yield start, end

    def _scanned(self, start: int, end: int) -> tuple[int, list[tuple[int, int]]]:
        """How far the kernel got, and the stretches with pages until there."""
        found = np.zeros((_REGIONS, 3), dtype="<u8")
        size, kinds = _SCAN_ARGUMENTS.size, self._kinds[0]
        arguments = bytearray(
            _SCAN_ARGUMENTS.pack(size, 0, start, end, 0, found.ctypes.data, _REGIONS, 0, 0, 0, kinds, kinds)
        )
        number = fcntl.ioctl(self._file, _SCAN, arguments)
        # How far it walked, the kernel says where its buffer was full alone: inside, it has one of 512.
        walked = end if number < _REGIONS else int(found[number - 1][1])
        return walked, [(int(begin), int(stop)) for begin, stop, _ in found[:number]]

    def _read(self, start: int, end: int) -> Iterator[tuple[int, Entries]]:
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
