# SPDX-License-Identifier: Apache-2.0
"""Kernels of the emulator: built, listed, and calibrated in iterations per CPU second."""

from __future__ import annotations

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
SOURCES = tuple(NATIVE / name for name in ("emulator.c", "kernels.c", "kernels.h", "network.c", "network.h"))
_BUILD = ("-std=gnu11", "-O2", "-pthread")
OPTIONS = (*_BUILD, "-Wall", "-Wextra", "-Wconversion", "-Werror")

COMPUTING = {
    "scalar": "dependent multiplications and additions of floating-point numbers",
    "matrix": "matrix product inside the first cache",
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
    program = _emulator(own, ("-static",), compiler)
    try:
        return program.read_bytes()
    finally:
        forget(program, own)


def sources(own: Path | None = None) -> dict[str, bytes]:
    """Files that a node's compiler makes the emulator of, by their names there. Raises StorageError."""
    found = {path.name: path.read_bytes() for path in SOURCES}
    if own is not None:
        _check_own(own)
        found[f"user_kernel{own.suffix}"] = own.read_bytes()
    return found


def build_options(own: Path | None = None) -> tuple[str, ...]:
    """For a compiler that nobody has tried: its warnings are no errors."""
    return _BUILD if own is None else (*_BUILD, "-DUSER_KERNEL")


def _emulator(own: Path | None, more: tuple[str, ...], compiler: str) -> Path:
    if own is None:
        return built("emulator", SOURCES, (*OPTIONS, *more), compiler=compiler)
    _check_own(own)
    # A folder of its own: what a user's file includes is not part of the version.
    folder = Path(tempfile.mkdtemp(prefix="kernel-", dir=_private(cache_dir())))
    try:
        options = (*build_options(own), *more)
        return built("emulator", (*SOURCES, own.resolve()), options, place=folder, compiler=compiler)
    except BaseException:
        folder.rmdir()
        raise


def _check_own(own: Path) -> None:
    if own.suffix not in (".c", ".s", ".S") or not own.is_file():
        raise StorageError(f"{own}: no file of a kernel in C (.c) or assembly (.s, .S)")


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
    return judged(name, [(int(n), float(s)) for _, n, s in (line.split() for line in said.splitlines())])


def judged(name: str, rounds: Sequence[tuple[int, float]]) -> Rate:
    """The rate of rounds (iterations, CPU seconds). Raises ProbeError for one that no kernel has."""
    each = [seconds / iterations for iterations, seconds in rounds]
    middle = statistics.median(each)
    if middle * _DELETED < 1:
        raise ProbeError(
            f"kernel {name}: {rounds[0][0]} iterations took {rounds[0][1]:.3g} s: the compiler has left out what it "
            "does; let what it computes go to a volatile variable"
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
    """Rates of all kernels of this project, by name."""
    return {one.kernel: one.rate for one in calibrate([*COMPUTING, *MOVING])}
