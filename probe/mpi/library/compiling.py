# SPDX-License-Identifier: Apache-2.0
"""Compiling for a program's MPI library: a recorder before it, replacements in its place."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from checkpoint.compiled import built
from checkpoint.errors import ToolMissing
from probe.mpi.library.found import Mpi
from probe.mpi.library.generate import SOURCES, recorder_source, replayer_source
from probe.mpi.library.symbols import NEW_FORTRAN, needed, symbols

_RECORDER = "libprobe_mpi_recorder.so"
COMPILERS = ("mpicc", "mpicc.openmpi", "mpicc.mpich")
"""Tried in this order; the first whose library is the program's."""

_OPTIONS = (
    "-shared", "-fPIC", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function",
    "-Wno-stringop-overflow", "-Wno-address", "-fvisibility=default",
)  # fmt: skip
_INTERNAL = ("mca_", "opal_", "orte_", "pmix_")
_NOT_CODE = ("_init", "_fini", "_edata", "_end", "__bss_start")
_DEFINED = re.compile(r"^(?:int|double|void|MPI_[A-Z]\w+) ?\(?((?:OMPI_C_)?MPI_\w+|MPIR_\w+|mpi_\w+_)\)?\(", re.M)


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
    have = {symbol for symbol, _, _ in symbols(made[0])}
    made += [_replacement(mpi, other, name, have) for other, _ in mpi.libraries if other != mpi.core]
    return made


def _recorder(mpi: Mpi, compiler: str) -> Path:
    source = recorder_source()
    known = set(_DEFINED.findall(source))
    known.update(_DEFINED.findall((SOURCES / "passed.c").read_text()))
    theirs = [symbol for _, path in mpi.libraries for symbol, kind, _ in symbols(path) if kind == "FUNC"]
    refused = [name for name in dict.fromkeys(theirs) if _is_call(name) and name not in known]
    return _built("recorder", source, "\n".join(_refusals(refused)), mpi, compiler, _RECORDER)


def _is_call(name: str) -> bool:
    """Whether programs call it; libraries' own names, variants and conversions of handles are left alone."""
    if re.fullmatch(r"MPIX?_[A-Z]\w*", name):
        return not re.search(r"(_c2f|_f2c|_c2f08|_f082c|_f082f|_f2f08|_f|_f08|_fn|_FN)$", name) and name[4:] != (
            name[4:].upper()
        )
    return bool(re.fullmatch(r"mpi_\w*[a-z0-9]_", name)) and not NEW_FORTRAN.fullmatch(name)


def _replacement(mpi: Mpi, library: str, compiler: str, have: set[str]) -> Path:
    theirs = symbols(dict(mpi.libraries)[library])
    missing = [(name, kind, size) for name, kind, size in dict.fromkeys(theirs) if name not in have]
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


def environment(libraries: Sequence[Path], theirs: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the loader is told, to load these before those that are asked for in `theirs`."""
    own = theirs.get("LD_PRELOAD", os.environ.get("LD_PRELOAD"))
    return {"LD_PRELOAD": " ".join([*map(str, libraries), *([own] if own else [])])}
