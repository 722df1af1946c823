# SPDX-License-Identifier: Apache-2.0
"""Address ranges that come and go while a phase is observed, and its memory that is mapped from the pages file."""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from checkpoint.linux import MAP_FIXED, PAGE_SIZE

_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
_PROTECTION = {"r": mmap.PROT_READ, "w": mmap.PROT_WRITE, "x": mmap.PROT_EXEC}


class Spans:
    """A set of addresses as disjoint ranges [start, end), kept in order."""

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.add_all(spans)

    def copy(self) -> Spans:
        """The same addresses."""
        return Spans(zip(self._starts, self._ends, strict=True))

    def add_all(self, spans: Iterable[tuple[int, int]]) -> None:
        """Add ranges."""
        for start, end in spans:
            self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        low, high = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high], self._ends[low:high] = [start], [end]

    def remove(self, start: int, end: int) -> None:
        """Take a range out."""
        low, high = bisect_right(self._ends, start), bisect_left(self._starts, end)
        if low >= high:
            return
        left = [(self._starts[low], start)] if self._starts[low] < start else []
        right = [(end, self._ends[high - 1])] if self._ends[high - 1] > end else []
        kept = left + right
        self._starts[low:high], self._ends[low:high] = [s for s, _ in kept], [e for _, e in kept]

    def inside(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts that lie in [start, end)."""
        low, high = bisect_right(self._ends, start), bisect_left(self._starts, end)
        return [(max(self._starts[i], start), min(self._ends[i], end)) for i in range(low, high)]

    def stretches(self) -> list[tuple[int, int]]:
        """All as (address, pages)."""
        return [(s, (e - s) // PAGE_SIZE) for s, e in zip(self._starts, self._ends, strict=True)]


@dataclass(frozen=True)
class Piece:
    """Memory [start, end) that is mapped from the pages file; `protection` and `flags`: of anonymous memory there."""

    start: int
    end: int
    protection: int
    flags: int = _FLAGS


class LazyMemory:
    """The memory of a process that is mapped from the pages file `path`."""

    def __init__(self, pid: int, path: str) -> None:
        self._pid = pid
        status = os.stat(path)  # noqa: PTH116
        self._inode = status.st_ino

    def first_lazy(self, start: int, end: int) -> Piece | None:
        """The first piece of [start, end), None if there is none."""
        for low, high, permissions in self._lazy():
            if low < end and start < high:
                protection = sum(bit for letter, bit in _PROTECTION.items() if letter in permissions)
                return Piece(max(low, start), min(high, -(-end // PAGE_SIZE) * PAGE_SIZE), protection)
        return None

    def _lazy(self) -> Iterator[tuple[int, int, str]]:
        with open(f"/proc/{self._pid}/maps", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                place, permissions, _, _, inode, *_ = line.split(None, 5)
                # Through an overlay the device is another.
                if int(inode) == self._inode and permissions[3] == "p":
                    low, high = place.split("-")
                    yield int(low, 16), int(high, 16), permissions

    def read(self, spans: Iterable[tuple[int, int]]) -> list[tuple[int, bytes]]:
        """(address, contents) of these ranges."""
        memory = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY)
        try:
            return [(start, _read(memory, start, end - start)) for start, end in spans]
        finally:
            os.close(memory)

    def write(self, contents: Iterable[tuple[int, bytes]]) -> None:
        """Put these back, whatever the protection."""
        memory = os.open(f"/proc/{self._pid}/mem", os.O_WRONLY)
        try:
            for address, data in contents:
                done = 0
                while done < len(data):
                    done += os.pwrite(memory, data[done:], address + done)
        finally:
            os.close(memory)


def _read(memory: int, address: int, size: int) -> bytes:
    pieces = []
    while size:
        data = os.pread(memory, size, address)
        if not data:
            raise OSError(f"memory at {address:#x} cannot be read")
        pieces.append(data)
        address, size = address + len(data), size - len(data)
    return b"".join(pieces)
