# SPDX-License-Identifier: Apache-2.0
"""Counters and points put into the code of a restored phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from checkpoint.binary.elf import ElfImage, read_image
from checkpoint.binary.sites import LONGEST_INSTRUCTION, SiteTable, find_sites
from checkpoint.errors import ProgramNotRunnable
from checkpoint.event import EVENT_BYTES, MARKER, STOP_AFTER
from checkpoint.flat.image import OF_OBJECT, FlatImage
from checkpoint.flow.flow import Place, Point
from checkpoint.linux import PAGE_SIZE
from checkpoint.process.maps import find_gap
from checkpoint.process.tracee import Tracee
from checkpoint.stubs.encode import (
    NEVER,
    Event,
    counter_code_size,
    encode_counters,
    encode_markers,
    marker_sizes,
    page_align,
    patched_text,
)
from checkpoint.stubs.text import read_text

_EXECUTABLE = 4


@dataclass(frozen=True)
class MappedImage:
    """An image that a phase has mapped: its path at capture, what is in the file, its sites, where it lies."""

    path: str
    image: ElfImage
    sites: SiteTable
    bias: int
    low: int
    high: int


def mapped_images(flat: FlatImage, local: Mapping[int, Path]) -> list[MappedImage]:
    """The images that the phase executes, in order of address. `local`: where each of `flat.files` is here."""
    found = []
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for m in flat.mappings:
        if m.file and not m.file & OF_OBJECT:
            spans[m.file - 1].append((m.start, m.end))
    executable = [m for m in flat.mappings if m.file and m.prot & _EXECUTABLE and not m.file & OF_OBJECT]
    for number in dict.fromkeys(m.file - 1 for m in executable):
        if (decoded := _decoded(str(local[number]))) is None:
            continue
        image, sites = decoded
        if (bias := _bias(image, flat, number)) is None:
            continue
        low, high = min(s for s, _ in spans[number]), max(e for _, e in spans[number])
        if len(sites):
            found.append(MappedImage(flat.files[number], image, sites, bias, low, high))
    return found


@lru_cache(maxsize=64)
def _decoded(path: str) -> tuple[ElfImage, SiteTable] | None:
    """A file that phases map, with its sites; None for a file that is no program."""
    try:
        image = read_image(path)
    except (ProgramNotRunnable, OSError):
        return None
    return image, find_sites(image)


def _bias(image: ElfImage, flat: FlatImage, number: int) -> int | None:
    for m in flat.mappings:
        for segment in image.segments:
            first = segment.offset & -PAGE_SIZE
            inside = m.file_offset - first
            of_it = m.file == number + 1 and m.prot & _EXECUTABLE and segment.executable
            if of_it and 0 <= inside < segment.size + PAGE_SIZE:
                return int(m.start - inside - (segment.vaddr & -PAGE_SIZE))
    return None


@dataclass(frozen=True)
class _Counted:
    mapped: MappedImage
    rows: npt.NDArray[np.int64]
    counters: int


@dataclass
class _Marked:
    place: Place
    events: list[int]
    record: int
    events_at: int


class StubsInPlace:
    """Counters at every block of the images of one restored process, and stops at points. It is stopped."""

    def __init__(self, tracee: Tracee, images: Sequence[MappedImage], points: Sequence[Point]) -> None:
        self._tracee = tracee
        self._counted: list[_Counted] = []
        self._marked: list[_Marked] = []
        self.areas: list[tuple[int, int]] = []
        """Address ranges [start, end) of what was put there."""
        wanted: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for point in points:
            wanted[point.place[0]][point.place[1]].append(point.count)
        for mapped in images:
            self._install(mapped, wanted[mapped.path])

    def _install(self, mapped: MappedImage, wanted: Mapping[int, list[int]]) -> None:
        sites, bias = mapped.sites, mapped.bias
        found = read_text(self._tracee, sites, bias)
        start, text = found.start, found.code
        rows = _as_in_file(sites, text, sites.offset + bias - start)
        mine = rows[np.isin(sites.offset[rows], list(wanted))] if wanted else rows[:0]
        if len(mine):
            self._mark(mapped, mine, wanted, text, start)
        rows = np.setdiff1d(rows, mine)
        if len(rows):
            self._count(mapped, rows, text, start)
        found.write(self._tracee)

    def _room(self, mapped: MappedImage, code: int, data: int) -> int:
        """Map memory for code, and behind it for data, near the image. Raises LookupError."""
        base = find_gap(self._tracee.mappings(), mapped.low, mapped.high, code + data + PAGE_SIZE)
        self._tracee.map_memory(base, code, executable=True)
        self._tracee.map_memory(base + code, data, executable=False)
        self.areas.append((base, base + code + data))
        return base

    def _count(self, mapped: MappedImage, rows: npt.NDArray[np.int64], text: npt.NDArray[np.uint8], start: int) -> None:
        sites = mapped.sites.take(rows)
        code, data = counter_code_size(sites), page_align(8 * len(sites))
        base = self._room(mapped, code, data)
        stubs = encode_counters(sites, mapped.bias, base, base + code)
        self._tracee.write(base, stubs.code.tobytes())
        patched_text(text, start, sites, mapped.bias, stubs.entry)
        self._counted.append(_Counted(mapped, rows, base + code))

    def _mark(
        self,
        mapped: MappedImage,
        rows: npt.NDArray[np.int64],
        wanted: Mapping[int, list[int]],
        text: npt.NDArray[np.uint8],
        start: int,
    ) -> None:
        sites = mapped.sites.take(rows)
        counts = [sorted(set(wanted[int(offset)])) for offset in sites.offset]
        code, data = marker_sizes([len(one) + 1 for one in counts])
        base = self._room(mapped, code, data)
        events = [[Event(count, STOP_AFTER) for count in one] for one in counts]
        made = encode_markers(sites, mapped.bias, events, base, base + code)
        self._tracee.write(base, made.code)
        self._tracee.write(base + code, made.data)
        patched_text(text, start, sites, mapped.bias, np.array(made.entry, dtype=np.int64))
        for number, one in enumerate(counts):
            record = made.record[number]
            place = (mapped.path, int(sites.offset[number]))
            self._marked.append(_Marked(place, one, record, record + MARKER.size))

    def counts(self) -> dict[Place, int]:
        """Executions so far of every block that ran."""
        found: dict[Place, int] = {}
        for one in self._counted:
            values = np.zeros(len(one.rows), dtype=np.int64)
            self._tracee.read_counters(one.counters, values)
            ran = np.flatnonzero(values)
            offsets = one.mapped.sites.offset[one.rows[ran]]
            found.update(
                ((one.mapped.path, at), count) for at, count in zip(offsets.tolist(), values[ran].tolist(), strict=True)
            )
        for marked in self._marked:
            if made := self._executions(marked):
                found[marked.place] = made
        return found

    def _executions(self, one: _Marked) -> int:
        left, reached = self._state(one)
        return one.events[reached] - left if reached < len(one.events) else one.events[-1] + NEVER - left

    def _state(self, one: _Marked) -> tuple[int, int]:
        left, due = MARKER.unpack(self._tracee.read(one.record, MARKER.size))
        return left, (due - one.events_at) // EVENT_BYTES

    def reached(self) -> set[Point]:
        """The points passed so far."""
        return {Point(one.place, count) for one in self._marked for count in one.events[: self._state(one)[1]]}


def _as_in_file(
    sites: SiteTable, text: npt.NDArray[np.uint8], position: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Sites whose bytes in memory are those of the file: at the others stand the markers of the phase itself."""
    same = np.ones(len(sites), dtype=bool)
    for k in range(LONGEST_INSTRUCTION):
        longer = sites.length > k
        same[longer] &= text[position[longer] + k] == sites.code[longer, k]
    return np.flatnonzero(same)
