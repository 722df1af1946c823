# SPDX-License-Identifier: Apache-2.0
"""Names for the code of one ELF file: functions, and source lines where there is DWARF.

Symbols come from the file's own tables and from a separate debug file, found as debuggers find it (GDB manual,
"Separate Debug Files") and taken only if its build-id or checksum fits. The file may be anybody's: it is read by a
parser in Python alone, nothing of it is executed, and what cannot be read has no names.
"""

from __future__ import annotations

import bisect
import zlib
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection, SymbolTableSection

from checkpoint.binary.elf import read_image
from checkpoint.errors import ProgramNotRunnable

DEBUG_FOLDER = Path("/usr/lib/debug")
_FUNCTIONS = ("STT_FUNC", "STT_GNU_IFUNC", "STT_LOOS")
_MOST_DEBUG_BYTES = 1 << 30
"""Of all debug sections, unpacked: above it there are functions, but no lines."""
_LEAST_RANGES = 0.5
_UNNAMED = "+{:#x}"


@dataclass(frozen=True)
class Function:
    """A function, by its link-time address. `name` is +0x... for one that only the unwind table knows."""

    address: int
    end: int
    name: str


@dataclass(frozen=True)
class Names:
    """What could be found out about some addresses of a file: those absent have no name."""

    functions: dict[int, Function]
    lines: dict[int, tuple[str, int]]


def names_of(file: Path, original: Path, addresses: Collection[int]) -> Names:
    """Functions and (source file, line) of link-time `addresses` of `file`, which stood at `original`."""
    functions: list[Function] = []
    lines: dict[int, tuple[str, int]] = {}
    with ExitStack() as stack:
        try:
            elf = stack.enter_context(_opened(file))
            build_id = _build_id(elf)
            sources = [elf]
            for path in _debug_files(elf, build_id, original):
                sources.append(stack.enter_context(_opened(path)))
                break
            for source in sources:
                functions += _symbols(source)
            lines = next((found for s in reversed(sources) if (found := _lines(s, addresses))), {})
        except Exception:  # the parser lets nearly anything escape on a damaged file
            pass
    return Names(_functions_at(file, functions, addresses), lines)


@contextmanager
def _opened(path: Path) -> Iterator[ELFFile]:
    with path.open("rb") as file:
        yield ELFFile(file)


def _symbols(elf: ELFFile) -> list[Function]:
    found = []
    for section in elf.iter_sections():
        if isinstance(section, SymbolTableSection):
            for symbol in section.iter_symbols():
                if symbol["st_info"]["type"] in _FUNCTIONS and symbol["st_shndx"] != "SHN_UNDEF":
                    start = int(symbol["st_value"])
                    found.append(Function(start, start + int(symbol["st_size"]), str(symbol.name)))
    return found


def _functions_at(file: Path, functions: list[Function], addresses: Collection[int]) -> dict[int, Function]:
    # Of several names for one place the shortest is the one that people know: memcpy, not __memcpy_avx_unaligned_erms.
    known = sorted(functions, key=lambda f: (f.address, -len(f.name)))
    starts = [f.address for f in known]
    found = {}
    for address in addresses:
        at = bisect.bisect_right(starts, address) - 1
        if at >= 0 and (address < known[at].end or known[at].end == known[at].address == address):
            found[address] = known[at]
    if left := set(addresses) - found.keys():
        try:
            unwound = read_image(str(file)).functions.tolist()
        except ProgramNotRunnable:
            return found
        for address in left:
            at = bisect.bisect_right(unwound, [address, 1 << 62]) - 1
            if at >= 0 and unwound[at][0] <= address < unwound[at][1]:
                start, end = unwound[at]
                found[address] = Function(start, end, _UNNAMED.format(start))
    return found


def _build_id(elf: ELFFile) -> str:
    for section in elf.iter_sections():
        if isinstance(section, NoteSection):
            for note in section.iter_notes():
                if note["n_type"] == "NT_GNU_BUILD_ID":
                    return str(note["n_desc"])
    return ""


def _debug_files(elf: ELFFile, build_id: str, original: Path) -> Iterator[Path]:
    """Separate debug files that are there and belong to `elf`."""
    if build_id:
        path = DEBUG_FOLDER / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"
        if path.is_file():
            with _opened(path) as debug:
                if _build_id(debug) == build_id:
                    yield path
    link = elf.get_section_by_name(".gnu_debuglink")
    if link is None:
        return
    data = link.data()
    name, wanted = data.split(b"\0")[0].decode(errors="replace"), int.from_bytes(data[-4:], "little")
    if PurePosixPath(name).name != name:
        return
    folder = original.parent
    for path in (folder / name, folder / ".debug" / name, DEBUG_FOLDER / str(folder).lstrip("/") / name):
        if path.is_file() and path != original:
            with path.open("rb") as file:
                if _checksum(file) == wanted:
                    yield path


def _checksum(file: IO[bytes]) -> int:
    value = 0
    while piece := file.read(1 << 20):
        value = zlib.crc32(piece, value)
    return value


def _lines(elf: ELFFile, addresses: Collection[int]) -> dict[int, tuple[str, int]]:
    debug = [s for s in elf.iter_sections() if s.name.startswith((".debug_", ".zdebug_"))]
    if not any(s.name.endswith("debug_line") for s in debug) or sum(s.data_size for s in debug) > _MOST_DEBUG_BYTES:
        return {}
    dwarf = elf.get_dwarf_info(follow_links=False)
    found: dict[int, tuple[str, int]] = {}
    for unit in _units(dwarf, addresses):
        program = dwarf.line_program_for_CU(unit)
        if program is not None:
            _read_program(program, unit, sorted(set(addresses) - found.keys()), found)
    return found


def _units(dwarf: Any, addresses: Collection[int]) -> Iterator[Any]:
    """The compilation units of `addresses` where an index has them all, else every unit."""
    index = dwarf.get_aranges()
    if index is not None:
        offsets = [index.cu_offset_at_addr(address) for address in addresses]
        known = {offset for offset in offsets if offset is not None}
        # Code from assembly and C libraries without debug information has none; a compiler that writes no index, too.
        if known and sum(offset is not None for offset in offsets) >= _LEAST_RANGES * len(offsets):
            yield from (dwarf.get_CU_at(offset) for offset in sorted(known))
            return
    yield from dwarf.iter_CUs()


def _read_program(program: Any, unit: Any, wanted: list[int], found: dict[int, tuple[str, int]]) -> None:
    before = None
    for entry in program.get_entries():
        state = entry.state
        if state is None:
            continue
        if before is not None:
            low = bisect.bisect_left(wanted, before.address)
            high = bisect.bisect_left(wanted, state.address)
            for address in wanted[low:high]:
                if before.line:
                    found[address] = (_source(program, unit, before.file), int(before.line))
        before = None if state.end_sequence else state


def _source(program: Any, unit: Any, number: int) -> str:
    """Path of file `number` of a line program; files and folders count from 1 before DWARF 5, and folder 0 is the
    unit's."""
    header = program.header
    new = header["version"] >= 5
    entry = header["file_entry"][number if new else number - 1]
    folders = header["include_directory"]
    at = entry["dir_index"]
    name = PurePosixPath(entry["name"].decode(errors="replace"))
    if new or at:
        name = PurePosixPath(folders[at if new else at - 1].decode(errors="replace")) / name
    compiled_in = unit.get_top_DIE().attributes.get("DW_AT_comp_dir")
    if compiled_in is not None and not name.is_absolute():
        name = PurePosixPath(compiled_in.value.decode(errors="replace")) / name
    return str(name)
