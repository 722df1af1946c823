# SPDX-License-Identifier: Apache-2.0
"""Recordings of many ranks, made up: how fast they are simulated, and in how much memory."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
if str(SUPPORT) not in sys.path:
    sys.path.append(str(SUPPORT))

import numpy as np  # noqa: E402
from mpi_parts import call, part  # noqa: E402

from probe.mpi.parts import END  # noqa: E402
from probe.mpi.play import NUMBERS  # noqa: E402
from probe.mpi.probes.clusters import clusters_of, summary_of  # noqa: E402
from probe.mpi.recording import RankRun, Recording  # noqa: E402
from probe.mpi.simulate import Where, prepared, simulate  # noqa: E402
from probe.mpi.trace import read_calls  # noqa: E402

CASES = (((32, 32), 500, False), ((32, 16, 16), 30, False), ((32, 32), 500, True), ((32, 16, 16), 30, True))
"""Tori of ranks, a rank on a node; the calls of each rank; whether a sum over all ranks follows each exchange."""

HALO_BYTES = 8192
BURST_NS, NOISE = 200_000, 0.1
"""Computing before each exchange, and the standard deviation of its logarithm."""


def measure(say: Callable[[str], None], *, quick: bool) -> dict[str, Any]:
    """The record: a row for each of CASES, with `quick` of a small one."""
    rows = []
    for sides, calls, sums in (((8, 8), 100, True),) if quick else CASES:
        say(f"bench: {np.prod(sides):,} ranks of {calls} calls, sums: {sums}")
        rows.append(_in_a_process(sides, calls, sums))
        say(json.dumps(rows[-1]))
    return {"name": "mpi-scale", "load": os.getloadavg()[0], "rows": rows}


def report(record: dict[str, Any]) -> str:
    """The table of docs/figures.md."""
    lines = [
        "| ranks | sums | calls | messages | SimGrid, CPU time | calls/s | messages/s | Python, CPU time "
        "| calls/s with it | memory of SimGrid | of Python |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        cpu, own = row["cpu"], row["own_cpu"]
        lines.append(
            f"| {row['ranks']:,} | {'yes' if row['sums'] else 'no'} | {row['calls']:,} | {row['messages']:,} "
            f"| {cpu:.1f} s | {row['calls'] / cpu:,.0f} | {row['messages'] / cpu:,.0f} | {own:.1f} s "
            f"| {row['calls'] / (cpu + own):,.0f} "
            f"| {row['megabytes'] / 1000:.2f} GB, {row['megabytes'] / row['ranks'] * 1000:.0f} kB a rank "
            f"| {row['own_megabytes']:.0f} MB |"
        )
    return "\n".join([*lines, "", f"Load before: {record['load']:.1f}."])


def make_recording(folder: Path, sides: Sequence[int], calls: int, *, sums: bool = True) -> Recording:
    """Write calls.R.000 of every rank: exchanges with all neighbours on a torus; sums: of all ranks, after each."""
    ranks = int(np.prod(sides))
    for rank in range(ranks):
        body = b"".join([*_calls(rank, sides, calls, sums, np.random.default_rng((1, rank))), call(END, count=1)])
        (folder / f"calls.{rank}.000").write_bytes(part("calls", rank, ranks, 0, body))
    runs = tuple(RankRun(rank, "/bin/true", "/", ("true",), kept=True) for rank in range(ranks))
    return Recording(folder, ("mpirun",), "Open MPI", "mpicc", 1.0, {"/bin/true": "0"}, runs)


def _exchanges(sides: Sequence[int], calls: int, sums: bool) -> int:
    """As many as these calls are enough for."""
    return (calls - 1) // (2 * 2 * len(sides) + 1 + sums)


def _calls(
    rank: int, sides: Sequence[int], calls: int, sums: bool, random: np.random.Generator
) -> Iterator[bytes]:  # fmt: skip
    near = list(_neighbours(rank, sides))
    irecv, isend, waitall, allreduce = (NUMBERS[name] for name in ("Irecv", "Isend", "Waitall", "Allreduce"))
    halo = {"count": HALO_BYTES // 8, "element": 8}
    request = 0
    for _ in range(_exchanges(sides, calls, sums)):
        burst = int(BURST_NS * random.lognormal(0.0, NOISE))
        ended = []
        for way, other in enumerate(near):
            # The neighbour's opposite way.
            tag = way ^ 1
            computing = 0 if way else burst
            yield call(irecv, peer=other, tag=tag, other=other, request=request, computing=computing, **halo)
            ended += [request, other, tag]
            request += 1
        for way, other in enumerate(near):
            yield call(isend, peer=other, tag=way, request=request, **halo)
            ended += [request, -1, 0]
            request += 1
        yield call(waitall, comm=-1, extras=ended)
        if sums:
            yield call(allreduce, count=1, element=8, computing=burst // 10)
    yield call(NUMBERS["Finalize"])


def _neighbours(rank: int, sides: Sequence[int]) -> Iterator[int]:
    place = np.unravel_index(rank, tuple(sides))
    for side, length in enumerate(sides):
        for step in (-1, 1):
            there = [int(at) for at in place]
            there[side] = (there[side] + step) % length
            yield int(np.ravel_multi_index(there, tuple(sides)))


def _messages(ranks: int, sides: Sequence[int], calls: int, sums: bool) -> int:
    """Messages of all ranks: to neighbours, and in a sum a reduction and a broadcast, or doublings of fewer ranks."""
    in_sum = 2 * (ranks - 1) if ranks >= 256 else ranks * (ranks.bit_length() - 1)
    return _exchanges(sides, calls, sums) * (ranks * 2 * len(sides) + in_sum * sums)


def _one(sides: Sequence[int], calls: int, sums: bool) -> dict[str, Any]:
    # Of a network's sides the first is that of consecutive nodes, of ours the last.
    network = "torus:" + "x".join(map(str, reversed(sides)))
    with tempfile.TemporaryDirectory(prefix="probe-mpi-scale-") as made:
        # The player is compiled once, which is not to be counted.
        small = Path(made) / "small"
        small.mkdir()
        simulate(make_recording(small, (2, 2), 10), Where(network="torus:2x2"))
        whole = Path(made) / "whole"
        whole.mkdir()
        recording = make_recording(whole, sides, calls, sums=sums)
        begun = _used(resource.RUSAGE_SELF)
        clusters_of(recording, [summary_of(read_calls(recording.folder, run.rank)) for run in recording.ranks])
        clustered = _used(resource.RUSAGE_SELF) - begun
        children, wall = _used(resource.RUSAGE_CHILDREN), time.monotonic()
        with prepared(recording) as plays:
            found = simulate(recording, Where(network=network), limit=3600.0, plays=plays)
        own = _used(resource.RUSAGE_SELF) - begun - clustered
    most = [resource.getrusage(who).ru_maxrss / 1000 for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
    return {
        "network": network, "ranks": len(recording.ranks), "sums": sums, "calls": found.calls,
        "seconds": found.seconds, "messages": _messages(len(recording.ranks), sides, calls, sums),
        "cpu": _used(resource.RUSAGE_CHILDREN) - children, "own_cpu": own, "clustering_cpu": clustered,
        "wall": time.monotonic() - wall, "megabytes": most[0], "own_megabytes": most[1],
    }  # fmt: skip


def _used(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def _in_a_process(sides: Sequence[int], calls: int, sums: bool) -> dict[str, Any]:
    words = ["x".join(map(str, sides)), str(calls), str(int(sums))]
    done = subprocess.run(
        [sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(_one([int(side) for side in sys.argv[1].split("x")], int(sys.argv[2]), sys.argv[3] == "1")))
