# SPDX-License-Identifier: Apache-2.0
"""The flat phase image that the direct restorer reads: docs/phase-image.md, checkpoint/restorer/image.h.

Everything of a checkpoint but its pages, which stay in the pages image that CRIU reads too. Structures here and in
image.h are the same, field for field; a test compares their layouts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from checkpoint.errors import ProbeFileDamaged, StorageError
from checkpoint.linux import PAGE_SIZE

NAME = "direct.img"
"""Name of the flat image among a checkpoint's images."""

MAGIC = 0x3141544C46425250
VERSIONS = (1, 2, 3, 4, 5, 6, 7, 8, 9)
"""Versions that are read. An image is of the first that has what it needs: 2 has descriptors that are made anew; in 3
a table of threads beside the first follows; in 4 tables of shared memory and pending signals, too; 5 has runs of one
page repeated; 6 has clocks that go on, 7 reads them by the node's vDSO. An image of version 6 stays one. In 8 timers
of descriptors run, in 9 sockets are connected to nobody."""
MAX_BYTES = 64 << 20
USER_END = 0x7FFFFFFFF000
PARK_ROOM = 0x41000
"""Bytes of the park before the image: code, report, stack, signal frame (restorer.h)."""
THREAD_ROOM = VDSO_ROOM = 0x20000
"""Bytes of the park behind the image: for each thread beside the first; in version 7 at its end for the node's vDSO."""
MOST_THREADS = 256
MOST_OBJECTS = 64
"""Pieces of shared memory in an image, each with any number of mappings and descriptors."""
MOST_PENDING = 16384
OF_OBJECT = 1 << 31
"""Set in the `file` of a mapping of shared memory; the rest is the number of that."""

SIGNALS, LIMITS, TIMERS = 64, 16, 3

_U8, _U32, _I32, _U64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64


class Kind:
    """How a descriptor is opened, or what follows when all are (enum descriptor_kind)."""

    COPY, WRITTEN, OUTPUT, PATH, SAME_AS = 1, 2, 3, 4, 5
    PIPE, SOCKET, EVENT, EPOLL, TIMER, SIGNALS = 6, 7, 8, 9, 10, 11
    CONTENTS, WATCH, MEMORY = 12, 13, 14


class Table(ctypes.LittleEndianStructure):
    _fields_ = [("offset", _U64), ("count", _U64)]


class Mapping(ctypes.LittleEndianStructure):
    _fields_ = [
        *((name, _U64) for name in ("start", "end", "file_offset", "advice")),
        *((name, _U32) for name in ("prot", "flags", "file", "small")),
    ]


REPEATED = 1
"""Set in the address of a run whose pages all have the contents of one page in the pages file."""


class Run(ctypes.LittleEndianStructure):
    _fields_ = [("address", _U64), ("pages", _U64)]

    @property
    def stored_pages(self) -> int:
        """How many of its pages are in the pages file."""
        return 1 if self.address & REPEATED else int(self.pages)


class Patch(ctypes.LittleEndianStructure):
    _fields_ = [("address", _U64), ("pages", _U64), ("contents", _U64)]


class OpenDescriptor(ctypes.LittleEndianStructure):
    _fields_ = [
        ("number", _U32), ("kind", _U32), ("flags", _U64), ("position", _U64), ("file", _U32), ("cloexec", _U32),
        ("path", _U64),
    ]  # fmt: skip


class Ticks(ctypes.LittleEndianStructure):
    """CONTENTS of a TIMER that runs, or has run: what it is set to, and expirations that nobody has read."""

    _fields_ = [(name, _U64) for name in ("interval_s", "interval_ns", "value_s", "value_ns", "ticks")]


class Action(ctypes.LittleEndianStructure):
    _fields_ = [(name, _U64) for name in ("handler", "flags", "restorer", "mask")]


class Registers(ctypes.LittleEndianStructure):
    _fields_ = [
        (name, _U64)
        for name in (
            *("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "di", "si", "bp", "bx", "dx", "ax", "cx", "sp"),
            *("ip", "flags", "cs", "ss", "fs_base", "gs_base"),
        )
    ]


class Layout(ctypes.LittleEndianStructure):
    """struct prctl_mm_map."""

    _fields_ = [
        *(
            (name, _U64)
            for name in (
                *("start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack"),
                *("arg_start", "arg_end", "env_start", "env_end", "auxv"),
            )
        ),
        ("auxv_size", _U32),
        ("exe_fd", _U32),
    ]


class Limit(ctypes.LittleEndianStructure):
    _fields_ = [("soft", _U64), ("hard", _U64)]


class Timer(ctypes.LittleEndianStructure):
    _fields_ = [(name, _U64) for name in ("interval_s", "interval_us", "value_s", "value_us")]


class Header(ctypes.LittleEndianStructure):
    _fields_ = [
        ("magic", _U64), ("checksum", _U64), ("version", _U32), ("header_size", _U32), ("size", _U64),
        ("park", _U64), ("park_size", _U64), ("pages", _U64),
        ("mappings", Table), ("runs", Table), ("patches", Table), ("descriptors", Table), ("stamps", Table),
        ("touch_order", Table), ("calls", Table), ("strings", Table), ("files", Table), ("written", Table),
        ("opened", Table), ("calls_made", _U64), ("changes_paths", _U64),
        ("registers", Registers), ("blocked_signals", _U64), ("stack_pointer", _U64), ("stack_size", _U64),
        ("stack_flags", _U32), ("umask", _U32), ("clear_tid", _U64), ("robust_list", _U64), ("robust_size", _U64),
        ("rseq", _U64), ("rseq_size", _U32), ("rseq_signature", _U32), ("personality", _U32), ("no_huge_pages", _U32),
        ("cwd", _U64), ("name", _U8 * 16), ("mm", Layout), ("actions", Action * SIGNALS), ("limits", Limit * LIMITS),
        ("timers", Timer * TIMERS), ("xstate", _U64), ("legacy", _U8 * 512), ("ymm_high", _U8 * 256),
        ("opmask", _U8 * 64), ("zmm_high", _U8 * 512), ("zmm_more", _U8 * 1024),
    ]  # fmt: skip


class Thread(ctypes.LittleEndianStructure):
    """A thread beside the first; the fields are those of the header."""

    _fields_ = [
        ("registers", Registers), ("blocked_signals", _U64), ("stack_pointer", _U64), ("stack_size", _U64),
        ("stack_flags", _U32), ("rseq_size", _U32), ("clear_tid", _U64), ("robust_list", _U64), ("robust_size", _U64),
        ("rseq", _U64), ("rseq_signature", _U32), ("unused", _U32), ("name", _U8 * 16), ("xstate", _U64),
        ("legacy", _U8 * 512), ("ymm_high", _U8 * 256), ("opmask", _U8 * 64), ("zmm_high", _U8 * 512),
        ("zmm_more", _U8 * 1024),
    ]  # fmt: skip


class MemoryObject(ctypes.LittleEndianStructure):
    """Memory that several mappings and descriptors may lead to (struct object)."""

    _fields_ = [("size", _U64), ("name", _U64), ("mode", _U32), ("seals", _U32)]


class Piece(ctypes.LittleEndianStructure):
    """Pages of such memory that hold something."""

    _fields_ = [("object", _U32), ("unused", _U32), ("offset", _U64), ("pages", _U64)]


class Pending(ctypes.LittleEndianStructure):
    """A signal that was sent and not yet delivered."""

    _fields_ = [("to_thread", _U32), ("unused", _U32), ("information", _U8 * 128)]


class Tables(ctypes.LittleEndianStructure):
    """Behind the header; of version 3 the first alone, of versions 4 and 5 all but `clocks`."""

    _fields_ = [
        ("threads", Table), ("objects", Table), ("pieces", Table), ("present", Table), ("pending", Table),
        ("contents", _U64), ("clocks", _U64),
    ]  # fmt: skip


STRUCTURES = (
    Table, Mapping, Run, Patch, OpenDescriptor, Ticks, Action, Registers, Layout, Limit, Timer, Header, Thread,
    MemoryObject, Piece, Pending, Tables,
)  # fmt: skip


_TABLES = {"threads": Thread, "objects": MemoryObject, "pieces": Piece, "present": Run, "pending": Pending}
"""The tables behind the header."""


@dataclass
class FlatImage:
    """A flat image taken apart. `files` are the paths, at capture, of the copies that mappings (`file` less one) and
    descriptors number; `written` the same for files that the phase writes; `opened`: files it opens by their paths.
    `contents`: number of a descriptor, and bytes that it has not read yet, or a timer's Ticks. `watches`: of kind
    WATCH. `threads`: those beside the first. `objects`: shared memory; `pieces` of it are in its pages file, which is
    the copy `contents`; `present`: pages of it that were mapped. `pending`: signals. `clocks`: address of clocks in a
    patch, or 0."""

    header: Header
    mappings: list[Mapping] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    patches: list[tuple[int, bytes]] = field(default_factory=list)
    descriptors: list[OpenDescriptor] = field(default_factory=list)
    contents: list[tuple[int, bytes]] = field(default_factory=list)
    watches: list[OpenDescriptor] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    touch_order: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    objects: list[MemoryObject] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    present: list[Run] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    contents_file: int = 0
    clocks: int = 0
    strings: bytearray = field(default_factory=bytearray)

    def string(self, text: str) -> int:
        """Add a string; its offset."""
        offset = len(self.strings)
        self.strings += text.encode("utf-8", "surrogateescape") + b"\0"
        return offset


def checksum(data: bytes | memoryview) -> int:
    """FNV-1a, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def encode(image: FlatImage) -> bytes:
    """The bytes of a flat image. Sizes, offsets, counts, checksum and the park's size are filled in.

    ValueError if it is larger than MAX_BYTES.
    """
    header = Header.from_buffer_copy(image.header)
    names = bytearray(image.strings)
    version = _version(image)
    out = bytearray(ctypes.sizeof(Header) + _tables_size(version))

    def table(records: Sequence[bytes]) -> Table:
        out.extend(b"\0" * (-len(out) % 8))
        start = len(out)
        for record in records:
            out.extend(record)
        return Table(start, len(records))

    header.mappings = table([bytes(m) for m in image.mappings])
    header.runs = table([bytes(r) for r in image.runs])
    contents = [table([data]).offset for _, data in image.patches]
    header.patches = table(
        [
            bytes(Patch(address, len(data) // PAGE_SIZE, at))
            for (address, data), at in zip(image.patches, contents)  # noqa: B905 (nodes have Python 3.8)
        ]
    )
    blobs = [(number, table([data]).offset, len(data)) for number, data in image.contents]
    filled = [OpenDescriptor(number, Kind.CONTENTS, 0, at, 0, 0, size) for number, at, size in blobs]
    descriptors = [*image.descriptors, *filled, *image.watches]
    header.descriptors = table([bytes(d) for d in descriptors])
    for name in ("stamps", "touch_order", "calls"):
        setattr(header, name, table([value.to_bytes(8, "little") for value in getattr(image, name)]))
    for name in ("files", "written", "opened"):
        offsets = []
        for path in getattr(image, name):
            encoded = path.encode("utf-8", "surrogateescape") + b"\0"
            at = names.find(encoded)
            if at < 0:
                at = len(names)
                names += encoded
            offsets.append(at.to_bytes(8, "little"))
        setattr(header, name, table(offsets))
    if len(image.threads) > MOST_THREADS:
        raise ValueError(f"{len(image.threads)} threads beside the first; at most {MOST_THREADS} are restored")
    if _tables_size(version):
        tables = Tables(contents=image.contents_file, clocks=image.clocks)
        for name in list(_TABLES)[: 1 if version == 3 else None]:
            setattr(tables, name, table([bytes(record) for record in getattr(image, name)]))
        end = ctypes.sizeof(Header) + _tables_size(version)
        out[ctypes.sizeof(Header) : end] = bytes(tables)[: _tables_size(version)]
    header.strings = Table(table([bytes(names)]).offset, len(names))
    header.magic, header.header_size = MAGIC, ctypes.sizeof(Header)
    header.version = version
    header.pages = sum(run.stored_pages for run in image.runs)
    header.size = len(out)
    header.park_size = PARK_ROOM + (len(out) + PAGE_SIZE - 1) // PAGE_SIZE * PAGE_SIZE
    header.park_size += THREAD_ROOM * len(image.threads) + (VDSO_ROOM if version >= 7 else 0)
    if len(out) > MAX_BYTES:
        raise ValueError(f"a flat image of {len(out)} bytes; at most {MAX_BYTES} are read")
    out[: ctypes.sizeof(Header)] = bytes(header)
    header.checksum = checksum(memoryview(out)[Header.version.offset :])
    out[: ctypes.sizeof(Header)] = bytes(header)
    return bytes(out)


def decode(path: Path) -> FlatImage:
    """The flat image at `path`; ProbeFileDamaged if it is none or damaged, StorageError if it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    if not ctypes.sizeof(Header) <= len(data) <= MAX_BYTES:
        raise _damaged(path, f"it has {len(data)} bytes")
    header = Header.from_buffer_copy(data)
    if header.magic != MAGIC:
        raise _damaged(path, "it does not start like one")
    if header.version not in VERSIONS:
        raise _damaged(path, f"version {header.version} is unknown, this program reads 1 to {VERSIONS[-1]}")
    if header.size != len(data) or header.checksum != checksum(memoryview(data)[Header.version.offset :]):
        raise _damaged(path, "its size or checksum is wrong")

    def records(table: Table, size: int) -> list[bytes]:
        if table.offset > len(data) or table.count > (len(data) - table.offset) // size:
            raise _damaged(path, "a table leaves it")
        return [data[table.offset + i * size : table.offset + (i + 1) * size] for i in range(table.count)]

    patches = [Patch.from_buffer_copy(r) for r in records(header.patches, ctypes.sizeof(Patch))]
    image = FlatImage(header)
    image.mappings = [Mapping.from_buffer_copy(r) for r in records(header.mappings, ctypes.sizeof(Mapping))]
    image.runs = [Run.from_buffer_copy(r) for r in records(header.runs, ctypes.sizeof(Run))]
    image.patches = [(p.address, data[p.contents : p.contents + p.pages * PAGE_SIZE]) for p in patches]
    for one in map(OpenDescriptor.from_buffer_copy, records(header.descriptors, ctypes.sizeof(OpenDescriptor))):
        if one.kind == Kind.CONTENTS:
            (content,) = records(Table(one.position, 1), one.path) if one.path else (b"",)
            image.contents.append((one.number, content))
        else:
            (image.watches if one.kind == Kind.WATCH else image.descriptors).append(one)
    size = _tables_size(header.version)
    if len(data) < ctypes.sizeof(Header) + size:
        raise _damaged(path, f"it has {len(data)} bytes")
    tables = Tables.from_buffer_copy(data[ctypes.sizeof(Header) :][:size].ljust(ctypes.sizeof(Tables), b"\0"))
    image.contents_file, image.clocks = tables.contents, tables.clocks
    for name, kind in _TABLES.items():
        found = records(getattr(tables, name), ctypes.sizeof(kind))
        setattr(image, name, [kind.from_buffer_copy(record) for record in found])
    _check_shared(image, path)
    for name in ("stamps", "touch_order", "calls"):
        setattr(image, name, [int.from_bytes(r, "little") for r in records(getattr(header, name), 8)])
    image.strings = bytearray(b"".join(records(header.strings, 1)))
    for name in ("files", "written", "opened"):
        offsets = [int.from_bytes(r, "little") for r in records(getattr(header, name), 8)]
        if any(offset >= len(image.strings) for offset in offsets) or not image.strings.endswith(b"\0"):
            raise _damaged(path, "a path leaves it")
        ends = [image.strings.index(b"\0", offset) for offset in offsets]
        paths = [image.strings[a:b].decode("utf-8", "surrogateescape") for a, b in zip(offsets, ends)]  # noqa: B905
        setattr(image, name, paths)
    return image


def _version(image: FlatImage) -> int:
    """The first that has what the image needs."""
    timers = {one.number for one in image.descriptors if one.kind == Kind.TIMER}
    ticks = any(number in timers for number, _ in image.contents)
    alone = any(one.kind == Kind.SOCKET and one.file == one.number for one in image.descriptors)
    if ticks or alone:
        if image.clocks and image.header.version == 6:
            raise ValueError("clocks of version 6 beside timers that run, or sockets that nobody is connected to")
        return 9 if alone else 8
    if image.clocks or any(run.address & REPEATED for run in image.runs):
        return 5 if not image.clocks else 6 if image.header.version == 6 else 7
    if image.objects or image.pending:
        return 4
    made = any(d.kind > Kind.SAME_AS for d in image.descriptors) or image.contents or image.watches
    return 3 if image.threads else 2 if made else 1


def _tables_size(version: int) -> int:
    """Bytes of the tables behind the header."""
    return [0, 0, 0, ctypes.sizeof(Table), *[Tables.clocks.offset] * 2, *[ctypes.sizeof(Tables)] * 4][version]


def _check_shared(image: FlatImage, path: Path) -> None:
    """What is taken from these tables outside the restorer, which checks the rest."""
    sizes = [one.size for one in image.objects]
    if len(sizes) > MOST_OBJECTS or len(image.pending) > MOST_PENDING or max(sizes, default=0) > USER_END:
        raise _damaged(path, "it has too much shared memory or too many signals")


def _damaged(path: Path, problem: str) -> ProbeFileDamaged:
    return ProbeFileDamaged(f"flat phase image {path}: {problem}; build the probe again")
