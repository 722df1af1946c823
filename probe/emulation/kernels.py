# SPDX-License-Identifier: Apache-2.0
"""Kernels of the emulator: built, listed, and calibrated in iterations per CPU second."""

from __future__ import annotations

import ast
import platform
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpoint.compiled import built
from checkpoint.errors import ProbeError, StorageError, ToolMissing
from checkpoint.paths import cache_dir
from checkpoint.run_command import run_group

NATIVE = Path(__file__).with_name("native")
_PARTS = ("emulator", "kernels", "network", "ranks", "blas", "python_kernel")
SOURCES = tuple(NATIVE / f"{name}.{kind}" for name in _PARTS for kind in "ch" if (name, kind) != ("emulator", "h"))
# Before glibc 2.34 what loads OpenBLAS is in a library of its own, which comes before what needs it here.
_BUILD = ("-std=gnu11", "-O2", "-pthread", "-Wl,--no-as-needed", "-ldl")
OPTIONS = (*_BUILD, "-Wall", "-Wextra", "-Wconversion", "-Werror")

COMPUTING = {
    "scalar": "dependent multiplications and additions of floating-point numbers",
    "matrix": "matrix product inside the first cache",
    "dgemm": "matrix product by OpenBLAS, where the node has it",
    "branches": "integer arithmetic with branches that cannot be predicted",
    "stream": "sums of arrays that are larger than most caches",
    "chase": "dependent loads from all over 16 MB",
    "syscalls": "short system calls",
}
"""Kernels that stand for a program's computing, and what they do."""

MOVING = {
    "read": "reading a cached file, 64 KiB an iteration",
    "write": "overwriting a cached file, 64 KiB an iteration",
    "touch": "fresh pages, 64 KiB an iteration",
}
"""Kernels whose rates say what CPU time input, output and memory take by themselves."""

BLAS = "dgemm"
"""The kernel that needs a library of the node."""

INSTEAD = "matrix"
"""What a mix computes in place of it on a node that has none."""

NO_BLAS = (
    "this node has no OpenBLAS for kernel dgemm: install libopenblas0 and a C compiler there, or name another kernel"
)

STALLING = "chase"
"""The kernel that uses cycles and gets nowhere in most of them."""

USER = "user"
AUTO = "auto"
"""The mix of kernels that a profile says is like its command."""

MIX = "mix_"
"""What the columns of a mix begin with: CPU seconds that each kernel stands for."""

DEFAULT = "matrix"
MOVED = 65536
"""Bytes that an iteration of `MOVING` moves."""

_SECONDS = 60
_MOST_SLOWER = 3.0
"""Times that the last rounds may take of the first: noise and turbo are far below, denormal numbers far above."""

_DELETED = 1e11
"""Iterations a second that no processor makes, if an iteration does anything at all."""


@dataclass(frozen=True)
class Rate:
    """Iterations per CPU second of a kernel here: the median of rounds, and their relative standard deviation."""

    kernel: str
    rate: float
    spread: float


_PYTHON = ".py"
_LONGEST_PYTHON = 100_000
"""Linux takes arguments of 128 KiB."""

_COMPILERS = {
    "x86_64": "x86_64-linux-gnu-gcc",
    "aarch64": "aarch64-linux-gnu-gcc",
    "riscv64": "riscv64-linux-gnu-gcc",
    "ppc64le": "powerpc64le-linux-gnu-gcc",
}
"""By the names of uname(2), what Debian calls the compilers that build for nodes of other instruction sets."""


def emulator(own: Path | None = None) -> Path:
    """The emulator's program, with the kernel of a user's file in it where one is given (C or assembly).

    Raises ToolMissing where it cannot be compiled, StorageError where there is no such file.
    """
    return _emulator(own, (), "cc")


def program_for(machine: str, own: Path | None = None) -> bytes:
    """The emulator for a node without a compiler: built here, and needing no library there. `machine`: of uname(2).

    Raises ToolMissing where this machine cannot build for that one, StorageError where there is no such file.
    """
    compiler = "cc" if machine == platform.machine() else _COMPILERS.get(machine)
    if compiler is None or shutil.which(compiler) is None:
        raise ToolMissing(
            f"the node has no compiler that builds the emulator, and this machine has none for {machine or 'it'}; "
            f"install gcc there, or {compiler or 'a compiler for it'} here"
        )
    program = _emulator(own, ("-static", "-DWITHOUT_LIBRARIES"), compiler)
    try:
        return program.read_bytes()
    finally:
        forget(program, own)


def sources(own: Path | None = None) -> dict[str, bytes]:
    """Files that a node's compiler makes the emulator of, by their names there. Raises StorageError."""
    found = {path.name: path.read_bytes() for path in SOURCES}
    if own is not None:
        _check_own(own)
        name = "user_kernel.c" if own.suffix == _PYTHON else f"user_kernel{own.suffix}"
        found[name] = _python_as_c(own) if own.suffix == _PYTHON else own.read_bytes()
    return found


def build_options(own: Path | None = None) -> tuple[str, ...]:
    """For a compiler that nobody has tried: its warnings are no errors."""
    if own is None:
        return _BUILD
    return (*_BUILD, "-DPYTHON_KERNEL" if own.suffix == _PYTHON else "-DUSER_KERNEL")


def _emulator(own: Path | None, more: tuple[str, ...], compiler: str) -> Path:
    if own is None:
        return built("emulator", SOURCES, (*OPTIONS, *more), compiler=compiler)
    _check_own(own)
    # A folder of its own: what a user's file includes is not part of the version.
    folder = Path(tempfile.mkdtemp(prefix="kernel-", dir=_private(cache_dir())))
    try:
        options = (*build_options(own), *more)
        if own.suffix != _PYTHON:
            return built("emulator", (*SOURCES, own.resolve()), options, place=folder, compiler=compiler)
        with tempfile.TemporaryDirectory(prefix="python-", dir=folder) as made:
            source = Path(made) / "user_kernel.c"
            source.write_bytes(_python_as_c(own))
            return built("emulator", (*SOURCES, source), options, place=folder, compiler=compiler)
    except BaseException:
        folder.rmdir()
        raise


def _check_own(own: Path) -> None:
    if own.suffix not in (".c", ".s", ".S", _PYTHON) or not own.is_file():
        raise StorageError(f"{own}: no file of a kernel in C (.c), assembly (.s, .S) or Python (.py)")


def _python_as_c(own: Path) -> bytes:
    """A C file that holds the text of a kernel in Python. Raises StorageError where it has no function `kernel`."""
    text = own.read_bytes()
    try:
        parts = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise StorageError(f"{own}: no kernel in Python: {error}") from error
    if not any(isinstance(part, ast.FunctionDef) and part.name == "kernel" for part in parts):
        raise StorageError(f"{own}: no kernel in Python: it defines no function kernel(iterations)")
    if len(text) > _LONGEST_PYTHON:
        raise StorageError(f"{own}: a kernel in Python of more than {_LONGEST_PYTHON} bytes; import the rest of it")
    return f"const char python_source[] = {{{','.join(map(str, text))},0}};\n".encode()


def forget(program: Path, own: Path | None) -> None:
    """Remove the program that `emulator` made for a user's file."""
    if own is not None:
        program.unlink(missing_ok=True)
        program.parent.rmdir()


def _private(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def calibrate(names: Sequence[str], program: Path | None = None) -> list[Rate]:
    """Measure kernels on this node, some 0.1 s each.

    Raises ToolMissing where they cannot be compiled, ProbeError for a kernel that does nothing or slows down.
    """
    program = program or emulator()
    with tempfile.TemporaryDirectory(prefix="probe-kernels-") as folder:
        return [_calibrated(program, name, folder) for name in names]


def _calibrated(program: Path, name: str, folder: str) -> Rate:
    try:
        status, said = run_group([str(program), "calibrate", name, folder], _SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ProbeError(
            f"kernel {name}: not calibrated within {_SECONDS} s; give it less to do in an iteration"
        ) from error
    if status:
        raise ToolMissing(f"kernel {name} failed with status {status}: {said.strip()[-300:]}")
    *lines, last = (line.split() for line in said.splitlines())
    return judged(name, [(int(n), float(s)) for _, n, s in lines], int(last[1]))


def judged(name: str, rounds: Sequence[tuple[int, float]], denormals: int = 0) -> Rate:
    """The rate of rounds (iterations, CPU seconds), some of which computed with `denormals`. Raises ProbeError for one
    that no kernel has."""
    each = [seconds / iterations for iterations, seconds in rounds]
    middle = statistics.median(each)
    if middle * _DELETED < 1:
        raise ProbeError(
            f"kernel {name}: {rounds[0][0]} iterations took {rounds[0][1]:.3g} s: the compiler has left out what it "
            "does; let what it computes go to a volatile variable"
        )
    if name == USER and denormals:
        raise ProbeError(
            f"kernel {name}: it computes with denormal numbers, which are slow on some processors and fast on others; "
            "keep its numbers near 1"
        )
    slower = statistics.median(each[-3:]) / statistics.median(each[:3])
    # Those of this project keep their numbers near 1; other load may slow down what moves bytes as much.
    if name == USER and slower > _MOST_SLOWER:
        raise ProbeError(
            f"kernel {name}: its last iterations took {slower:.1f} times as long as its first; numbers that shrink to "
            "denormals do so: keep them near 1"
        )
    return Rate(name, 1 / middle, statistics.stdev(each) / statistics.fmean(each))


def all_rates() -> dict[str, float]:
    """Rates of all kernels of this project that this node can execute, by name."""
    program = emulator()
    return {one.kernel: one.rate for one in calibrate([*computing(program), *MOVING], program)}


def computing(program: Path) -> list[str]:
    """Names of COMPUTING that the emulator can execute here."""
    return [name for name in COMPUTING if name != BLAS or has_blas(program)]


def has_blas(program: Path) -> bool:
    """Whether the emulator finds OpenBLAS here, and in time: libraries may lie on a file system that hangs."""
    try:
        status, _ = run_group([str(program), "has", BLAS, "/"], _SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return status == 0
