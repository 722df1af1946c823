# SPDX-License-Identifier: Apache-2.0
"""Run MPI programs of two ranks plainly, recorded, and each rank alone, by turns; then predict the whole.

Each program leaves a record as soon as it is done, and is not measured again. Records hold every turn.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.mpi.programs import ARGUMENTS, compiled, ends, launched
from checkpoint.errors import ProbeError
from probe.mpi.record import record
from probe.mpi.recording import Recording
from probe.mpi.replay import alone
from probe.mpi.trace import read_calls

Record = dict[str, Any]

TURNS = 5
"""Of plain run, run recorded without contents, run recorded with them, and all ranks alone at once."""

PLATFORM = "node.xml"
_SECONDS = 3600
_PROBE = "import sys; from probe.cli.main import main; main()"


@dataclass(frozen=True)
class Ends:
    """Seconds of a run from MPI_Init to MPI_Finalize: wall of the slowest rank, CPU of each."""

    wall: float
    cpu: tuple[float, ...]


def due(names: Sequence[str], folder: Path, again: bool) -> list[str]:
    """Programs without a record, or whose record is a failure."""
    return [name for name in names if again or "failure" in _read(folder / f"{name}.json", {"failure": ""})]


def load_all(names: Sequence[str], folder: Path) -> list[Record]:
    """The records there are, in the order of the names."""
    return [found for name in names if (found := _read(folder / f"{name}.json", {}))]


def _read(path: Path, otherwise: Record) -> Record:
    found: Record = json.loads(path.read_text()) if path.exists() else otherwise
    return found


def measure(names: Sequence[str], folder: Path, say: Callable[[str], None], turns: int = TURNS) -> Iterator[Record]:
    """The records of these programs, each on disk when it is yielded."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        say(f"bench: {name}")
        begun, made = time.monotonic(), {"name": name, "date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0]}
        try:
            with _work_folder(folder, name) as place:
                program = compiled(name, place)
                made |= by_turns(program, ARGUMENTS[name], place, turns)
                made |= predicted(program, ARGUMENTS[name], place, folder / PLATFORM, turns)
        except (ProbeError, OSError, ValueError, subprocess.SubprocessError) as error:
            made["failure"] = f"{type(error).__name__}: {error}"
        made["bench_seconds"] = time.monotonic() - begun
        partial = folder / f"{name}.partial"
        partial.write_text(json.dumps(made, indent=1) + "\n")
        partial.replace(folder / f"{name}.json")
        yield made


@contextmanager
def _work_folder(folder: Path, name: str) -> Iterator[Path]:
    """A fresh folder, which goes away."""
    place = (folder / f"{name}.work").absolute()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place)


def by_turns(program: Path, arguments: tuple[str, ...], place: Path, turns: int) -> Record:
    """Walls of plain and recorded runs, computing and CPU time alone of each rank, of so many turns.

    The last recording with contents stays in `place`, as `recording`.
    """
    library, command = ends(place), launched(program, arguments)
    made: Record = {key: [] for key in ("plain", "recorded", "contents", "computing", "alone")}
    for turn in range(turns):
        made["plain"].append(plain(command, library, place).wall)
        for kept, key in (((), "recorded"), (None, "contents")):
            shutil.rmtree(place / "recording", ignore_errors=True)
            with _ended(library, place / f"{key}-{turn}") as given, _environment(given):
                recording = record(command, place / "recording", ranks=kept)
            made[key].append(_ends(place / f"{key}-{turn}").wall)
            if key == "recorded":
                made["computing"].append([read_calls(recording.folder, n.rank).computing for n in recording.ranks])
        made["alone"].append(filled(recording, library, place / f"alone-{turn}"))
    made["calls"] = sum(len(read_calls(recording.folder, n.rank).calls) for n in recording.ranks)
    made["answers"] = sum(path.stat().st_size for path in recording.folder.glob("inbox.*"))
    return made


def plain(command: Sequence[str], library: Path, place: Path) -> Ends:
    """One run as it is."""
    folder = place / "plain"
    shutil.rmtree(folder, ignore_errors=True)
    with _ended(library, folder) as given:
        subprocess.run(command, cwd=place, env={**os.environ, **_ROOT, **given}, check=True, timeout=_SECONDS)
    return _ends(folder)


def filled(recording: Recording, library: Path, folder: Path) -> list[float]:
    """CPU seconds of each rank alone, all of them at once, each on a processor of its own."""
    processors = sorted(os.sched_getaffinity(0))
    running = []
    with _ended(library, folder) as given:
        for run in recording.ranks:
            started = alone(recording, run.rank)
            own = {**started.environment, "LD_PRELOAD": f"{library} {started.environment['LD_PRELOAD']}"}
            own["PROBE_MPI_ENDS"] = f"{given['PROBE_MPI_ENDS']}/{run.rank}"
            Path(own["PROBE_MPI_ENDS"]).mkdir()
            words = ["taskset", "-c", str(processors[run.rank % len(processors)]), *started.command]
            running.append(subprocess.Popen(words, cwd=started.run.folder, env={**os.environ, **own}))
        try:
            statuses = [one.wait(_SECONDS) for one in running]
        finally:
            for one in running:
                one.kill()
                one.wait()
    if any(statuses):
        raise ValueError(f"ranks alone ended with {statuses}")
    return [_ends(folder / str(run.rank)).cpu[0] for run in recording.ranks]


def predicted(program: Path, arguments: tuple[str, ...], place: Path, platform: Path, turns: int) -> Record:
    """A probe of the last recording, its prediction on this node, and plain runs before and after."""
    library, command = ends(place), launched(program, arguments)
    if not platform.exists():
        probe("net", "--json", "-o", str(platform), "--", "mpirun.openmpi", "--use-hwthread-cpus", "-n", "2")
    before = [plain(command, library, place).wall for _ in range(turns // 2)]
    built = probe("build", "-q", "--json", "-o", str(place / "one.mpiprobe"), str(place / "recording"))
    told = probe(
        "run", "-q", "--json", "--platform", str(platform), "--ranks-per-node", "2", str(place / "one.mpiprobe")
    )
    after = [plain(command, library, place).wall for _ in range(turns - turns // 2)]
    errors = [one["error"] for one in built["clusters"] if one["error"] is not None]
    return {
        "walls": before + after, "prediction": told["prediction"], "warnings": told["warnings"],
        "clusters": len(built["clusters"]), "cluster_errors": errors,
    }  # fmt: skip


def probe(*words: str) -> Record:
    """What `probe mpi` answers in JSON. Raises ValueError with what it said."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, "mpi", *words], env={**os.environ, **_ROOT}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ValueError(f"probe mpi {words[0]}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
    found: Record = json.loads(done.stdout)
    return found


_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@contextmanager
def _ended(library: Path, folder: Path) -> Iterator[dict[str, str]]:
    """What a run is told, so that its ranks leave their times in the new folder."""
    folder.mkdir()
    yield {"LD_PRELOAD": str(library), "PROBE_MPI_ENDS": str(folder)}


@contextmanager
def _environment(given: Mapping[str, str]) -> Iterator[None]:
    """These variables, and those that let root start ranks, for what is run within."""
    before = dict(os.environ)
    os.environ.update({**_ROOT, **given})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _ends(folder: Path) -> Ends:
    found = [tuple(map(float, path.read_text().split())) for path in folder.iterdir() if path.is_file()]
    if not found:
        raise ValueError(f"{folder}: no rank left its times")
    return Ends(max(wall for wall, _ in found), tuple(cpu for _, cpu in found))


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Median over median."""
    return statistics.median(over) / statistics.median(under)
