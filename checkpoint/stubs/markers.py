# SPDX-License-Identifier: Apache-2.0
"""Markers: places in a run, and what a process does when it reaches them.

A marker is one instruction of one image; an event is its n-th execution. `MarkerSet` puts a countdown stub at each
marker of a process, gives it its events, and reads back the time stamps. For a checkpoint it can leave just the
events of one region in the process (`only`), so that a restored copy runs with nothing else in its way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from checkpoint.binary.sites import SiteTable, find_sites
from checkpoint.errors import Diverged
from checkpoint.event import EVENT_BYTES, MARKER, event_of
from checkpoint.process.loader import LoadedImage, LoadWatch
from checkpoint.process.tracee import Tracee
from checkpoint.stubs.encode import (
    NEVER,
    Event,
    encode_events,
    encode_markers,
    marker_sizes,
    patched_text,
)
from checkpoint.stubs.slots import StubRoom

REGION_EVENTS = 4
"""Events a marker can be given for one region: warm-up start, warm-up end and region end may share a marker."""


@dataclass(frozen=True, order=True)
class Marker:
    """One instruction: image path and link-time address."""

    image: str
    address: int


@dataclass(frozen=True)
class Stamp:
    """When an event happened: CLOCK_MONOTONIC and the thread's CPU time, seconds; of that, what it spent in the kernel
    (NaN where that was not stamped)."""

    wall: float
    cpu: float
    kernel: float = math.nan


@dataclass
class _Installed:
    marker: Marker
    events: list[Event]
    site: SiteTable
    bias: int
    entry: int
    record: int
    events_at: int
    mapped: bool = True

    @property
    def address(self) -> int:
        return self.marker.address + self.bias

    @property
    def region_at(self) -> int:
        """Where the events of one region go: behind the marker's own and the one that is never reached."""
        return self.events_at + EVENT_BYTES * (len(self.events) + 1)


@dataclass
class MarkerSet:
    """The markers of one process and their events, installed as the images they lie in are mapped."""

    tracee: Tracee
    wanted: Mapping[Marker, Sequence[Event]]
    _installed: dict[Marker, _Installed] = field(default_factory=dict)
    _from_start: set[str] | None = None
    _room: StubRoom = field(init=False)

    def __post_init__(self) -> None:
        self._room = StubRoom(self.tracee)

    def install_new(self, watch: LoadWatch) -> None:
        """Install the markers of images mapped since the last call. The process is stopped.

        A library that comes back after it was unmapped goes on counting where it left off; one that is mapped a
        second time, beside the first, is left alone. The watch is ended where no marker's image can come or go.
        """
        fresh = watch.new_images()
        if self._from_start is None:
            self.tracee.originals.append(self.originals)
            self._from_start = {loaded.image.path for loaded in fresh}
        present = {(loaded.image.path, loaded.bias) for loaded in watch.known()}
        for one in self._installed.values():
            one.mapped = (one.marker.image, one.bias) in present
        for loaded in fresh:
            mine = sorted(m for m in self.wanted if m.image == loaded.image.path)
            before = self._installed.get(mine[0]) if mine else None
            if before is not None and before.bias == loaded.bias:
                for marker in mine:
                    self._patch(self._installed[marker])
            elif mine and (before is None or not before.mapped):
                self._install(loaded, mine)
        if watch.armed and all(m.image in self._from_start for m in self.wanted):
            watch.disarm()

    def _install(self, loaded: LoadedImage, markers: list[Marker]) -> None:
        table = find_sites(loaded.image)
        rows = np.searchsorted(table.offset, [m.address for m in markers])
        if (rows >= len(table)).any() or (table.offset[rows] != [m.address for m in markers]).any():
            raise Diverged(f"{loaded.image.path}: changed since it was traced; build the probe again")
        sites = table.take(rows)
        events = [sorted(self.wanted[m], key=lambda e: e.count) for m in markers]
        room = [len(e) + 1 + REGION_EVENTS for e in events]
        many = self.tracee.team is not None
        code_size, data_size = marker_sizes(room, many=many)
        try:
            base, data = self._room.take(loaded, code_size, data_size)
        except LookupError as error:
            raise Diverged(f"{loaded.image.path}: {error}, where the traced run had room for its counters") from error
        code = encode_markers(sites, loaded.bias, events, base, data, spare_events=REGION_EVENTS + 1, many=many)
        self.tracee.write(base, code.code)
        self.tracee.write(data, code.data)
        for i, marker in enumerate(markers):
            one = _Installed(
                marker,
                events[i],
                sites.take(np.array([i])),
                loaded.bias,
                code.entry[i],
                code.record[i],
                code.record[i] + MARKER.size,
            )
            if marker in self._installed:
                self._carry_over(self._installed[marker], one)
            self._installed[marker] = one
            self._patch(one)

    def _carry_over(self, old: _Installed, new: _Installed) -> None:
        """Counter and events of a marker whose image was mapped at another address before."""
        left, due = self._record(old)
        events = self.tracee.read(old.events_at, EVENT_BYTES * (len(old.events) + 1))
        self.tracee.write(new.record, MARKER.pack(left, due + new.record - old.record) + events)

    def _patch(self, one: _Installed) -> None:
        if not one.mapped:
            return
        length = int(one.site.length[0])
        text = one.site.code[0, :length].copy()
        patched_text(text, one.address, one.site, one.bias, np.array([one.entry], dtype=np.int64))
        self.tracee.write(one.address, text.tobytes())

    def originals(self) -> Iterator[tuple[int, bytes]]:
        """Where markers were put into the program's code, and what had been there."""
        for one in self._installed.values():
            if one.mapped:
                yield one.address, one.site.code[0, : int(one.site.length[0])].tobytes()

    def _unpatch(self, one: _Installed) -> None:
        if not one.mapped:
            return
        length = int(one.site.length[0])
        self.tracee.write(one.address, one.site.code[0, :length].tobytes())

    # -- reading

    def executions(self, marker: Marker) -> int:
        """How often the marker's instruction was executed so far. Not inside `only`."""
        one = self._installed[marker]
        left, due = self._record(one)
        position = (due - one.events_at) // EVENT_BYTES
        if position < len(one.events):
            return one.events[position].count - left
        reached = one.events[-1].count if one.events else 0
        return reached + NEVER - left

    def stamps(self, marker: Marker) -> list[Stamp | None]:
        """One stamp per event of the marker, in order of count; None where it was not reached."""
        one = self._installed.get(marker)
        if one is None:
            return [None] * len(self.wanted[marker])
        raw = self.tracee.read(one.events_at, EVENT_BYTES * len(one.events)) if one.events else b""
        return [read_stamp(raw[k : k + EVENT_BYTES]) for k in range(0, len(raw), EVENT_BYTES)]

    def missing(self) -> list[Marker]:
        """Markers whose image was never mapped."""
        return [m for m in self.wanted if m not in self._installed]

    def _record(self, one: _Installed) -> tuple[int, int]:
        left, due = MARKER.unpack(self.tracee.read(one.record, MARKER.size))
        return left, due

    # -- one region alone

    @contextmanager
    def only(self, region: Mapping[Marker, Sequence[Event]]) -> Iterator[dict[Marker, list[int]]]:
        """Leave the events of one region in the process; all other markers get their own bytes back.

        Event counts are absolute, as in `wanted`, and must lie ahead. Yields the addresses of the region's event
        records, per marker in order of count. The process is stopped; afterwards everything is as before.
        """
        if absent := self.not_mapped(region):
            raise Diverged(f"{absent[0]}: not mapped where the region begins; nothing would count its marker there")
        records = {m: self._record(one) for m, one in self._installed.items()}
        addresses: dict[Marker, list[int]] = {}
        try:
            for marker, one in self._installed.items():
                events = sorted(region.get(marker, ()), key=lambda e: e.count)
                if not events:
                    self._unpatch(one)
                    continue
                ahead = events[0].count - self.executions(marker)
                if ahead <= 0 or len(events) > REGION_EVENTS:
                    raise Diverged(
                        f"marker {marker.address:#x} of {marker.image}: execution {events[0].count} "
                        f"is not ahead but {-ahead} behind; the program did not repeat its run"
                    )
                self.tracee.write(one.region_at, encode_events(events))
                self.tracee.write(one.record, MARKER.pack(ahead, one.region_at))
                addresses[marker] = [one.region_at + EVENT_BYTES * k for k in range(len(events))]
            yield addresses
        finally:
            for marker, one in self._installed.items():
                self.tracee.write(one.record, MARKER.pack(*records[marker]))
                if marker not in addresses:
                    self._patch(one)

    def not_mapped(self, markers: Iterable[Marker]) -> list[str]:
        """The images of those of `markers` that the process has no longer, or not yet."""
        present = {m.image for m, one in self._installed.items() if one.mapped}
        return sorted({marker.image for marker in markers} - present)

    def event_address(self, marker: Marker, count: int) -> int:
        """Address of the record of one of the marker's own events."""
        one = self._installed[marker]
        position = next(k for k, e in enumerate(one.events) if e.count == count)
        return one.events_at + EVENT_BYTES * position

    def due(self) -> list[tuple[Marker, int]]:
        """The events reached so far that stop the process, as (marker, count): used to tell where it stopped."""
        reached = []
        for marker, one in self._installed.items():
            _, due = self._record(one)
            position = (due - one.events_at) // EVENT_BYTES
            reached += [(marker, e.count) for e in one.events[:position]]
        return reached


def read_stamp(event: bytes) -> Stamp | None:
    """The stamp in an event record; None where the event was not reached."""
    fired, wall, cpu, kernel, _ = event_of(event)
    return Stamp(wall, cpu, math.nan if kernel is None else kernel) if fired else None
