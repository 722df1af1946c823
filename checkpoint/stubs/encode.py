# SPDX-License-Identifier: Apache-2.0
"""The machine code of counting stubs, laid out for one image or one set of markers.

Two users share it. Tracing gives every site a counter that goes up (`encode_counters`); markers give a few sites
a counter that goes down to the next event and then stamps the clock, stops the process, or both
(`encode_markers`). The templates and the record layouts are in stubs.S.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from elftools.elf.elffile import ELFFile

from checkpoint.binary.sites import JUMP_BYTES, LONGEST_INSTRUCTION, REDIRECTED, SiteTable
from checkpoint.compiled import STUBS, Recipe
from checkpoint.event import EVENT_BYTES, MARKER, event_record
from checkpoint.linux import PAGE_SIZE

Bytes = npt.NDArray[np.uint8]

NEVER = 1 << 62
"""Executions left when no event follows: more than any program makes."""


_PLAIN_SLOT, _SAVING_SLOT, _MARKER_SLOT = 32, 64, 96
_JUMP, _NOP = 0xE9, 0x90
_COUNTER_OPCODE = 3
"""Bytes of a counting instruction before its displacement."""

GS_PREFIX = b"\x65"


@dataclass(frozen=True)
class Template:
    """A piece of stubs.S: its bytes and where its holes are (byte offsets of 4-byte displacements)."""

    code: bytes
    holes: dict[str, int]


@functools.cache
def templates() -> dict[str, Template]:
    """count_plain, count_saving, marker, marker_slow and fire, assembled once per version of stubs.S."""
    symbols, text = assembled(STUBS)
    starts = [n for n in symbols if f"{n}_end" in symbols]
    found = {}
    for name in starts:
        low, high = symbols[name], symbols[f"{name}_end"]
        inside = {n: a - low for n, a in symbols.items() if low <= a < high and n != name and not n.endswith("_end")}
        found[name] = Template(text[low:high], inside)
    return found


@functools.cache
def template(name: str, many: bool) -> Template:
    """One piece of stubs.S. `many`: with a counter for each thread (checkpoint/process/team.py): its
    instruction gets the prefix that adds the thread's GS base to the counter's address."""
    found = templates()[name]
    hole = next((at for label, at in found.holes.items() if label.endswith("_counter_hole")), None)
    if not many or hole is None:
        return found
    at = hole - _COUNTER_OPCODE
    holes = {label: place + (place > at) for label, place in found.holes.items()}
    return Template(found.code[:at] + GS_PREFIX + found.code[at:], holes)


@functools.cache
def assembled(recipe: Recipe) -> tuple[dict[str, int], bytes]:
    """Where the names of an assembled source are in its code, and the code."""
    elf = ELFFile(io.BytesIO(recipe.made().read_bytes()))
    text = elf.get_section_by_name(".text")
    index = elf.get_section_index(".text")
    table = elf.get_section_by_name(".symtab")
    symbols = {s.name: s["st_value"] for s in table.iter_symbols() if s["st_shndx"] == index and s.name}
    return symbols, text.data()


def page_align(size: int) -> int:
    return (size + PAGE_SIZE - 1) & ~(PAGE_SIZE - 1)


@dataclass(frozen=True)
class CounterCode:
    """Stub code for the sites of one image: to be written at `base`; `entry[i]` is the stub of site i."""

    base: int
    code: Bytes
    entry: npt.NDArray[np.int64]


def counter_code_size(sites: SiteTable) -> int:
    """Bytes of stub code that `encode_counters` makes, whole pages."""
    plain = int(sites.flags_dead.sum())
    return page_align(plain * _PLAIN_SLOT + (len(sites) - plain) * _SAVING_SLOT)


def encode_counters(sites: SiteTable, bias: int, base: int, counters: int, *, many: bool = False) -> CounterCode:
    """Stubs that add one to `counters + 8 * i` for site i, run the displaced instruction and go back.

    `bias` is what loading added to the image's addresses, `base` where the stubs will lie. Everything must lie
    within 2 GB: raises OverflowError otherwise. Slots of sites whose flags are dead come first, then the others.
    `many`: every thread has counters of its own.
    """
    code = np.full(counter_code_size(sites), _NOP, dtype=np.uint8)
    entry = np.zeros(len(sites), dtype=np.int64)
    counter = counters + 8 * np.arange(len(sites), dtype=np.int64)
    offset = 0
    for dead, slot, name in ((True, _PLAIN_SLOT, "count_plain"), (False, _SAVING_SLOT, "count_saving")):
        group = np.flatnonzero(sites.flags_dead == dead)
        start = base + offset + slot * np.arange(len(group), dtype=np.int64)
        slots = code[offset : offset + slot * len(group)].reshape(-1, slot)
        part = template(name, many)
        hole = part.holes[f"{name}_counter_hole"]
        slots[:, : len(part.code)] = np.frombuffer(part.code, dtype=np.uint8)
        slots[:, hole : hole + 4] = _displacements(counter[group] - (start + hole + 4))
        _append_displaced(slots, len(part.code), start, sites.take(group), bias)
        entry[group] = start
        offset += slot * len(group)
    return CounterCode(base, code, entry)


def _append_displaced(slots: Bytes, at: int, start: npt.NDArray[np.int64], sites: SiteTable, bias: int) -> None:
    """Write each site's displaced instruction, moved to `start + at`, and the jump back behind it."""
    for length in np.unique(sites.length).tolist():
        for redirected in (False, True):
            chosen = (sites.length == length) & ((sites.kind == REDIRECTED) == redirected)
            if not chosen.any():
                continue
            rows = np.flatnonzero(chosen)
            end = at + (0 if redirected else length)
            if redirected:
                goal = sites.target[rows] + bias
            else:
                slots[rows, at:end] = sites.code[rows, :length]
                _move_rip_relative(slots, rows, at, start, sites, bias)
                goal = sites.offset[rows] + bias + length
            slots[rows, end] = _JUMP
            slots[rows, end + 1 : end + 5] = _displacements(goal - (start[rows] + end + JUMP_BYTES))


def _move_rip_relative(
    slots: Bytes, rows: npt.NDArray[np.int64], at: int, start: npt.NDArray[np.int64], sites: SiteTable, bias: int
) -> None:
    for place in np.unique(sites.displacement_at[rows]).tolist():
        if not place:
            continue
        moved = rows[sites.displacement_at[rows] == place]
        end = start[moved] + at + sites.length[moved]
        slots[moved, at + place : at + place + 4] = _displacements(sites.target[moved] + bias - end)


def _displacements(distance: npt.NDArray[np.int64]) -> Bytes:
    """Distances as little-endian 32-bit rows; raises OverflowError where one does not fit."""
    if len(distance) and (np.max(distance) > 0x7FFFFFFF or np.min(distance) < -0x80000000):
        raise OverflowError("a stub lies more than 2 GB from what it refers to")
    return distance.astype("<i4").view(np.uint8).reshape(-1, 4)


def patched_text(text: Bytes, text_start: int, sites: SiteTable, bias: int, entry: npt.NDArray[np.int64]) -> None:
    """Turn every site in `text` (the bytes at address `text_start`) into a jump to its stub, in place."""
    address = sites.offset + bias
    position = address - text_start
    displaced = sites.kind != REDIRECTED
    text[position[displaced]] = _JUMP
    rel = _displacements(entry - (address + JUMP_BYTES))
    for k in range(4):
        text[position + 1 + k] = rel[:, k]
    for k in range(JUMP_BYTES, LONGEST_INSTRUCTION):
        longer = position[displaced & (sites.length > k)]
        text[longer + k] = _NOP


@dataclass(frozen=True)
class Event:
    """At the `count`-th execution of a marker's instruction do `action` (STOP_BEFORE | STAMP | STOP_AFTER)."""

    count: int
    action: int


@dataclass(frozen=True)
class MarkerCode:
    """Stubs of several markers: code for `code_base`, data for `data_base`, entry address of every stub.

    `record[i]` and `events[i]` are the addresses of marker i's record and of its events, in order.
    """

    code_base: int
    data_base: int
    code: bytes
    data: bytes
    entry: list[int]
    record: list[int]
    events: list[list[int]]


def _fire(many: bool) -> bytes:
    return template("fire_many" if many else "fire", many).code


def marker_sizes(event_counts: Sequence[int], *, many: bool = False) -> tuple[int, int]:
    """Bytes of code and of data that `encode_markers` makes for so many events per marker, whole pages."""
    code = _MARKER_SLOT * len(event_counts) + len(_fire(many))
    data = sum(MARKER.size + EVENT_BYTES * (n + 1) for n in event_counts)
    return page_align(code), page_align(data)


def encode_markers(
    sites: SiteTable,
    bias: int,
    events: Sequence[Sequence[Event]],
    code_base: int,
    data_base: int,
    *,
    spare_events: int = 0,
    many: bool = False,
) -> MarkerCode:
    """One countdown stub per site. `events[i]`: the events of site i, counts rising strictly from 1.

    All sites belong to one image, loaded with `bias`. Behind the events of each marker stay `spare_events` free
    records. `many`: other threads count in copies of the records, and only the first thread's executions count here.
    Raises OverflowError where 2 GB do not reach.
    """
    handler = _fire(many)
    fire = code_base + _MARKER_SLOT * len(sites)
    code = bytearray(page_align(_MARKER_SLOT * len(sites) + len(handler)))
    code[fire - code_base : fire - code_base + len(handler)] = handler
    data = bytearray()
    entries, records, addresses = [], [], []
    for i, wanted in enumerate(events):
        record = data_base + len(data)
        first = record + MARKER.size
        data += MARKER.pack(wanted[0].count if wanted else NEVER, first)
        data += encode_events(wanted) + bytes(EVENT_BYTES * spare_events)
        start = code_base + _MARKER_SLOT * i
        slot = _marker_slot(sites.take(np.array([i])), bias, start, record, fire, many)
        code[start - code_base : start - code_base + _MARKER_SLOT] = slot
        entries.append(start)
        records.append(record)
        addresses.append([first + EVENT_BYTES * k for k in range(len(wanted))])
    return MarkerCode(
        code_base, data_base, bytes(code), bytes(data).ljust(page_align(len(data)), b"\0"), entries, records, addresses
    )


def encode_events(events: Sequence[Event]) -> bytes:
    """Event records in order, with one behind them that is never reached."""
    out = b""
    for i, this in enumerate(events):
        gap = events[i + 1].count - this.count if i + 1 < len(events) else NEVER
        if gap <= 0:
            raise ValueError(f"event counts must rise: {this.count} is followed by {events[i + 1].count}")
        out += event_record(gap, this.action)
    return out + event_record(NEVER, 0)


def _marker_slot(site: SiteTable, bias: int, start: int, record: int, fire: int, many: bool) -> bytes:
    main, slow = template("marker", many), template("marker_slow", many)
    slot = np.full((1, _MARKER_SLOT), _NOP, dtype=np.uint8)
    slow_at = _MARKER_SLOT - len(slow.code)
    slot[0, : len(main.code)] = np.frombuffer(main.code, dtype=np.uint8)
    _append_displaced(slot, len(main.code), np.array([start]), site, bias)
    slot[0, slow_at:] = np.frombuffer(slow.code, dtype=np.uint8)
    slow_start = start + slow_at
    for hole, base, goal in (
        (main.holes["marker_counter_hole"], 0, record),
        (main.holes["marker_slow_hole"], 0, slow_start),
        (slow.holes["marker_record_hole"], slow_at, record),
        (slow.holes["marker_fire_hole"], slow_at, fire),
        (slow.holes["marker_resume_hole"], slow_at, start + main.holes["marker_resume"]),
    ):
        at = base + hole
        slot[0, at : at + 4] = _displacements(np.array([goal - (start + at + 4)]))
    return slot.tobytes()
