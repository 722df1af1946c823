# SPDX-License-Identifier: Apache-2.0
"""Record an MPI program: its own launcher runs it, with the recorder before its MPI library."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoint.errors import ProbeFileDamaged, ProgramFailed, ProgramUnsupported
from probe.mpi.gathering import carried, gathering_seconds, printed_reason, put_token
from probe.mpi.libraries import compiler_for, environment, programs_in, recorder
from probe.mpi.parts import check_inbox
from probe.mpi.recording import RankRun, Recording, digest_of, write_recording
from probe.mpi.trace import read_calls
from reducer.output_file import make_folder

MOST_INBOX = 8 * 10**9
"""Bytes of a rank's answers, unless more are allowed."""

PRINTED = "printed"
_REFUSED_STATUS = 71
_TAIL = 600
_OF_THE_NODE = re.compile(r"cannot be (written|read|started)|can(not)? hold|is not there")
"""What ranks say of their node, not of the program."""


def record(
    command: Sequence[str],
    folder: Path,
    *,
    ranks: Sequence[int] | None = None,
    most_inbox: int = MOST_INBOX,
    compiler: str | None = None,
    gather: bool = False,
) -> Recording:
    """Run `command`, a launcher with a program, and record it into a new folder, which goes away on failure.

    ranks: whose answers are kept; None: all. gather: nodes share no folder with this one. Raises ProgramUnsupported,
    ProgramNotRunnable, ProgramFailed, ProbeFileDamaged, ToolMissing, StorageError.
    """
    programs = programs_in(command)
    mpi = programs[0][1]
    used = compiler_for(mpi, compiler)
    library = recorder(mpi, used)
    make_folder(folder)
    try:
        orders = _orders(folder, ranks, most_inbox)
        started, given = tuple(command), {**os.environ, **environment([library]), **orders}
        if gather:
            sent = carried(command, [program for program, _ in programs], library, orders)
            put_token(folder, sent.token)
            started, given = sent.command, dict(os.environ)
        begun = time.monotonic()
        status = _run(started, given, folder / PRINTED)
        seconds = time.monotonic() - begun
        _refuse_failed(command, folder, status)
        if gather:
            seconds -= gathering_seconds(folder)
        made = _recording(command, folder, used, seconds, {str(program) for program, _ in programs} if gather else None)
        write_recording(made)
        return made
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _orders(folder: Path, ranks: Sequence[int] | None, most_inbox: int) -> dict[str, str]:
    orders = {"PROBE_MPI_RECORD": str(folder.resolve()), "PROBE_MPI_MOST": str(most_inbox)}
    if ranks is not None:
        orders["PROBE_MPI_RANKS"] = "".join(f"{rank}," for rank in ranks)
    return orders


def _run(command: Sequence[str], given: dict[str, str], printed: Path) -> int:
    """The launcher's exit status. Its whole group ends with us."""
    with (
        printed.open("wb") as out,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=given, start_new_session=True
        ) as process,
    ):
        try:
            return process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10.0)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def _number(path: Path) -> int:
    return int(path.suffix[1:])


def _refuse_failed(command: Sequence[str], folder: Path, status: int) -> None:
    for rank, said in _said(folder, "refused"):
        raise ProgramUnsupported(f"rank {rank}: {said}")
    for rank, said in _said(folder, "aborted"):
        raise ProgramFailed(f"rank {rank} {said}: nothing was recorded")
    if status:
        printed = (folder / PRINTED).read_bytes()
        if (reason := printed_reason(printed)) is not None:
            who, said = reason
            if said.startswith("called MPI_Abort"):
                raise ProgramFailed(f"{who} {said}: nothing was recorded")
            kind = ProgramFailed if _OF_THE_NODE.search(said) else ProgramUnsupported
            raise kind(f"{who}: {said}")
        raise ProgramFailed(f"{' '.join(command)} ended with status {status}: {_printed_last(folder)}")


def _printed_last(folder: Path) -> str:
    return (folder / PRINTED).read_bytes()[-_TAIL:].decode(errors="replace").strip() or "it printed nothing"


def _said(folder: Path, kind: str) -> list[tuple[int, str]]:
    """The ranks that left a file of this kind, with its text. One that was ended while it wrote says nothing."""
    paths = sorted(folder.glob(f"{kind}.*"), key=_number)
    found = [(_number(path), path.read_text(errors="replace")) for path in paths]
    return [one for one in found if one[1]]


def _recording(
    command: Sequence[str], folder: Path, compiler: str, seconds: float, sent: Set[str] | None
) -> Recording:  # fmt: skip
    """sent: programs of the command, which went there with it; None: ranks name any, as they see this very folder."""
    paths = sorted(folder.glob("rank.*"), key=_number)
    found = [_rank(path) for path in paths]
    ranks = [one.run for one in found]
    if not ranks:
        raise ProgramFailed(
            f"{' '.join(command)}: no rank called MPI_Init under the recorder (is LD_PRELOAD removed?); "
            f"it ended with status 0: {_printed_last(folder)}"
        )
    all_ranks = 0
    for place, run in enumerate(ranks):
        # The calls of one rank at a time are in memory.
        calls = read_calls(folder, run.rank)
        all_ranks = all_ranks or calls.ranks
        ranks[place] = replace(run, threads=1 + calls.own_threads, processors=calls.processors)
    if all_ranks != len(ranks):
        missing = sorted(set(range(all_ranks)) - {run.rank for run in ranks})
        raise ProgramFailed(
            f"{' '.join(command)}: {len(ranks)} of {all_ranks} ranks left a recording, rank {missing[0]} did not: "
            f"all nodes must share {folder.resolve()}, and LD_PRELOAD must reach all ranks (or record with --gather)"
        )
    for run in ranks:
        if run.kept:
            check_inbox(folder, run.rank)
    for path in paths:
        path.unlink()
    if sent is not None:
        _refuse_unnamed(found, sent)
    digests = {program: digest_of(Path(program)) for program in {run.program for run in ranks}}
    _refuse_others(found, digests)
    # Of other hosts nobody knows the processors here.
    here = {os.uname().nodename, os.environ.get("SLURMD_NODENAME")}
    processors = len(os.sched_getaffinity(0)) if {run.host for run in ranks} <= here else 0
    return Recording(folder, tuple(command), found[0].library, compiler, seconds, digests, tuple(ranks), processors)


@dataclass(frozen=True)
class _Described:
    """What the recorder wrote of a rank. digest: SHA-256 of its program on its node; empty: not known."""

    run: RankRun
    library: str
    digest: str


def _rank(path: Path) -> _Described:
    words = path.read_bytes().split(b"\0")
    try:
        program, folder, library, kept, host, digest, *arguments = (
            word.decode(errors="surrogateescape") for word in words
        )
    except ValueError as error:
        raise ProbeFileDamaged(f"{path}: does not describe a rank; record the program again") from error
    return _Described(
        RankRun(_number(path), program, folder, tuple(arguments[:-1]), kept == "1", host=host), library, digest
    )


def _refuse_unnamed(found: Sequence[_Described], programs: Set[str]) -> None:
    """Refuse ranks of nodes that name another file, which is not opened here, or do not know what they ran."""
    for one in found:
        where = f"rank {one.run.rank} on {one.run.host}"
        if one.run.program not in programs:
            raise ProgramUnsupported(
                f"{where} ran {one.run.program or 'a program of no name'}, which is no program of the command: "
                f"each node needs {' and '.join(sorted(programs))} in the same place, without links to elsewhere"
            )
        if not one.digest:
            raise ProgramUnsupported(f"{where} did not say which {one.run.program} it ran (its SHA-256)")


def _refuse_others(found: Sequence[_Described], digests: Mapping[str, str]) -> None:
    """Refuse ranks whose node has another program, or another library, under the same name."""
    for one in found:
        where = f"rank {one.run.rank} on {one.run.host}"
        if one.digest not in ("", digests[one.run.program]):
            raise ProgramUnsupported(f"{where} ran another {one.run.program} than the one here: copy it to all nodes")
        if one.library != found[0].library:
            raise ProgramUnsupported(
                f"{where} has another MPI library ({one.library}) than rank 0 ({found[0].library})"
            )
