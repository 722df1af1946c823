# SPDX-License-Identifier: Apache-2.0
"""Keep the recording beside a probe of an MPI program, and use it again where it is of the same run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from checkpoint.errors import ProbeError, ProbeFileDamaged, StorageError
from checkpoint.made_files import refuse_own
from probe.mpi.library.found import mpi_of
from probe.mpi.parts import check_inbox
from probe.mpi.record import MOST_INBOX, record
from probe.mpi.recording import Recording, read_recording, refuse_changed
from probe.mpi.surroundings import read_surroundings
from probe.mpi.trace import read_calls
from reducer.output_file import storage_errors

PROBE_SUFFIX = ".mpiprobe"
SUFFIX = ".recording"
KEPT = "kept"
"""File that says that a recording was made here, and may be replaced."""


def kept_folder(output: Path) -> Path:
    """Where the recording of a probe is kept: app.recording beside app.mpiprobe."""
    return output.with_name(output.name.removesuffix(PROBE_SUFFIX) + SUFFIX)


def kept_or_recorded(
    command: Sequence[str],
    output: Path,
    *,
    most_inbox: int = MOST_INBOX,
    compiler: str | None = None,
    gather: bool = False,
    makes: Sequence[str] = (),
) -> tuple[Recording, bool]:
    """The recording that is kept for `output`, and True; a new one and False where it is of another run or damaged.

    Another command, folder, program or named compiler is another run, and so is another file that the command names;
    other input files and the environment are not looked at. makes: patterns of files that must not be there before the
    program has run. Raises what `record` raises. Raises StorageError, before anything runs, where something else has
    its name, also another run's recording that was not made here.
    """
    folder = kept_folder(output)
    refuse_own(str(Path.cwd()), makes, (output.absolute(), folder.absolute()))
    if folder.is_symlink():
        raise StorageError(f"{folder}: is a link; move it away, or name another -o")
    if folder.exists():
        found = _found(folder)
        if found is not None and _is_same(found, command, compiler):
            return found, True
        if not (folder / KEPT).is_file():
            raise StorageError(f"{folder}: holds another run, or a damaged one; move it away, or name another -o")
    with ExitStack() as undo:
        with storage_errors("write", folder):
            made = Path(undo.enter_context(_beside(folder)))
        record(command, made / "new", most_inbox=most_inbox, compiler=compiler, gather=gather, makes=makes)
        with storage_errors("write", folder):
            (made / "new" / KEPT).touch()
            _put(made / "new", folder, made / "old")
    return read_recording(folder), False


def _found(folder: Path) -> Recording | None:
    """The recording in the folder; None where it is a damaged one that was made here."""
    try:
        return read_recording(folder)
    except ProbeError as error:
        if (folder / KEPT).is_file():
            return None
        raise StorageError(f"{folder}: exists already and is no recording; move it away, or name another -o") from error


def _beside(folder: Path) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent, ignore_cleanup_errors=True)


def _put(made: Path, folder: Path, old: Path) -> None:
    """Put one folder in the place of another, which is back there on failure."""
    with ExitStack() as undo:
        if folder.exists():
            folder.rename(old)
            undo.callback(old.rename, folder)
        made.rename(folder)
        undo.pop_all()


def _is_same(found: Recording, command: Sequence[str], compiler: str | None) -> bool:
    """Whether it is of the same run, and whole."""
    if list(found.command) != list(command) or compiler not in (None, found.compiler):
        return False
    if not all(run.kept and run.folder == str(Path.cwd()) for run in found.ranks):
        return False
    try:
        for run in {run.program: run for run in found.ranks}.values():
            refuse_changed(found, run)
        for run in found.ranks:
            _refuse_damaged(found, run.rank)
            read_surroundings(found.folder, run.rank)
        mpi_of(found.libraries)
    except ProbeError:
        return False
    return True


def _refuse_damaged(found: Recording, rank: int) -> None:
    ranks = len(found.ranks)
    if check_inbox(found.folder, rank).ranks != ranks or read_calls(found.folder, rank).ranks != ranks:
        raise ProbeFileDamaged(f"{found.folder}: rank {rank} was not recorded as one of {ranks}")
