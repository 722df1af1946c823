# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: a kernel run on numbers of cores here, on a node over SSH, or as a job of Slurm, into runs.

One shell script does it everywhere. Where there is `mpicc` it builds the library of pintools/mpi and preloads it.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint import strict_json
from checkpoint.errors import NodeMisbehaved, ProbeError, ProgramFailed, ProgramNotRunnable, Unpredictable
from checkpoint.foreign_file import finite
from probe.applications.application import Application, Kernel
from probe.applications.inputs import Configuration
from probe.scaling.meters import Meter
from probe.store.parallel_run import MESSAGE_NOTE, ParallelRun, checked_run

_LIBRARY = Path(__file__).parents[2] / "pintools" / "mpi" / "times.c"
_MARK = "probe-bench"
_TO_ALL = ("Alltoall", "Alltoallv", "Reduce_scatter")
"""Calls whose bytes are for all ranks in equal parts."""
_MOST_OUTPUT = 64 << 20
_ENDING_SECONDS = 10.0
_SCRIPT = r"""set -eu
work=$(mktemp -d "${TMPDIR:-/tmp}/probe-bench.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 143' TERM INT HUP
cat >"$work/times.c" <<'PROBE_END_OF_SOURCE'
@SOURCE@
PROBE_END_OF_SOURCE
mkdir "$work/times"
library=
if @WITH_MPI@ && command -v mpicc >/dev/null 2>&1; then
  if mpicc -shared -fPIC -O2 -o "$work/times.so" "$work/times.c" -ldl 2>"$work/mpicc.err"; then
    library=$work/times.so
  fi
fi
cores=$(lscpu -p=CORE,SOCKET,NODE 2>/dev/null | grep -v '^#' | cut -d, -f1,2 | sort -u | wc -l)
echo "@MARK@ cores $cores"
if [ "$cores" -gt 0 ] && [ "@CORES_HERE@" -gt "$cores" ]; then exit 0; fi
if ! cd @FOLDER@; then echo "@MARK@ nowhere -"; exit 0; fi
begun=$(date +%s.%N)
status=0
env PROBE_MPI_TIMES="$work/times" OMP_NUM_THREADS=@THREADS@ ${library:+LD_PRELOAD="$library"} @COMMAND@ \
  >"$work/said" 2>&1 </dev/null || status=$?
ended=$(date +%s.%N)
echo "@MARK@ run $begun $ended $status"
if [ "$status" -ne 0 ]; then tail -c 1000 "$work/said" | sed 's/^/@MARK@ said /'; echo; fi
for file in "$work"/times/rank-*.json; do
  if [ -e "$file" ]; then printf '@MARK@ rank '; cat "$file"; fi
done
"""


@dataclass(frozen=True)
class Order:
    """One run that is wanted. parameters: of `found`, filled into the command. cores_here: of one node, at most."""

    application: Application
    kernel: Kernel
    found: Configuration
    node_type: str
    cores: int
    folder: str

    @property
    def ranks(self) -> int:
        return self.cores // self.kernel.threads

    def script(self, nodes: int = 1) -> str:
        """The shell script that runs and measures it; its output is for `run_of`."""
        words = self.kernel.words(self.found.parameters, self.ranks)
        filled = {
            "SOURCE": _LIBRARY.read_text(),
            "MARK": _MARK,
            "WITH_MPI": "true" if self.kernel.launch else "false",
            "CORES_HERE": str(self.cores if nodes == 1 else 0),
            "FOLDER": shlex.quote(self.folder),
            "THREADS": str(self.kernel.threads),
            "COMMAND": shlex.join(words),
        }
        return re.sub(r"@([A-Z_]+)@", lambda found: filled[found[1]], _SCRIPT)


@dataclass(frozen=True)
class Measured:
    """Energy of a run and its wait in a queue, where these are known; nodes: that it ran on."""

    joules: float | None = None
    source: str = ""
    wait: float | None = None
    nodes: int = 1


def order(
    application: Application,
    kernel: Kernel,
    found: Configuration,
    node_type: str,
    cores: int,
    folder: str | None = None,
) -> Order:
    """An order, checked. folder: where it runs (default: the description's).

    Raises ProbeError for a kernel without a command, or cores that its threads do not divide.
    """
    if not kernel.command:
        raise ProbeError(f"[kernel.{kernel.name}] has no command to run")
    if cores % kernel.threads:
        raise ProbeError(f"{cores} cores are no multiple of the {kernel.threads} threads of {kernel.name}")
    return Order(application, kernel, found, node_type, cores, folder or str(application.folder))


def run_here(wanted: Order, seconds: float, meter: Callable[[], Meter] = Meter) -> ParallelRun:
    """Run it on this machine. Raises ProgramFailed, Unpredictable for too many cores, ProgramNotRunnable."""
    with meter() as measured:
        process = subprocess.Popen(
            ["sh", "-s"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            said, errors = process.communicate(wanted.script(), timeout=seconds)
        except BaseException as error:
            _end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise ProgramFailed(
                    f"{wanted.kernel.name} on {wanted.cores} cores: longer than {seconds:g} s"
                ) from error
            raise
    if process.returncode:
        raise ProgramNotRunnable(f"the benchmark's shell ended with {process.returncode}: {errors.strip()[-300:]}")
    return run_of(wanted, said, Measured(measured.joules, measured.source))


def _end(process: subprocess.Popen[str]) -> None:
    """The shell's own trap removes its folder."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_ENDING_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def run_of(wanted: Order, said: str, measured: Measured) -> ParallelRun:
    """The run that the script's output tells of. Raises ProgramFailed, Unpredictable, NodeMisbehaved."""
    lines = [
        line.split(" ", 2)[1:] for line in said.splitlines() if line.startswith(f"{_MARK} ") and line.count(" ") > 1
    ]
    what = f"{wanted.application.name}.{wanted.kernel.name} on {wanted.cores} cores"
    here = next((int(rest) for kind, rest in lines if kind == "cores" and rest.isdecimal()), 0)
    times = next((rest.split() for kind, rest in lines if kind == "run"), None)
    if times is None and 0 < here < wanted.cores:
        raise Unpredictable(
            f"{what}: the node has {here}; threads that share a core are no data for a curve (SMT, oversubscription)"
        )
    if any(kind == "nowhere" for kind, _ in lines):
        raise ProgramNotRunnable(f"{what}: there is no folder {wanted.folder}; say with --folder where it is there")
    try:
        begun, ended, status = float(times[0]), float(times[1]), int(times[2])  # type: ignore[index]
        ranks = [_rank(strict_json.loads(rest)) for kind, rest in lines if kind == "rank"]
    except (TypeError, IndexError, ValueError, KeyError) as error:
        raise NodeMisbehaved(f"{what}: the benchmark said nothing that can be understood: {said[-300:]!r}") from error
    if status:
        last = " ".join(rest.strip() for kind, rest in lines if kind == "said")[-400:]
        raise ProgramFailed(f"{what} ended with status {status}: {last or 'it printed nothing'}")
    return checked_run({**_fields(wanted, measured, ended), **_split(wanted, ranks, ended - begun)}, what)


def _rank(said: Mapping[str, Any]) -> dict[str, float]:
    found = {name: finite(said[name]) for name in ("rank", "ranks", "seconds", "mpi", "io", "mpi_bytes", "io_bytes")}
    return {**found, "message": _message(said["calls"], found["ranks"])}


def _message(calls: Sequence[Mapping[str, Any]], ranks: float) -> float:
    """Bytes of the message that carries a byte, on the average: each call's bytes go to one rank, or to all."""
    moved = weighted = 0.0
    for call in calls:
        size, count = finite(call["bytes"]), max(finite(call["calls"]), 1.0)
        moved += size
        weighted += size * size / count / (max(ranks, 1.0) if call["name"] in _TO_ALL else 1.0)
    return weighted / moved if moved else 0.0


def _split(wanted: Order, ranks: Sequence[Mapping[str, float]], wall: float) -> dict[str, Any]:
    """Run time and its parts, of the rank that computes longest: the others wait for it in MPI."""
    # Fewer reports than ranks: some ended without MPI_Finalize, and what the others say is no whole.
    if not ranks or len(ranks) != wanted.ranks:
        known = wanted.kernel.known_mpi
        return {"runtime": wall, "mpi": known, "notes": {"mpi": "not measured"} if known is None else {}}
    slowest = max(ranks, key=lambda one: one["seconds"] - one["mpi"] - one["io"])
    runtime = max(one["seconds"] for one in ranks)
    waited = runtime - slowest["seconds"]
    return {
        "runtime": runtime,
        "mpi": min(slowest["mpi"] + waited, runtime),
        "io": min(slowest["io"], max(runtime - slowest["mpi"] - waited, 0.0)),
        "notes": {
            "launch": f"{wall - runtime:.3f} s",
            "mpi_bytes": f"{sum(one['mpi_bytes'] for one in ranks):.0f}",
            MESSAGE_NOTE: f"{slowest['message']:.0f}",
        },
    }


def _fields(wanted: Order, measured: Measured, ended: float) -> dict[str, Any]:
    return {
        "app": wanted.application.name,
        "kernel": wanted.kernel.name,
        "node_type": wanted.node_type,
        "nodes": measured.nodes,
        "cores": wanted.cores,
        "ranks": wanted.ranks,
        "threads": wanted.kernel.threads,
        "config": wanted.found.hash,
        "parameters": wanted.found.parameters,
        "work": wanted.found.work,
        "ended_at": ended,
        "wait": measured.wait,
        "energy": measured.joules,
        "energy_source": measured.source,
        "benchmark": True,
        "source": f"bench:{time.time_ns()}:{uuid.uuid4().hex[:8]}",
    }


def received(receive: Callable[[int, float], bytes | None], seconds: float) -> str:
    """All that a command on a node prints, within so many seconds. Raises ProgramFailed, NodeMisbehaved."""
    found, deadline = bytearray(), time.monotonic() + seconds
    while (piece := receive(1 << 16, 1.0)) != b"":
        found += piece or b""
        if time.monotonic() > deadline:
            raise ProgramFailed(f"the benchmark took longer than {seconds:g} s")
        if len(found) > _MOST_OUTPUT:
            raise NodeMisbehaved("the benchmark printed more than any benchmark does")
    return found.decode(errors="replace")
