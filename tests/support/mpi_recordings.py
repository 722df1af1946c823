# SPDX-License-Identifier: Apache-2.0
"""Recordings of MPI programs that never ran: calls as a test wants them, with computing of given lengths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpi_parts import call, part

from probe.mpi.library.calls import names
from probe.mpi.parts import END
from probe.mpi.recording import RankRun, Recording, write_recording


def made_call(name: str, computing: float = 0.0, **what: Any) -> bytes:
    """A call, that many seconds of computing behind the one before."""
    return call(names().index(name), computing=round(computing * 1e9), **what)


def made_recording(folder: Path, ranks: Sequence[Sequence[bytes]]) -> Recording:
    """A recording of these calls, whose answers nobody kept. MPI_Finalize stands at the end of each rank."""
    folder.mkdir()
    runs = tuple(RankRun(rank, "/bin/true", "/", ("true",), False) for rank in range(len(ranks)))
    made = Recording(folder, ("mpirun", "<app>"), "Open MPI", "mpicc", 1.0, {"/bin/true": "0"}, runs, len(ranks))
    write_recording(made)
    for rank, calls in enumerate(ranks):
        body = b"".join([*calls, made_call("Finalize"), call(END)])
        (folder / f"calls.{rank}.000").write_bytes(part("calls", rank, len(ranks), 0, body))
    return made
