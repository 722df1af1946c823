# SPDX-License-Identifier: Apache-2.0
"""A packed probe of an MPI program, made without building any."""

from __future__ import annotations

from pathlib import Path

from mpi_parts import call, part

from checkpoint import strict_json
from probe.mpi.parts import END
from probe.mpi.probes.packing import pack
from probe.mpi.recording import RankRun, Recording, write_recording


def packed_probe(folder: Path) -> Path:
    """app.mpiprobe of two ranks, of which one stands for both; its members are in `folder`/folder."""
    made = folder / "folder"
    made.mkdir()
    runs = tuple(RankRun(rank, "/bin/true", "/", ("true",), True) for rank in range(2))
    write_recording(Recording(made, ("mpirun",), "Open MPI", "mpicc", 1.0, {"/bin/true": "0"}, runs, 2))
    for rank in range(2):
        (made / f"calls.{rank}.000").write_bytes(part("calls", rank, 2, 0, call(END)))
    one = {"representative": 0, "ranks": [0, 1], "computing": 1.0, "spread": 0.0, "verified": 1, "error": 0.01}
    (made / "clusters.json").write_text(strict_json.dumps({"format_version": 1, "clusters": [one]}))
    (made / "rank-0.probe").write_bytes(b"a probe")
    pack(made, folder / "app.mpiprobe")
    return folder / "app.mpiprobe"
