# SPDX-License-Identifier: Apache-2.0
"""Counting stubs at every site of a running program.

Each image gets one area of stub code and room for its counters within 2 GB of it. The counters are ordinary private
memory of the program: the tracer copies them through /proc/PID/mem while the program runs on, and once more when
it is about to exit, so that no execution is missed.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from checkpoint.binary.sites import DISPLACED, JUMP_BYTES, REDIRECTED, SiteTable, find_sites
from checkpoint.process.loader import LoadedImage
from checkpoint.process.team import SLOT_BYTES
from checkpoint.process.tracee import Tracee
from checkpoint.stubs.answers import not_answering
from checkpoint.stubs.counter_pages import CounterPages, page_table
from checkpoint.stubs.counts import Counts, collected, sum_of
from checkpoint.stubs.encode import counter_code_size, encode_counters, page_align, patched_text
from checkpoint.stubs.loops import Loop, encode_loop
from checkpoint.stubs.slots import StubRoom
from checkpoint.stubs.text import read_text

_LOOPS = 128
_LOOP_CODE = 1 << 19
"""Most loops of one image that get copies, and bytes for them. Pages that are not used take no memory."""


@dataclass(frozen=True)
class CountedImage:
    """One image whose sites are counted: columns [first, first + len(sites)) of the process's counts."""

    path: str
    sha256: str
    sites: SiteTable = field(repr=False)
    first: int


@dataclass(eq=False)
class _Area:
    loaded: LoadedImage
    image: int
    counters: int
    rows: npt.NDArray[np.int64]
    """Which sites of the image are patched here (positions in its table)."""
    code: int
    """Where the next loop's copies go, up to `code_end`."""
    code_end: int
    loops: dict[int, int] = field(default_factory=dict)
    """Position in `rows` of the site at which a loop's copies are entered, and how many there are."""

    @property
    def left(self) -> int:
        """Address of the counters of ways out of loops, in the order of `loops`."""
        return self.counters + 8 * len(self.rows)


class SiteCounters:
    """All counters of one traced process. Columns are given out per image and kept when a library comes back."""

    def __init__(self, tracee: Tracee) -> None:
        self._tracee = tracee
        self._room = StubRoom(tracee)
        self._areas: list[_Area] = []
        self.images: list[CountedImage] = []
        self._had_room: dict[int, bool] = {}
        """Whether there was room for an image's stubs at any of its openings, by its number."""
        self.removed = np.zeros(0, dtype=bool)
        self.flags_dead = np.zeros(0, dtype=bool)
        self.block_instructions = np.zeros(0)
        """Of the sites, and of the blocks behind them, by column."""
        self.copies = np.zeros(0, dtype=np.int64)
        """Of the loop that a column's site lies in, where it is counted by copies; 0 elsewhere."""
        self._no_loop = np.zeros(0, dtype=bool)
        self._past = Counts()
        self._first_past = Counts()
        """As `_past`, of the first thread alone."""
        self.work = np.zeros(1)
        """Instructions counted up to the last copy, by the threads' slots."""
        self._past_work = np.zeros(1)
        self._pages_of: list[_Area] = []
        self._pages = CounterPages([])
        """Of these areas."""

    @property
    def columns(self) -> int:
        return len(self.removed)

    @property
    def without_room(self) -> list[CountedImage]:
        """Images of which nothing was counted, since there was no room for stubs in their reach."""
        return [self.images[number] for number, had in self._had_room.items() if not had]

    def install(self, loaded: LoadedImage) -> int:
        """Patch every site of `loaded` that was not removed; the process is stopped. Returns the sites patched."""
        number = self._image_number(loaded)
        image = self.images[number]
        rows = np.flatnonzero(~self.removed[image.first : image.first + len(image.sites)])
        if not len(rows):
            return 0
        sites = image.sites.take(rows)
        code_size, counter_size = counter_code_size(sites), page_align(8 * (len(sites) + _LOOPS))
        size = code_size + _LOOP_CODE
        try:
            base, counters = self._room.take(loaded, size, counter_size)
        except LookupError:
            self._had_room.setdefault(number, False)
            return 0
        self._had_room[number] = True
        stubs = encode_counters(sites, loaded.bias, base, counters, many=self._tracee.team is not None)
        self._tracee.write(base, stubs.code.tobytes())
        text = read_text(self._tracee, sites, loaded.bias)
        patched_text(text.code, text.start, sites, loaded.bias, stubs.entry)
        text.write(self._tracee)
        self._areas.append(_Area(loaded, number, counters, rows, base + code_size, counters))
        self.copies[image.first + rows] = 0
        return len(rows)

    def _image_number(self, loaded: LoadedImage) -> int:
        for number, image in enumerate(self.images):
            if image.path == loaded.image.path and image.sha256 == loaded.image.sha256:
                return number
        # The program is stopped: its processor is free.
        sites = find_sites(loaded.image, os.sched_getaffinity(self._tracee.pid))
        sites = sites.take(not_answering(loaded.image, sites.offset))
        if self._tracee.program.reads_calls:
            sites = sites.take(sites.kind == DISPLACED)
        self.images.append(CountedImage(loaded.image.path, loaded.image.sha256, sites, self.columns))
        self.removed = np.concatenate([self.removed, np.zeros(len(sites), dtype=bool)])
        self.flags_dead = np.concatenate([self.flags_dead, sites.flags_dead])
        self.block_instructions = np.concatenate([self.block_instructions, sites.block_instructions])
        self.copies = np.concatenate([self.copies, np.zeros(len(sites), dtype=np.int64)])
        self._no_loop = np.concatenate([self._no_loop, sites.loop_end == 0])
        return len(self.images) - 1

    def forget_unmapped(self, known: list[LoadedImage]) -> None:
        """Close the areas of libraries that were unmapped; their counts stay. The stub memory stays mapped."""
        for area in [a for a in self._areas if a.loaded not in known]:
            whole, first, work = self._counts_of([area])
            self._past = sum_of([self._past, whole])
            self._first_past = sum_of([self._first_past, first])
            self._past_work = added(self._past_work, work)
            self._areas.remove(area)

    def forget_all(self) -> None:
        """After an execve: every area is gone, and with it what was counted since the last copy."""
        self._areas.clear()
        self._room = StubRoom(self._tracee)

    def read(self) -> npt.NDArray[np.int64]:
        """Executions of every column since the start by all threads, shape (columns,). The program may be running."""
        return self.read_both()[0].of_all(self.columns)

    def read_both(self) -> tuple[Counts, Counts]:
        """As `read`, of the columns that executed, and the first thread's part of it. Renews `work`."""
        whole, first, work = self._counts_of(self._areas)
        self.work = added(self._past_work, work)
        if not len(self._past.columns):
            return whole, first
        whole = sum_of([self._past, whole])
        return whole, whole if self._tracee.team is None else sum_of([self._first_past, first])

    def _counts_of(self, areas: list[_Area]) -> tuple[Counts, Counts, npt.NDArray[np.float64]]:
        """Executions counted in these areas: all, and the first thread's; and instructions by slot.

        Without a team nobody asks for the last two.
        """
        if areas != self._pages_of:
            self._pages_of = list(areas)
            self._pages = CounterPages([(a.counters, self.images[a.image].first + a.rows) for a in areas])
        with page_table(self._tracee.pid) as table:
            slots = [self._pages.read(self._tracee, slot * SLOT_BYTES, table) for slot in range(self._slots)]
        if areas:
            # Of an address space that an execve has replaced no page is there, and only reading it fails.
            self._tracee.read_counters(areas[0].counters, np.empty(1, dtype=np.int64))
        if self._tracee.team is None:
            return slots[0], slots[0], np.zeros(1)
        # Not by a dot product, for which the library may take the program's processors, too.
        work = [(counts.executions * self.block_instructions[counts.columns]).sum() for counts in slots]
        return sum_of(slots), slots[0], np.array(work)

    @property
    def _slots(self) -> int:
        """How many threads have had counters of their own at the same time."""
        return 1 if self._tracee.team is None else self._tracee.team.slots

    def remove(self, columns: npt.NDArray[np.int64]) -> None:
        """Give the sites their own bytes back, for good. The process is stopped, at whatever instruction.

        Safe anywhere: a process stopped inside a stub finishes it and returns behind the site.
        """
        self.removed[columns] = True
        for area in self._areas:
            image = self.images[area.image]
            mine = columns[(columns >= image.first) & (columns < image.first + len(image.sites))] - image.first
            for row in mine[np.isin(mine, area.rows)].tolist():
                length = int(image.sites.length[row])
                original = image.sites.code[row, :length].tobytes()
                self._tracee.write(int(image.sites.offset[row]) + area.loaded.bias, original)
                self._uncopy(area, image, row)

    def _uncopy(self, area: _Area, image: CountedImage, row: int) -> None:
        """The site at which a loop's copies are entered is gone: its other sites count for themselves again."""
        if int(np.searchsorted(area.rows, row)) in area.loops:
            first, last = np.searchsorted(image.sites.offset, (image.sites.loop_start[row], image.sites.loop_end[row]))
            self.copies[image.first + first : image.first + last] = 0
            self._no_loop[image.first + first : image.first + last] = True

    def in_loops(self, columns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Those of `columns` whose loop could be counted by copies of it, and is not yet."""
        closed: npt.NDArray[np.bool_] = self._no_loop[columns] | self.removed[columns] | (self.copies[columns] > 0)
        return columns[~closed]

    def copy_loops(self, columns: npt.NDArray[np.int64]) -> None:
        """Count the loops that the sites of `columns` lie in by copies of them. The process is stopped, anywhere.

        Where there is no room for copies, or they cannot be made, the loop is not offered again.
        """
        for column in columns.tolist():
            if self.copies[column] or self._no_loop[column]:
                continue
            self._no_loop[column] = True
            for area in self._areas:
                image = self.images[area.image]
                if image.first <= column < image.first + len(image.sites):
                    self._copy_loop(area, image, column - image.first)

    def _copy_loop(self, area: _Area, image: CountedImage, row: int) -> None:
        sites, start, end = image.sites, int(image.sites.loop_start[row]), int(image.sites.loop_end[row])
        first, last = np.searchsorted(sites.offset, (start, end))
        inside = np.arange(first, last)
        at = np.searchsorted(area.rows, inside)
        entries = inside[(sites.kind[inside] != REDIRECTED) & ~self.removed[image.first + inside]]
        if not len(entries) or len(area.loops) == _LOOPS or not np.array_equal(area.rows[at], inside):
            return
        entered = int(max(entries, key=lambda r: bool(sites.flags_dead[r])))
        loop = Loop(
            area.loaded.image, area.loaded.bias, start, end, int(sites.offset[entered]),
            {int(o): area.counters + 8 * int(k) for o, k in zip(sites.offset[inside], at, strict=True)},
            area.left + 8 * len(area.loops), bool(sites.flags_dead[entered]), self._tracee.team is not None,
        )  # fmt: skip
        code = encode_loop(loop, area.code)
        if code is None or area.code + len(code) > area.code_end:
            return
        self._tracee.write(area.code, code)
        site = loop.entered + loop.bias
        self._tracee.write(site, b"\xe9" + struct.pack("<i", area.code - site - JUMP_BYTES))
        area.code += len(code)
        area.loops[int(np.searchsorted(area.rows, entered))] = loop.turns
        self.copies[image.first + inside] = loop.turns

    def ways_out(self) -> Counts:
        """How often copies of loops were left, by the column at which they are entered."""
        parts = []
        for area in self._areas:
            if area.loops:
                columns = self.images[area.image].first + area.rows[list(area.loops)]
                values = np.zeros(len(columns), dtype=np.int64)
                for slot in range(self._slots):
                    self._tracee.read_counters(area.left + slot * SLOT_BYTES, values)
                    left = np.flatnonzero(values)
                    parts.append(collected(columns[left], values[left]))
        return sum_of(parts)


def added(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The sum, where slots that one does not have count as zero."""
    total = np.zeros(max(len(a), len(b)))
    total[: len(a)] += a
    total[: len(b)] += b
    return total
