# SPDX-License-Identifier: Apache-2.0
"""Measure the network between two ranks of an MPI library: time by size, both ways at once, eager limit, overlap."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from checkpoint.compiled import built
from checkpoint.errors import ProgramFailed, ToolMissing
from probe.formats.arrays import FloatArray
from probe.mpi.library.compiling import found_compiler
from probe.mpi.library.generate import SOURCES
from probe.simulation.smpirun import watched

LAUNCHER: Final = ("mpirun", "-n", "2")
SECONDS = 300.0
"""That a measuring may take."""

_OPTIONS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror")
_SIZE = re.compile(r"^size (\d+) ([\d.e+-]+) ([\d.e+-]+) ([\d.e+-]+)$", re.M)
_REDUCED = re.compile(r"^reduced (\d+) ([\d.e+-]+)$", re.M)
_LEAST_SIZES = 4


@dataclass(frozen=True)
class Measured:
    """hosts: of the two ranks. sizes: bytes, ascending; half: seconds of half a round trip; both: of two messages that
    pass each other; streamed: seconds of one among many under way. Equal shapes.

    reduced: (sizes, 2) bytes, ascending, and seconds to sum so many bytes of doubles.
    eager: bytes of the largest message whose send does not wait for its receiver. overlap: share of a large message's
    time that goes on behind computing.
    """

    hosts: tuple[str, str]
    sizes: FloatArray
    half: FloatArray
    both: FloatArray
    streamed: FloatArray
    reduced: FloatArray
    eager: int
    overlap: float


def measure(launcher: Sequence[str] = LAUNCHER, compiler: str | None = None) -> Measured:
    """Run the measuring program by the launcher, on its two ranks.

    Raises ToolMissing without an MPI compiler or the launcher, ProgramFailed where the program fails.
    """
    name = found_compiler(compiler)
    with tempfile.TemporaryDirectory(prefix="probe-mpi-net-") as made:
        return _exchanged(_run(launcher, "exchange", name, Path(made)))


def _run(launcher: Sequence[str], program: str, compiler: str, folder: Path) -> str:
    path = built(program, [SOURCES / f"{program}.c"], _OPTIONS, compiler=compiler)
    words = [*launcher, str(path)]
    try:
        status, printed, late = watched(words, folder, SECONDS, lambda line: None, more={"TMPDIR": _temporary()})
    except OSError as error:
        raise ToolMissing(f"{launcher[0]}: cannot be started ({error.strerror})") from error
    if late:
        raise ProgramFailed(f"{' '.join(words)} was not over after {SECONDS:.0f} s")
    if status:
        # What the launcher says of the end may be long.
        own = next((line for line in printed.splitlines() if line.startswith(f"{program}: ")), printed[-400:].strip())
        raise ProgramFailed(f"{' '.join(words)} ended with status {status}: {own}")
    return printed


def _temporary() -> str:
    return os.environ.get("TMPDIR", tempfile.gettempdir())


def _exchanged(told: str) -> Measured:
    """What exchange.c printed. Launchers say more than the ranks do."""
    found, reduced = _least(_SIZE.findall(told)), _least(_REDUCED.findall(told))
    hosts = re.search(r"^hosts (\S+) (\S+)$", told, re.M)
    eager = re.search(r"^eager (\d+)$", told, re.M)
    overlap = re.search(r"^overlap ([\d.]+)$", told, re.M)
    few = min(len(found), len(reduced)) < _LEAST_SIZES
    if few or hosts is None or eager is None or overlap is None or (found <= 0).any() or (reduced <= 0).any():
        raise ProgramFailed(f"the network was not measured; the ranks printed: {told[-400:].strip()}")
    sizes, half, both, streamed = found.T
    return Measured((hosts[1], hosts[2]), sizes, half, both, streamed, reduced, int(eager[1]), float(overlap[1]))


def _least(rows: Sequence[Sequence[str]]) -> FloatArray:
    """Sizes, ascending, and the least of each of their times."""
    found: dict[float, list[float]] = {}
    for row in rows:
        size, *seconds = map(float, row)
        found[size] = [min(pair) for pair in zip(found.get(size, seconds), seconds, strict=True)]
    return np.array([[size, *found[size]] for size in sorted(found)])
