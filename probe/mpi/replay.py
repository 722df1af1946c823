# SPDX-License-Identifier: Apache-2.0
"""Replay one recorded rank alone: an ordinary process, with recorded answers in place of its MPI library."""

from __future__ import annotations

import glob
import os
import resource
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from checkpoint.errors import Diverged, ProbeError, ProbeFileDamaged, ProgramFailed
from checkpoint.made_files import hint_of, remove_made
from probe.mpi.library.compiling import environment, replacements
from probe.mpi.library.found import mpi_of
from probe.mpi.parts import Inbox, check_inbox
from probe.mpi.recording import RankRun, Recording, refuse_changed
from probe.mpi.surroundings import read_surroundings

LEFT_STATUS = 70
"""Exit status of a rank that the replayer ended."""

MOST_DIFFERING = 0.05
"""Share of the bytes that are compared which a rank may send in messages with other data: those of times and the like,
in many small messages. What a rank computes from other data it sends, too."""


@dataclass(frozen=True)
class Replay:
    """A rank that ran alone. sent: messages that were compared with those recorded, of which `differing` are others.

    status: its exit status. first: call that sent the first of those. answers: calls that the recording answered.
    cpu: seconds of CPU time, whole.
    """

    rank: int
    status: int
    seconds: float
    answers: int
    sent: int
    cpu: float
    differing: int = 0
    first: int = 0


@dataclass(frozen=True)
class Alone:
    """How a rank is started alone: its words, the folder it runs in, its whole environment."""

    run: RankRun
    inbox: Inbox
    environment: dict[str, str]

    @property
    def command(self) -> list[str]:
        return [_name_of(self.run, self.environment.get("PATH")), *self.run.arguments[1:]]


def alone(recording: Recording, rank: int) -> Alone:
    """How to start one rank alone, all of its recording checked. Raises what `replay` raises before it runs."""
    run = recording.rank(rank)
    refuse_changed(recording, run)
    inbox = check_inbox(recording.folder, rank)
    if inbox.ranks != len(recording.ranks):
        raise ProbeFileDamaged(
            f"{recording.folder}/inbox.{rank}: was recorded as one of {inbox.ranks}, not of {len(recording.ranks)}"
        )
    theirs = read_surroundings(recording.folder, rank)
    place = f"{recording.folder.resolve()}/inbox.{rank}"
    given = environment(replacements(mpi_of(recording.libraries), recording.compiler), theirs.values)
    around = {**{name: value for name, value in os.environ.items() if name not in theirs.removed}, **_threads(run)}
    return Alone(run, inbox, {**around, **theirs.values, **given, "PROBE_MPI_INBOX": place})


def _name_of(run: RankRun, search: str | None) -> str:
    """The rank's program by the name that it was called, where that is this program: interpreters find their modules
    by it. search: its PATH."""
    called = run.arguments[0]
    path = shutil.which(called, path=search) if os.sep not in called else str(Path(run.folder, called))
    with suppress(OSError):
        if path is not None and Path(path).samefile(run.program):
            return path
    return run.program


def _threads(run: RankRun) -> dict[str, str]:
    """OpenMP would take a thread for each processor, where the launcher gave the rank fewer."""
    return {"OMP_NUM_THREADS": str(run.threads)} if run.threads and "OMP_NUM_THREADS" not in os.environ else {}


def replay(recording: Recording, rank: int, *, quiet: bool = False, makes: Sequence[str] = ()) -> Replay:
    """Run one rank alone in the folder where it ran, and compare all that it sends with what was sent.

    It prints where this process prints; quiet: nowhere. makes: patterns of files that the recorded run left, which are
    removed first. Raises Diverged: the rank makes other calls, or more than
    MOST_DIFFERING of its bytes are in messages with other data. Raises ProgramFailed, ProgramUnsupported,
    ProbeFileDamaged, ToolMissing, StorageError.
    """
    started = alone(recording, rank)
    remove_made(started.run.folder, left_files(recording, started.run, makes))
    with _left_named(recording, makes):
        return _run_alone(started, quiet)


def left_files(recording: Recording, run: RankRun, makes: Sequence[str]) -> tuple[str, ...]:
    """Patterns of what the recorded run has left in the folder of its launcher, of that which `makes` names: nothing
    else is removed there. Raises ProbeError where the rank runs in another folder."""
    if makes and run.folder != recording.started:
        raise ProbeError(
            f"--makes: rank {run.rank} runs in {run.folder}, and the program was recorded in {recording.started}: let "
            "its wrapper remove the files"
        )
    return tuple(glob.escape(name) for name in recording.left if any(fnmatchcase(name, one) for one in makes))


@contextmanager
def _left_named(recording: Recording, makes: Sequence[str]) -> Iterator[None]:
    """Where the rank alone goes other ways, name the files that the recorded run left: it may not expect them."""
    try:
        yield
    except (Diverged, ProgramFailed) as error:
        if hint := hint_of(recording.left, makes):
            error.args = (f"{str(error).removesuffix('.')}{hint}", *error.args[1:])
        raise


def _run_alone(started: Alone, quiet: bool) -> Replay:
    rank = started.run.rank
    with tempfile.TemporaryDirectory(prefix="probe-mpi-") as made, _nowhere() as nowhere:
        summary = Path(made) / "summary"
        orders = {**started.environment, "PROBE_MPI_CHECK": "1", "PROBE_MPI_SUMMARY": str(summary)}
        begun, used = time.monotonic(), _children_seconds()
        try:
            done = subprocess.run(
                started.command, cwd=started.run.folder, env=orders, stdin=subprocess.DEVNULL,
                stdout=nowhere if quiet else None, stderr=subprocess.PIPE, check=False,
            )  # fmt: skip
        except OSError as error:
            raise ProgramFailed(f"{started.run.program}: cannot be started ({error.strerror})") from error
        seconds, cpu = time.monotonic() - begun, _children_seconds() - used
        told = done.stderr.decode(errors="replace")
        _refuse_left(rank, done.returncode, told)
        if not quiet:
            os.write(2, done.stderr)
        if not summary.is_file():
            raise ProgramFailed(f"rank {rank} ended with status {done.returncode} before MPI_Finalize: {told[-300:]}")
        calls, sent, differing, first, all_bytes, other_bytes = map(int, summary.read_text().split())
    if other_bytes > MOST_DIFFERING * all_bytes:
        raise Diverged(
            f"rank {rank} alone sends other data in {differing} of {sent} messages, the first in call {first}: it does "
            "not repeat itself (time, random numbers, uninitialised memory?)"
        )
    return Replay(rank, done.returncode, seconds, calls, sent, cpu, differing, first)


@contextmanager
def _nowhere() -> Iterator[int]:
    """A pipe that is read and forgotten. Fortran programs open /dev/null, and fail where it is their output already."""
    source, sink = os.pipe()
    threading.Thread(target=_drain, args=(source,), daemon=True).start()
    try:
        yield sink
    finally:
        os.close(sink)


def _drain(source: int) -> None:
    with open(source, "rb", buffering=0) as file:
        while file.read(1 << 16):
            pass


def _children_seconds() -> float:
    """CPU time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _refuse_left(rank: int, status: int, told: str) -> None:
    said = [line.removeprefix("probe: ") for line in told.splitlines() if line.startswith("probe: call ")]
    if status == LEFT_STATUS and said:
        raise Diverged(f"rank {rank}, {said[-1]}")
    if status < 0:
        raise ProgramFailed(f"rank {rank} alone was killed by signal {-status}")
