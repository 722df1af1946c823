# SPDX-License-Identifier: Apache-2.0
"""Measure the network between two ranks of an MPI library: time by size, both ways at once, eager limit, overlap."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from checkpoint.compiled import built
from checkpoint.errors import ProgramFailed, ToolMissing
from probe.applications.network import read_bandwidths
from probe.formats.arrays import FloatArray
from probe.mpi.generate import SOURCES
from probe.mpi.libraries import found_compiler
from probe.simulation.smpirun import watched

LAUNCHER: Final = ("mpirun", "-n", "2")
SECONDS = 300.0
"""That a measuring may take."""

_OPTIONS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror")
_SIZE = re.compile(r"^size (\d+) ([\d.e+-]+) ([\d.e+-]+)$", re.M)
_BANDWIDTH = re.compile(r"^\d+ [\d.e+-]+$", re.M)
_LEAST_SIZES = 4


@dataclass(frozen=True)
class Measured:
    """hosts: of the two ranks. sizes: bytes, ascending; half: seconds of half a round trip; both: of two messages that
    pass each other; streamed: seconds of one among many under way. Equal shapes.

    eager: bytes of the largest message whose send does not wait for its receiver. overlap: share of a large message's
    time that goes on behind computing.
    """

    hosts: tuple[str, str]
    sizes: FloatArray
    half: FloatArray
    both: FloatArray
    streamed: FloatArray
    eager: int
    overlap: float


def measure(launcher: Sequence[str] = LAUNCHER, compiler: str | None = None) -> Measured:
    """Run the two measuring programs by the launcher, on its two ranks.

    Raises ToolMissing without an MPI compiler or the launcher, ProgramFailed where a program fails.
    """
    name = found_compiler(compiler)
    with tempfile.TemporaryDirectory(prefix="probe-mpi-net-") as made:
        folder = Path(made)
        exchanged = _exchanged(_run(launcher, "exchange", name, folder))
        # Launchers say more than the ranks do.
        lines = _BANDWIDTH.findall(_run(launcher, "bandwidth", name, folder))
        (folder / "bandwidth").write_text("".join(f"{line}\n" for line in lines))
        many = read_bandwidths(folder / "bandwidth")
    streamed = np.exp(np.interp(np.log(exchanged.sizes), np.log(many.sizes), np.log(many.seconds)))
    return replace(exchanged, streamed=streamed)


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
    """What exchange.c printed, with no time of many messages yet."""
    found = np.array([[float(word) for word in row] for row in _SIZE.findall(told)])
    hosts = re.search(r"^hosts (\S+) (\S+)$", told, re.M)
    eager = re.search(r"^eager (\d+)$", told, re.M)
    overlap = re.search(r"^overlap ([\d.]+)$", told, re.M)
    if len(found) < _LEAST_SIZES or hosts is None or eager is None or overlap is None or (found <= 0).any():
        raise ProgramFailed(f"the network was not measured; the ranks printed: {told[-400:].strip()}")
    sizes, half, both = found.T
    return Measured((hosts[1], hosts[2]), sizes, half, both, half, int(eager[1]), float(overlap[1]))
