# SPDX-License-Identifier: Apache-2.0
"""Recording of an MPI program: a folder with what every rank called and was answered, and a file that describes it."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from checkpoint import strict_json
from checkpoint.errors import Diverged, ProbeError, ProbeFileDamaged, ProgramUnsupported, StorageError
from checkpoint.foreign_file import finite, read_foreign
from probe.mpi.parts import MOST_RANKS
from probe.pipeline.runs.given_files import state_of

DESCRIPTION = "recording.json"
VERSION = 2
_MOST_PROGRAM = 16 << 30
_PIECE = 1 << 20


@dataclass(frozen=True)
class RankRun:
    """What one rank ran. kept: its answers are in the recording, so that it can be replayed.

    threads: most that the program had at a time, its first included. processors: for them. 0: not known.
    host: where it ran; empty: not known. Times of ranks on different hosts are not compared.
    """

    rank: int
    program: str
    folder: str
    arguments: tuple[str, ...]
    kept: bool
    threads: int = 0
    processors: int = 0
    host: str = ""


@dataclass(frozen=True)
class Recording:
    """A recording. digests: SHA-256 of each program by its path. seconds: wall time of the recorded run.

    library: what the MPI library says of itself. compiler: the command that compiled the recorder. processors: that
    all ranks had together; 0: not known. libraries: path of each of MPI's by the name that the loader knows.
    started: the folder in which the launcher was started. left: names of what the run has put there. given: the files
    there that the command names, and the run did not change, with what is in each (given_files.state_of).
    """

    folder: Path
    command: tuple[str, ...]
    library: str
    compiler: str
    seconds: float
    digests: dict[str, str]
    ranks: tuple[RankRun, ...]
    processors: int = 0
    libraries: dict[str, str] = field(default_factory=dict)
    started: str = ""
    left: tuple[str, ...] = ()
    given: dict[str, str] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Of the ranks, each once."""
        return tuple(dict.fromkeys(one.host for one in self.ranks if one.host))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the run did to the recorded times."""
        return (*self._shared(), *self._bound())

    def _shared(self) -> Iterator[str]:
        if 0 < self.processors < len(self.ranks):
            yield (
                f"{len(self.ranks)} ranks shared {self.processors} processors when they were recorded: waiting ranks "
                "took time from the others, and computing times are too long"
            )
        elif 0 < self.processors < (threads := sum(one.threads for one in self.ranks)):
            yield (
                f"{threads} threads of {len(self.ranks)} ranks shared {self.processors} processors when they were "
                "recorded: computing times are too long"
            )

    def _bound(self) -> Iterator[str]:
        """Launchers bind ranks to one processor unless they are told otherwise."""
        bound = [one for one in self.ranks if 0 < one.processors < one.threads]
        if bound:
            yield (
                f"rank {bound[0].rank} had {bound[0].processors} processors for its {bound[0].threads} threads when it "
                "was recorded: computing times are too long (mpirun --bind-to none?)"
            )

    def rank(self, number: int) -> RankRun:
        """The rank of that number, which can be replayed. Raises ProbeError."""
        if not 0 <= number < len(self.ranks):
            raise ProbeError(f"{self.folder}: recorded with {len(self.ranks)} ranks, asked for rank {number}")
        found = self.ranks[number]
        if not found.kept:
            kept = ", ".join(str(one.rank) for one in self.ranks if one.kept) or "none"
            raise ProgramUnsupported(
                f"{self.folder}: rank {number} was recorded without its answers (with them: {kept}); record it again "
                f"with --rank {number}"
            )
        return found


def write_recording(recording: Recording) -> None:
    """Write the description into the recording's folder. Raises StorageError."""
    described = {"format_version": VERSION, **asdict(recording)}
    del described["folder"]
    try:
        (recording.folder / DESCRIPTION).write_text(strict_json.dumps(described, indent=1) + "\n")
    except OSError as error:
        raise StorageError(f"{recording.folder}: cannot be written ({error.strerror})") from error


def read_recording(folder: Path) -> Recording:
    """The recording in a folder. Raises ProbeFileDamaged and StorageError."""
    path = folder / DESCRIPTION
    if not path.exists():
        raise StorageError(f"{folder}: is no recording of `probe mpi record` (it has no {DESCRIPTION})")
    try:
        said = strict_json.loads(read_foreign(path))
    except ValueError as error:
        raise ProbeFileDamaged(f"{path}: is not JSON ({error})") from error
    version = said.get("format_version") if isinstance(said, dict) else None
    if version != VERSION:
        raise ProbeFileDamaged(f"{path}: has version {str(version)[:20]}; this probe reads version {VERSION}")
    try:
        return _checked(folder, said)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ProbeFileDamaged(f"{path}: describes no recording ({str(error)[:80]})") from error


def _checked(folder: Path, said: dict[str, Any]) -> Recording:
    ranks = tuple(_rank(number, one) for number, one in enumerate(_listed(said["ranks"])))
    if not 0 < len(ranks) <= MOST_RANKS:
        raise ValueError(f"{len(ranks)} ranks")
    seconds = finite(said["seconds"])
    if seconds < 0:
        raise ValueError("seconds")
    digests, libraries = _texts(said["digests"]), _texts(said.get("libraries", {}))
    if any(one.program not in digests for one in ranks):
        raise ValueError("a program without its digest")
    return Recording(
        folder, tuple(map(_text, _listed(said["command"]))), _text(said["library"]), _text(said["compiler"]),
        seconds, digests, ranks, _count("processors", said.get("processors", 0)), libraries,
        _text(said.get("started", "")), tuple(map(_text, _listed(said.get("left", [])))),
        _texts(said.get("given", {})),
    )  # fmt: skip


def _rank(number: int, said: dict[str, Any]) -> RankRun:
    if said["rank"] != number or not isinstance(said["kept"], bool):
        raise ValueError(f"rank {number}")
    arguments = tuple(map(_text, _listed(said["arguments"])))
    if not arguments:
        raise ValueError(f"rank {number} has no arguments")
    threads, processors = (_count(name, said.get(name, 0)) for name in ("threads", "processors"))
    return RankRun(
        number, _text(said["program"]), _text(said["folder"]), arguments, said["kept"], threads, processors,
        _text(said.get("host", "")),
    )  # fmt: skip


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 20:
        raise ValueError(name)
    return value


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{str(value)[:40]!r} is no list")
    return value


def _texts(value: Any) -> dict[str, str]:
    return {_text(name): _text(text) for name, text in value.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{str(value)[:40]!r} is no text")
    return value


def digest_of(program: Path) -> str:
    """SHA-256 of a program: a regular file of at most 16 GiB, read in pieces. Raises StorageError."""
    found = hashlib.sha256()
    try:
        # A pipe that nobody writes to would hold us where it is opened.
        with open(program, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_PROGRAM:
                raise StorageError(f"{program}: is no program: not a regular file, or larger than any")
            while piece := file.read(_PIECE):
                found.update(piece)
    except OSError as error:
        raise StorageError(f"{program}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise StorageError(f"{program}: no file can have this name") from error
    return found.hexdigest()


def refuse_changed(recording: Recording, run: RankRun) -> None:
    """Raises Diverged where a rank's program, or a file that the command names, is not what was recorded."""
    if digest_of(Path(run.program)) != recording.digests[run.program]:
        raise Diverged(f"{run.program}: has changed since it was recorded; record it again")
    for path, state in recording.given.items():
        if state_of(Path(path)) != state:
            raise Diverged(f"{path}: has changed since the program was recorded with it; record it again")
