# SPDX-License-Identifier: Apache-2.0
"""Counting stubs at every site of a running program.

Each image gets one area of stub code and one of counters within 2 GB of it. The counters are ordinary private
memory of the program: the tracer copies them through /proc/PID/mem while the program runs on, and once more when
it is about to exit, so that no execution is missed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from checkpoint.binary.sites import SiteTable, find_sites
from checkpoint.linux import PAGE_SIZE
from checkpoint.process.loader import LoadedImage
from checkpoint.process.maps import find_gap, read_maps
from checkpoint.process.tracee import Tracee
from checkpoint.stubs.encode import counter_code_size, encode_counters, page_align, patched_text

_GUARD = PAGE_SIZE


@dataclass(frozen=True)
class CountedImage:
    """One image whose sites are counted: columns [first, first + len(sites)) of the process's counts."""

    path: str
    sha256: str
    sites: SiteTable = field(repr=False)
    first: int


@dataclass
class _Area:
    loaded: LoadedImage
    image: int
    counters: int
    rows: npt.NDArray[np.int64]
    """Which sites of the image are patched here (positions in its table)."""


class SiteCounters:
    """All counters of one traced process. Columns are given out per image and kept when a library comes back."""

    def __init__(self, tracee: Tracee) -> None:
        self._tracee = tracee
        self._areas: list[_Area] = []
        self.images: list[CountedImage] = []
        self.removed = np.zeros(0, dtype=bool)
        self._past = np.zeros(0, dtype=np.int64)

    @property
    def columns(self) -> int:
        return len(self.removed)

    def install(self, loaded: LoadedImage) -> int:
        """Patch every site of `loaded` that was not removed; the process is stopped. Returns the sites patched."""
        number = self._image_number(loaded)
        image = self.images[number]
        rows = np.flatnonzero(~self.removed[image.first : image.first + len(image.sites)])
        if not len(rows):
            return 0
        sites = image.sites.take(rows)
        code_size, counter_size = counter_code_size(sites), page_align(8 * len(sites))
        maps = read_maps(self._tracee.pid)
        try:
            base = find_gap(maps, loaded.low, loaded.high, code_size + counter_size + _GUARD)
        except LookupError:
            # No room near the image: it is left out, as blocks without a safe instruction are.
            return 0
        counters = base + code_size
        stubs = encode_counters(sites, loaded.bias, base, counters)
        self._tracee.map_memory(base, code_size, executable=True)
        self._tracee.map_memory(counters, counter_size, executable=False)
        self._tracee.write(base, stubs.code.tobytes())
        low = int(sites.offset[0]) + loaded.bias
        high = int(sites.offset[-1] + sites.length[-1]) + loaded.bias
        text = np.frombuffer(self._tracee.read(low, high - low), dtype=np.uint8).copy()
        patched_text(text, low, sites, loaded.bias, stubs.entry)
        self._tracee.write(low, text.tobytes())
        self._areas.append(_Area(loaded, number, counters, rows))
        return len(rows)

    def _image_number(self, loaded: LoadedImage) -> int:
        for number, image in enumerate(self.images):
            if image.path == loaded.image.path and image.sha256 == loaded.image.sha256:
                return number
        sites = find_sites(loaded.image)
        self.images.append(CountedImage(loaded.image.path, loaded.image.sha256, sites, self.columns))
        self.removed = np.concatenate([self.removed, np.zeros(len(sites), dtype=bool)])
        self._past = np.concatenate([self._past, np.zeros(len(sites), dtype=np.int64)])
        return len(self.images) - 1

    def forget_unmapped(self, known: list[LoadedImage]) -> None:
        """Close the areas of libraries that were unmapped; their counts stay. The stub memory stays mapped."""
        for area in [a for a in self._areas if a.loaded not in known]:
            self._past += self._counts_of([area])
            self._areas.remove(area)

    def forget_all(self) -> None:
        """After an execve: every area is gone, and with it what was counted since the last copy."""
        self._areas.clear()

    def read(self) -> npt.NDArray[np.int64]:
        """Executions of every column since the start, shape (columns,). The program may be running."""
        return self._past + self._counts_of(self._areas)

    def _counts_of(self, areas: list[_Area]) -> npt.NDArray[np.int64]:
        counts = np.zeros(self.columns, dtype=np.int64)
        for area in areas:
            values = np.zeros(len(area.rows), dtype=np.int64)
            self._tracee.read_counters(area.counters, values)
            counts[self.images[area.image].first + area.rows] += values
        return counts

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
