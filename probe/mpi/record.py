# SPDX-License-Identifier: Apache-2.0
"""Record an MPI program: its own launcher runs it, with the recorder before its MPI library."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoint.errors import ProbeFileDamaged, ProgramFailed, ProgramNotRunnable, ProgramUnsupported
from checkpoint.made_files import refuse_present, remove_made
from probe.mpi.gathering import carried, gathering_seconds, printed_reason, put_token
from probe.mpi.library import launcher
from probe.mpi.library.compiling import compiler_for, environment, recorder
from probe.mpi.library.found import Mpi, joined, programs_in
from probe.mpi.library.loaded import loaded_by
from probe.mpi.parts import check_inbox
from probe.mpi.recording import RankRun, Recording, digest_of, write_recording
from probe.mpi.surroundings import surroundings_of, write_surroundings
from probe.mpi.trace import read_calls
from probe.pipeline.runs.given_files import state_of, states_of
from reducer.output_file import make_folder

MOST_INBOX = 8 * 10**9
"""Bytes of a rank's answers, unless more are allowed."""

PRINTED = "printed"
_REFUSED_STATUS = 71
_TAIL = 1500
_MOST_LEFT = 10_000
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
    makes: Sequence[str] = (),
) -> Recording:
    """Run `command`, a launcher with a program, and record it into a new folder, which goes away on failure.

    ranks: whose answers are kept; None: all. gather: nodes share no folder with this one. makes: patterns of files in
    this folder that must not be there, and that the recorded run begins without. Raises ProgramUnsupported,
    ProgramNotRunnable, ProgramFailed, ProbeFileDamaged, ToolMissing, StorageError, ProbeError.
    """
    programs = programs_in(command)
    refuse_present(str(Path.cwd()), makes)
    make_folder(folder)
    try:
        there, given_files = _names(), states_of(command, Path.cwd())
        if programs:
            mpi = joined([theirs for _, theirs in programs])
        else:
            mpi = _started_library(command, folder, gather)
            remove_made(str(Path.cwd()), makes)
        used = compiler_for(mpi, compiler)
        library = recorder(mpi, used)
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
        made = _recording(
            _Launch(tuple(command), used, mpi, library, given), folder, seconds,
            {str(program) for program, _ in programs} if gather else None,
        )  # fmt: skip
        made = replace(
            made, started=str(Path.cwd()), left=tuple(sorted(_names() - there)[:_MOST_LEFT]),
            given={str(path): state for path, state in given_files.items() if state_of(path) == state},
        )  # fmt: skip
        write_recording(made)
        return made
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _names() -> set[str]:
    return {path.name for path in Path.cwd().iterdir()}


def _started_library(command: Sequence[str], folder: Path, gather: bool) -> Mpi:
    """The MPI library of a program that no word of the command is: it starts as far as its first call of MPI."""
    if gather:
        raise ProgramNotRunnable(
            f"no word of `{' '.join(command)}` is a program that uses MPI's shared library, which --gather brings the "
            "recorder to; record on nodes that share the folder, without --gather"
        )
    return loaded_by(command, folder)


@dataclass(frozen=True)
class _Launch:
    """What was started: the command, compiler, MPI library, recorder, and the environment that the launcher had."""

    command: tuple[str, ...]
    compiler: str
    mpi: Mpi
    recorder: Path
    environment: Mapping[str, str]


def _orders(folder: Path, ranks: Sequence[int] | None, most_inbox: int) -> dict[str, str]:
    orders = {"PROBE_MPI_RECORD": str(folder.resolve()), "PROBE_MPI_MOST": str(most_inbox)}
    if ranks is not None:
        orders["PROBE_MPI_RANKS"] = "".join(f"{rank}," for rank in ranks)
    return orders


def _run(command: Sequence[str], given: dict[str, str], printed: Path) -> int:
    """The launcher's exit status. Its whole group ends with us."""
    with printed.open("wb") as out, launcher.started(command, given, out) as process:
        try:
            return process.wait()
        except BaseException:
            launcher.end(process)
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


def _recording(launch: _Launch, folder: Path, seconds: float, sent: Set[str] | None) -> Recording:
    """sent: programs of the command, which went there with it; None: ranks name any, as they see this very folder."""
    paths = sorted(folder.glob("rank.*"), key=_number)
    found = [_rank(path) for path in paths]
    ranks = [one.run for one in found]
    if not ranks:
        raise ProgramFailed(
            f"{' '.join(launch.command)}: no rank called MPI_Init under the recorder (is LD_PRELOAD removed?); "
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
            f"{' '.join(launch.command)}: {len(ranks)} of {all_ranks} ranks left a recording, rank {missing[0]} did "
            f"not: all nodes must share {folder.resolve()}, and LD_PRELOAD must reach all ranks (or record with "
            "--gather)"
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
    for one in found:
        # Of another host it is the environment of another user's session, too.
        theirs = one.environment if one.run.host in here else ()
        if one.run.kept:
            write_surroundings(folder, one.run.rank, surroundings_of(theirs, launch.environment, launch.recorder))
    processors = len(os.sched_getaffinity(0)) if {run.host for run in ranks} <= here else 0
    return Recording(
        folder, launch.command, found[0].library, launch.compiler, seconds, digests, tuple(ranks), processors,
        {name: str(path) for name, path in launch.mpi.libraries},
    )  # fmt: skip


@dataclass(frozen=True)
class _Described:
    """What the recorder wrote of a rank. digest: SHA-256 of its program on its node; empty: not known.

    environment: what it began with, NAME=VALUE.
    """

    run: RankRun
    library: str
    digest: str
    environment: tuple[str, ...]


def _rank(path: Path) -> _Described:
    words = path.read_bytes().split(b"\0")
    try:
        program, folder, library, kept, host, digest, count, *rest = map(os.fsdecode, words)
        arguments, theirs = rest[: int(count)], rest[int(count) : -1]
    except ValueError as error:
        raise ProbeFileDamaged(f"{path}: does not describe a rank; record the program again") from error
    return _Described(
        RankRun(_number(path), program, folder, tuple(arguments), kept == "1", host=host), library, digest,
        tuple(theirs),
    )  # fmt: skip


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
