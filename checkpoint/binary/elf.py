# SPDX-License-Identifier: Apache-2.0
"""Read one ELF image: load segments, code ranges, functions.

Addresses are link-time virtual addresses (`vaddr`); a loaded image adds one bias to all of them.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from checkpoint.errors import ProgramNotRunnable

Addresses = npt.NDArray[np.int64]

EM_X86_64 = 62
_PF_X = 1
_DW_EH_PE_OMIT = 0xFF
_STUB_SECTIONS = (".plt", ".init", ".fini")
_MOST_KEPT, _LARGEST_KEPT = 128, 16 << 20
"""Parsed files that are kept in memory, and bytes of each at most."""
_SETTLED_SECONDS = 1.0
"""A file that changed so lately may change again with the same time: the kernel's clock of files has steps."""


@dataclass(frozen=True)
class Segment:
    """One PT_LOAD entry: `size` bytes of the file at `offset`, mapped at `vaddr`."""

    vaddr: int
    offset: int
    size: int
    memory_size: int
    executable: bool


@dataclass(frozen=True)
class ElfImage:
    """The parts of one ELF file that tracing needs. `functions` is (n, 2): start and end vaddr, sorted, disjoint; whole
    sections of code where not `functions_known`, whole segments where not even `sections_known`."""

    path: str
    entry: int
    position_independent: bool
    interpreter: str | None
    segments: tuple[Segment, ...]
    functions: Addresses = field(repr=False)
    data: bytes = field(repr=False)
    sha256: str = ""
    functions_known: bool = True
    sections_known: bool = True

    def bytes_at(self, vaddr: int, size: int) -> bytes:
        """`size` bytes of the file as they are mapped at `vaddr`; shorter where the segment ends."""
        for segment in self.segments:
            if segment.vaddr <= vaddr < segment.vaddr + segment.size:
                start = segment.offset + vaddr - segment.vaddr
                return self.data[start : segment.offset + min(segment.size, vaddr - segment.vaddr + size)]
        return b""

    def executable_ranges(self) -> list[tuple[int, int]]:
        return [(s.vaddr, s.vaddr + s.size) for s in self.segments if s.executable]


def check_runnable(path: Path) -> None:
    """Raise ProgramNotRunnable unless `path` starts like an x86-64 ELF executable or a script."""
    try:
        with path.open("rb") as file:
            head = file.read(256)
    except OSError as error:
        raise ProgramNotRunnable(f"{path}: cannot be read: {error.strerror}") from error
    if head[:2] == b"#!":
        words = head[2:].split(b"\n")[0].split()
        if not words or not os.access(words[0], os.X_OK):
            raise ProgramNotRunnable(
                f"{path}: its interpreter {b' '.join(words[:1]).decode(errors='replace')!r} is missing"
            )
        return
    if head[:4] != b"\x7fELF" or len(head) < 20:
        raise ProgramNotRunnable(
            f"{path}: not an ELF program and not a script (#!); give the program itself, not its data"
        )
    if head[4] != 2 or head[5] != 1:
        raise ProgramNotRunnable(f"{path}: a 32-bit or big-endian program; only x86-64 programs can be probed")
    machine = struct.unpack_from("<H", head, 18)[0]
    if machine != EM_X86_64:
        raise ProgramNotRunnable(f"{path}: made for ELF machine {machine}, not for x86-64 ({EM_X86_64})")


def needed_libraries(path: Path) -> list[str]:
    """Names of the libraries that an ELF file asks for itself; none where it cannot be read as one."""
    try:
        with path.open("rb") as file:
            dynamic = ELFFile(file).get_section_by_name(".dynamic")
            tags = [] if dynamic is None else dynamic.iter_tags("DT_NEEDED")
            return [str(tag.needed) for tag in tags]
    except (OSError, ELFError, ValueError, KeyError, AttributeError):
        return []


def read_image(path: str) -> ElfImage:
    """Parse the ELF file at `path`, once while it does not change: each run of a build needs all that a program maps.
    Raises ProgramNotRunnable where it is not a usable x86-64 image."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError as error:
        raise ProgramNotRunnable(f"{path}: cannot be read: {error.strerror}") from error
    if status.st_size > _LARGEST_KEPT or time.time() - status.st_ctime < _SETTLED_SECONDS:
        return _parsed(path)
    return _kept(path, (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns))


@lru_cache(maxsize=_MOST_KEPT)
def _kept(path: str, _: tuple[int, int, int, int]) -> ElfImage:
    return _parsed(path)


def _parsed(path: str) -> ElfImage:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ProgramNotRunnable(f"{path}: cannot be read: {error.strerror}") from error
    try:
        elf = ELFFile(io.BytesIO(data))
        segments = tuple(
            Segment(s["p_vaddr"], s["p_offset"], s["p_filesz"], s["p_memsz"], bool(s["p_flags"] & _PF_X))
            for s in elf.iter_segments("PT_LOAD")
        )
        interpreter = next((s.get_interp_name() for s in elf.iter_segments("PT_INTERP")), None)
        entry, kind, machine = elf["e_entry"], elf["e_type"], elf["e_machine"]
        sections = _code_sections(elf)
        code = sections or [(s.vaddr, s.vaddr + s.size) for s in segments if s.executable]
        functions = _function_ranges(elf, data, code)
        known = len(functions) > 0
        if not known:
            functions = _inside(np.array(sorted(code), dtype=np.int64).reshape(-1, 2), code)
    except Exception as error:  # the parser lets nearly anything escape on a damaged file
        raise ProgramNotRunnable(f"{path}: damaged ELF file: {error or type(error).__name__}") from error
    if machine != "EM_X86_64":
        raise ProgramNotRunnable(f"{path}: made for {machine}, not for x86-64")
    return ElfImage(
        path=path,
        entry=entry,
        position_independent=kind == "ET_DYN",
        interpreter=interpreter,
        segments=segments,
        functions=functions,
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        functions_known=known,
        sections_known=bool(sections),
    )


def _function_ranges(elf: ELFFile, data: bytes, code: list[tuple[int, int]]) -> Addresses:
    """Functions from .eh_frame (present even in stripped binaries), else symbols, else none."""
    kept = _inside(_eh_frame_ranges(elf, data), code)
    if not len(kept):
        # Reading symbols one by one takes longer than all the rest.
        kept = _inside(_symbol_ranges(elf), code)
    return kept


def _code_sections(elf: ELFFile) -> list[tuple[int, int]]:
    """Executable sections without the linker's own (PLT, .init)."""
    return [
        (s["sh_addr"], s["sh_addr"] + s["sh_size"])
        for s in elf.iter_sections()
        if s["sh_flags"] & 4 and s["sh_type"] == "SHT_PROGBITS" and not s.name.startswith(_STUB_SECTIONS)
    ]


def _inside(ranges: Addresses, code: list[tuple[int, int]]) -> Addresses:
    """The ranges that lie in `code`, sorted; where two overlap the later is cut away."""
    if not len(ranges) or not code:
        return np.empty((0, 2), dtype=np.int64)
    keep = np.zeros(len(ranges), dtype=bool)
    for start, end in code:
        keep |= (ranges[:, 0] >= start) & (ranges[:, 1] <= end)
    ranges = ranges[keep & (ranges[:, 1] > ranges[:, 0])]
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    if len(ranges) > 1:
        disjoint = np.concatenate([[True], ranges[1:, 0] >= np.maximum.accumulate(ranges[:-1, 1])])
        ranges = ranges[disjoint]
    return ranges


def _eh_frame_ranges(elf: ELFFile, data: bytes) -> Addresses:
    """(start, end) of every frame description entry, read through the sorted table of .eh_frame_hdr.

    Source: Linux Standard Base, "Exception Frames". Only the encodings that GNU and LLVM linkers write for
    x86-64 are read (table datarel|sdata4, addresses pcrel|sdata4); others count as no table.
    """
    header = next((s for s in elf.iter_segments("PT_GNU_EH_FRAME")), None)
    empty = np.empty((0, 2), dtype=np.int64)
    if header is None:
        return empty
    offset, vaddr = header["p_offset"], header["p_vaddr"]
    version, frame_encoding, count_encoding, table_encoding = data[offset : offset + 4]
    if version != 1 or table_encoding != 0x3B or count_encoding != 0x03 or frame_encoding == _DW_EH_PE_OMIT:
        return empty
    count = struct.unpack_from("<I", data, offset + 8)[0]
    if offset + 12 + 8 * count > len(data) or not count:
        return empty
    table = np.frombuffer(data, dtype="<i4", count=2 * count, offset=offset + 12).reshape(-1, 2)
    starts = table[:, 0].astype(np.int64) + vaddr
    entries = table[:, 1].astype(np.int64) + vaddr
    segment = next(
        (
            s
            for s in elf.iter_segments("PT_LOAD")
            if s["p_vaddr"] <= int(entries.min()) and int(entries.max()) + 16 <= s["p_vaddr"] + s["p_filesz"]
        ),
        None,
    )
    if segment is None:
        return empty
    in_file = entries - segment["p_vaddr"] + segment["p_offset"]
    raw = np.frombuffer(data, dtype=np.uint8)
    words = raw[in_file[:, None] + np.arange(16)].view("<u4")
    begin = words[:, 2].view("<i4").astype(np.int64) + entries + 8
    sound = (words[:, 0] != 0xFFFFFFFF) & (begin == starts)
    ranges: Addresses = np.column_stack([starts, starts + words[:, 3].astype(np.int64)])[sound]
    return ranges


def _symbol_ranges(elf: ELFFile) -> Addresses:
    ranges = []
    for name in (".symtab", ".dynsym"):
        section = elf.get_section_by_name(name)
        if section is not None:
            ranges += [
                (s["st_value"], s["st_value"] + s["st_size"])
                for s in section.iter_symbols()
                if s["st_info"]["type"] == "STT_FUNC" and s["st_size"]
            ]
    return np.array(sorted(set(ranges)), dtype=np.int64).reshape(-1, 2)
