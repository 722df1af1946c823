# SPDX-License-Identifier: Apache-2.0
"""The MPI library of a command: of the programs among its words, or of what it starts."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError

from checkpoint.errors import ProgramNotRunnable, ProgramUnsupported
from probe.mpi.library.symbols import NEW_FORTRAN, defines_inside, name_of, symbols

_LIBRARY = re.compile(r"libmpi\S*\.so\S*")
_NAME = re.compile(r"[\w.+-]+")


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
    """The words of a launcher's command that are programs with an MPI library, and that library; none: no word is.

    Raises ProgramUnsupported: MPI is linked into a program, or there are two libraries. ProgramNotRunnable.
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
        elif defines_inside(Path(path), "MPI_Init"):
            inside = path
    if inside is not None and not found:
        raise ProgramUnsupported(f"{inside}: MPI is linked into the program; link it with MPI's shared library")
    if len({mpi.core for mpi in found.values()}) > 1:
        raise ProgramUnsupported(f"two MPI libraries: {', '.join(sorted({m.core for m in found.values()}))}")
    _refuse_new_fortran(found)
    return list(found.items())


def joined(several: Sequence[Mpi]) -> Mpi:
    """All libraries of programs with the same core."""
    return Mpi(tuple({one: None for mpi in several for one in mpi.libraries}), several[0].core)


def mpi_of(libraries: Mapping[str, str]) -> Mpi:
    """The MPI of these libraries, by the name that the loader knows. Raises ProgramNotRunnable, ProgramUnsupported."""
    for name, path in libraries.items():
        # It becomes an option of the linker, and part of a file's name.
        if not _NAME.fullmatch(name) or not _is_program(Path(path)):
            raise ProgramNotRunnable(f"the MPI library {name[:80]} is not in {path}: record the program again")
    try:
        mpi = _mpi("this recording", [(name, Path(path)) for name, path in libraries.items()])
    except ELFError as error:
        raise ProgramNotRunnable(f"the recording names an MPI library that is none: {error}") from error
    if mpi is None:
        raise ProgramNotRunnable("the recording names no MPI library: record the program again")
    return mpi


def mpi_among(program: str, files: Iterable[Path]) -> Mpi | None:
    """The MPI library among the files that a process of this program has loaded. Raises ProgramUnsupported."""
    known = dict.fromkeys(files)
    theirs = [path for path in known if _LIBRARY.fullmatch(path.name)]
    mpi = _mpi(program, [(name_of(path), path.resolve()) for path in theirs])
    if mpi is not None:
        _refuse_new_fortran(filter(_is_program, known))
    return mpi


def _is_program(path: Path) -> bool:
    try:
        # A pipe that nobody writes to would hold us where it is opened.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and file.read(4) == b"\x7fELF"
    except (OSError, ValueError):
        return False


def _mpi_of(program: Path) -> Mpi | None:
    """By the loader's own search, in the caller's environment."""
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, errors="replace", check=False)
    found = re.findall(rf"^\s*({_LIBRARY.pattern}) => (\S+)", done.stdout, re.M)
    missing = [name for name, path in found if path == "not"]
    if missing:
        raise ProgramNotRunnable(f"{program}: its library {missing[0]} is not found (LD_LIBRARY_PATH?)")
    return _mpi(str(program), [(name, Path(path).resolve()) for name, path in found])


def _mpi(program: str, libraries: Sequence[tuple[str, Path]]) -> Mpi | None:
    cores = [name for name, path in libraries if "MPI_Init" in {symbol for symbol, _, _ in symbols(path)}]
    if len(cores) > 1:
        raise ProgramUnsupported(f"{program}: is linked with two MPI libraries: {', '.join(cores)}")
    return Mpi(tuple(libraries), cores[0]) if cores else None


def _refuse_new_fortran(files: Iterable[Path]) -> None:
    for path in files:
        if any(NEW_FORTRAN.fullmatch(name) for name, _, _ in symbols(path, defined=False)):
            raise ProgramUnsupported(f"{path}: uses the Fortran 2008 bindings (mpi_f08), which are not recorded")
