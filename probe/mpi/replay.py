# SPDX-License-Identifier: Apache-2.0
"""Replay one recorded rank alone: an ordinary process, with recorded answers in place of its MPI library."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from checkpoint.errors import Diverged, ProbeFileDamaged, ProgramFailed
from probe.mpi.libraries import environment, programs_in, replacements
from probe.mpi.parts import Inbox, check_inbox
from probe.mpi.recording import RankRun, Recording, refuse_changed

LEFT_STATUS = 70
"""Exit status of a rank that the replayer ended."""


@dataclass(frozen=True)
class Replay:
    """A rank that ran alone. sent: messages that were compared with those recorded; all were equal.

    status: its exit status. answers: calls that the recording answered. cpu: seconds of CPU time, whole.
    """

    rank: int
    status: int
    seconds: float
    answers: int
    sent: int
    cpu: float


@dataclass(frozen=True)
class Alone:
    """How a rank is started alone: its words, the folder it runs in, what is added to the environment."""

    run: RankRun
    inbox: Inbox
    environment: dict[str, str]

    @property
    def command(self) -> list[str]:
        return [self.run.program, *self.run.arguments[1:]]


def alone(recording: Recording, rank: int) -> Alone:
    """How to start one rank alone, all of its recording checked. Raises what `replay` raises before it runs."""
    run = recording.rank(rank)
    refuse_changed(recording, run)
    inbox = check_inbox(recording.folder, rank)
    if inbox.ranks != len(recording.ranks):
        raise ProbeFileDamaged(
            f"{recording.folder}/inbox.{rank}: was recorded as one of {inbox.ranks}, not of {len(recording.ranks)}"
        )
    mpi = programs_in([run.program])[0][1]
    place = f"{recording.folder.resolve()}/inbox.{rank}"
    given = environment(replacements(mpi, recording.compiler))
    return Alone(run, inbox, {**given, **_threads(run), "PROBE_MPI_INBOX": place})


def _threads(run: RankRun) -> dict[str, str]:
    """OpenMP would take a thread for each processor, where the launcher gave the rank fewer."""
    return {"OMP_NUM_THREADS": str(run.threads)} if run.threads and "OMP_NUM_THREADS" not in os.environ else {}


def replay(recording: Recording, rank: int, *, quiet: bool = False) -> Replay:
    """Run one rank alone in the folder where it ran, and compare all that it sends with what was sent.

    It prints where this process prints; quiet: nowhere. Raises Diverged: the rank makes other calls, or
    sends other data. Raises ProgramFailed, ProgramUnsupported, ProbeFileDamaged, ToolMissing, StorageError.
    """
    started = alone(recording, rank)
    with tempfile.TemporaryDirectory(prefix="probe-mpi-") as made:
        summary = Path(made) / "summary"
        orders = {**started.environment, "PROBE_MPI_CHECK": "1", "PROBE_MPI_SUMMARY": str(summary)}
        begun, used = time.monotonic(), _children_seconds()
        try:
            done = subprocess.run(
                started.command, cwd=started.run.folder, env={**os.environ, **orders}, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if quiet else None, stderr=subprocess.PIPE, check=False,
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
        calls, sent, differing, first = map(int, summary.read_text().split())
    if differing:
        raise Diverged(
            f"rank {rank} alone sends other data in {differing} of {sent} messages, the first in call {first}: it does "
            "not repeat itself (time, random numbers, uninitialised memory?)"
        )
    return Replay(rank, done.returncode, seconds, calls, sent, cpu)


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
