# SPDX-License-Identifier: Apache-2.0
"""MPI libraries of programs: found, and compiled for: a recorder before them, replacements in their place."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from checkpoint.compiled import built
from checkpoint.errors import ProgramNotRunnable, ProgramUnsupported, ToolMissing
from probe.mpi.generate import SOURCES, recorder_source, replayer_source

_RECORDER = "libprobe_mpi_recorder.so"
COMPILERS = ("mpicc", "mpicc.openmpi", "mpicc.mpich")
"""Tried in this order; the first whose library is the program's."""

_OPTIONS = (
    "-shared", "-fPIC", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function",
    "-Wno-stringop-overflow", "-Wno-address", "-fvisibility=default",
)  # fmt: skip
_OURS = re.compile(r"(P?MPIX?_[A-Z]\w*|p?mpi_\w*_)")
_INTERNAL = ("mca_", "opal_", "orte_", "pmix_")
_NOT_CODE = ("_init", "_fini", "_edata", "_end", "__bss_start")
_DEFINED = re.compile(r"^(?:int|double|void|MPI_[A-Z]\w+) ?\(?((?:OMPI_C_)?MPI_\w+|MPIR_\w+|mpi_\w+_)\)?\(", re.M)
_F08 = re.compile(r"p?mpi_\w+_f08(ts)?_")


@dataclass(frozen=True)
class Mpi:
    """The MPI of a program: path of each of its libraries by the name the loader knows; core: the one with MPI_Init."""

    libraries: tuple[tuple[str, Path], ...]
    core: str

    @property
    def digest(self) -> str:
        """Of the core library's bytes: what is compiled for one version is not used for another."""
        return hashlib.sha256(dict(self.libraries)[self.core].read_bytes()).hexdigest()[:16]


def programs_in(command: Sequence[str]) -> list[tuple[Path, Mpi]]:
    """The words of a launcher's command that are programs with an MPI library, and that library.

    Raises ProgramUnsupported: there is none, MPI is linked into it, or two libraries. ProgramNotRunnable.
    """
    found: dict[Path, Mpi] = {}
    inside: str | None = None
    for word in command:
        path = shutil.which(word)
        if path is None or not _is_program(Path(path)):
            continue
        mpi = _mpi_of(Path(path))
        if mpi is not None:
            found[Path(path).resolve()] = mpi
        elif _has_mpi_inside(Path(path)):
            inside = path
    if inside is not None and not found:
        raise ProgramUnsupported(f"{inside}: MPI is linked into the program; link it with MPI's shared library")
    if not found:
        raise ProgramNotRunnable(
            f"no word of `{' '.join(command)}` is a program that uses MPI's shared library (scripts that start one "
            "are not followed)"
        )
    if len({mpi.core for mpi in found.values()}) > 1:
        raise ProgramUnsupported(f"two MPI libraries: {', '.join(sorted({m.core for m in found.values()}))}")
    for program in found:
        if any(_F08.fullmatch(name) for name, _, _ in _symbols(program, defined=False)):
            raise ProgramUnsupported(f"{program}: uses the Fortran 2008 bindings (mpi_f08), which are not recorded")
    return list(found.items())


def _is_program(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _mpi_of(program: Path) -> Mpi | None:
    """By the loader's own search, in the caller's environment."""
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, errors="replace", check=False)
    found = re.findall(r"^\s*(libmpi\S*\.so\S*|libmpich\S*\.so\S*) => (\S+)", done.stdout, re.M)
    missing = [name for name, path in found if path == "not"]
    if missing:
        raise ProgramNotRunnable(f"{program}: its library {missing[0]} is not found (LD_LIBRARY_PATH?)")
    libraries = tuple((name, Path(path).resolve()) for name, path in found)
    cores = [name for name, path in libraries if "MPI_Init" in {symbol for symbol, _, _ in _symbols(path)}]
    if len(cores) > 1:
        raise ProgramUnsupported(f"{program}: is linked with two MPI libraries: {', '.join(cores)}")
    return Mpi(libraries, cores[0]) if cores else None


def _has_mpi_inside(program: Path) -> bool:
    with program.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".symtab")
        return isinstance(section, SymbolTableSection) and any(
            symbol["st_shndx"] != "SHN_UNDEF" for symbol in section.get_symbol_by_name("MPI_Init") or ()
        )


@cache
def _symbols(path: Path, defined: bool = True) -> list[tuple[str, str, int]]:
    """(name, FUNC or OBJECT, size) of the dynamic symbols that a file defines, or wants."""
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynsym")
        if not isinstance(section, SymbolTableSection):
            return []
        return [
            (symbol.name, str(symbol["st_info"]["type"]).removeprefix("STT_"), int(symbol["st_size"]))
            for symbol in section.iter_symbols()
            if symbol.name and (symbol["st_shndx"] != "SHN_UNDEF") == defined
        ]


def needed(path: Path) -> list[str]:
    """Names of the libraries that a file asks the loader for."""
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        tags = section.iter_tags("DT_NEEDED") if isinstance(section, DynamicSection) else ()
        return [tag.needed for tag in tags]


def compiler_for(mpi: Mpi, compiler: str | None) -> str:
    """The compiler whose programs use this library. Raises ToolMissing."""
    tried = [compiler] if compiler else [name for name in COMPILERS if shutil.which(name)]
    for name in tried:
        if mpi.core in needed(_recorder(mpi, name)):
            return name
    raise ToolMissing(
        f"no compiler for {mpi.core}: tried {', '.join(tried) or 'mpicc'}; install the library's development package "
        "(libopenmpi-dev, libmpich-dev), or name its compiler with --mpicc"
    )


def found_compiler(compiler: str | None = None) -> str:
    """Path of the compiler that is named, else of the first that is installed. Raises ToolMissing."""
    found = next(filter(None, map(shutil.which, [compiler] if compiler else COMPILERS)), None)
    if found is None:
        raise ToolMissing(
            f"{compiler or 'mpicc'} is not installed: install an MPI library's development package (libopenmpi-dev, "
            "libmpich-dev), or name its compiler with --mpicc"
        )
    return found


def recorder(mpi: Mpi, compiler: str | None = None) -> Path:
    """The library to preload into a program that is recorded. Raises ToolMissing and StorageError."""
    return _recorder(mpi, compiler_for(mpi, compiler))


def replacements(mpi: Mpi, compiler: str | None = None) -> list[Path]:
    """Libraries to preload in place of all of the program's MPI libraries, the core first.

    Each has the name, the data objects at their sizes, and the functions of the one that it stands for. Raises
    ToolMissing and StorageError.
    """
    name = compiler_for(mpi, compiler)
    made = [_replacement(mpi, mpi.core, name, set(_DEFINED.findall(replayer_source())))]
    have = {symbol for symbol, _, _ in _symbols(made[0])}
    made += [_replacement(mpi, other, name, have) for other, _ in mpi.libraries if other != mpi.core]
    return made


def _recorder(mpi: Mpi, compiler: str) -> Path:
    source = recorder_source()
    known = set(_DEFINED.findall(source))
    known.update(_DEFINED.findall((SOURCES / "passed.c").read_text()))
    theirs = [symbol for _, path in mpi.libraries for symbol, kind, _ in _symbols(path) if kind == "FUNC"]
    refused = [name for name in dict.fromkeys(theirs) if _is_call(name) and name not in known]
    return _built("recorder", source, "\n".join(_refusals(refused)), mpi, compiler, _RECORDER)


def _is_call(name: str) -> bool:
    """Whether programs call it; libraries' own names, variants and conversions of handles are left alone."""
    if re.fullmatch(r"MPIX?_[A-Z]\w*", name):
        return not re.search(r"(_c2f|_f2c|_c2f08|_f082c|_f082f|_f2f08|_f|_f08|_fn|_FN)$", name) and name[4:] != (
            name[4:].upper()
        )
    return bool(re.fullmatch(r"mpi_\w*[a-z0-9]_", name)) and not _F08.fullmatch(name)


def _replacement(mpi: Mpi, library: str, compiler: str, have: set[str]) -> Path:
    symbols = _symbols(dict(mpi.libraries)[library])
    missing = [(name, kind, size) for name, kind, size in dict.fromkeys(symbols) if name not in have]
    functions = [n for n, kind, _ in missing if kind == "FUNC" and n not in _NOT_CODE and not n.startswith(_INTERNAL)]
    objects = [(n, size) for n, kind, size in missing if kind == "OBJECT" and not n.startswith(_INTERNAL)]
    assembly = "\n".join([*_refusals(functions), *_objects(objects)])
    # The others find what refuses in the core's replacement.
    source = replayer_source() if library == mpi.core else _NOTHING
    return _built(library, source, assembly, mpi, compiler, library)


_NOTHING = "typedef int nothing;\n"


def _refusals(functions: Sequence[str]) -> Iterator[str]:
    yield ".text"
    for number, name in enumerate(functions):
        yield (
            f".globl {name}\n.type {name},@function\n{name}:\n lea .Lname{number}(%rip),%rdi\n"
            " jmp probe_mpi_unknown@PLT\n"
            f'.section .rodata\n.Lname{number}: .asciz "{name}"\n.text'
        )
    yield '.section .note.GNU-stack,"",@progbits'


def _objects(objects: Sequence[tuple[str, int]]) -> Iterator[str]:
    yield ".data"
    for name, size in objects:
        yield f".globl {name}\n.type {name},@object\n.size {name},{size}\n.balign 32\n{name}: .zero {max(size, 1)}"


def _built(name: str, source: str, assembly: str, mpi: Mpi, compiler: str, soname: str) -> Path:
    with tempfile.TemporaryDirectory(prefix="probe-mpi-") as folder:
        code, stubs = Path(folder) / "made.c", Path(folder) / "stubs.S"
        code.write_text(source)
        stubs.write_text(f"{assembly}\n")
        options = [*_OPTIONS, f"-Wl,-soname,{soname}", f'-DPROBE_MPI_VERSION="{mpi.digest}"']
        if name != "recorder":
            # Its own calls are in it: the library that it replaces must not be loaded.
            options.append("-Wl,--as-needed")
        sources = [code, stubs] if assembly else [code]
        return built(name, sources, options, compiler=shutil.which(compiler) or compiler)


def environment(libraries: Sequence[Path]) -> dict[str, str]:
    """What the loader is told, to load these before the program's own."""
    own = os.environ.get("LD_PRELOAD")
    return {"LD_PRELOAD": " ".join([*map(str, libraries), *([own] if own else [])])}
