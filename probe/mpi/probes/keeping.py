# SPDX-License-Identifier: Apache-2.0
"""Keep the recording beside a probe of an MPI program, and use it again where it is of the same run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from checkpoint.errors import ProbeError, StorageError
from probe.mpi.record import MOST_INBOX, record
from probe.mpi.recording import Recording, read_recording, refuse_changed

SUFFIX = ".recording"


def kept_folder(output: Path) -> Path:
    """Where the recording of a probe is kept: app.recording beside app.mpiprobe."""
    return output.with_suffix(SUFFIX)


def kept_or_recorded(
    command: Sequence[str], output: Path, *, most_inbox: int = MOST_INBOX, compiler: str | None = None
) -> tuple[Recording, bool]:
    """The recording that is kept for `output`, and True; a new one and False where it is of another run or damaged.

    Another command, folder or program is another run; input files and the environment are not looked at. Raises what
    `record` raises, and StorageError where something else than a recording has its name.
    """
    folder = kept_folder(output)
    if not folder.exists():
        return record(command, folder, most_inbox=most_inbox, compiler=compiler), False
    try:
        found = read_recording(folder)
    except ProbeError as error:
        raise StorageError(f"{folder}: exists already and is no recording; move it away, or name another -o") from error
    if _is_same(found, command):
        return found, True
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    made = record(command, fresh, most_inbox=most_inbox, compiler=compiler)
    shutil.rmtree(folder)
    made.folder.rename(folder)
    return read_recording(folder), False


def _is_same(found: Recording, command: Sequence[str]) -> bool:
    if list(found.command) != list(command) or not all(run.kept for run in found.ranks):
        return False
    try:
        for run in found.ranks:
            refuse_changed(found, run)
    except ProbeError:
        return False
    return all(run.folder == str(Path.cwd()) for run in found.ranks)
