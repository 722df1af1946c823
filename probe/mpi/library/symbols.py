# SPDX-License-Identifier: Apache-2.0
"""ELF files as the loader sees them: symbols that they define and want, libraries that they need."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

NEW_FORTRAN = re.compile(r"p?mpi_\w+_f08(ts)?_")
"""Symbols of the Fortran 2008 bindings."""

_IDENTIFIER = re.compile(r"[A-Za-z_.$][\w.$]*")
"""What becomes a label in assembly."""


@cache
def symbols(path: Path, defined: bool = True) -> list[tuple[str, str, int]]:
    """(name, FUNC or OBJECT, size) of the dynamic symbols that a file defines, or wants."""
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynsym")
        if not isinstance(section, SymbolTableSection):
            return []
        return [
            (symbol.name, str(symbol["st_info"]["type"]).removeprefix("STT_"), int(symbol["st_size"]))
            for symbol in section.iter_symbols()
            if _IDENTIFIER.fullmatch(symbol.name) and (symbol["st_shndx"] != "SHN_UNDEF") == defined
        ]


def needed(path: Path) -> list[str]:
    """Names of the libraries that a file asks the loader for."""
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        tags = section.iter_tags("DT_NEEDED") if isinstance(section, DynamicSection) else ()
        return [tag.needed for tag in tags]


def name_of(library: Path) -> str:
    """The name by which the loader knows a library: DT_SONAME, else that of its file."""
    with library.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        tags = section.iter_tags("DT_SONAME") if isinstance(section, DynamicSection) else ()
        return next((tag.soname for tag in tags), library.name)


def defines_inside(path: Path, name: str) -> bool:
    """Whether a program has this function in itself, by its own table of symbols."""
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".symtab")
        return isinstance(section, SymbolTableSection) and any(
            symbol["st_shndx"] != "SHN_UNDEF" for symbol in section.get_symbol_by_name(name) or ()
        )
