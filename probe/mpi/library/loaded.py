# SPDX-License-Identifier: Apache-2.0
"""The MPI library that a command loads where none of its words is linked with one: scripts, wrappers, interpreters."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from checkpoint.compiled import built
from checkpoint.errors import ProgramFailed, ProgramNotRunnable
from checkpoint.foreign_file import read_foreign
from probe.mpi.library import launcher
from probe.mpi.library.compiling import environment
from probe.mpi.library.found import Mpi, mpi_among
from probe.mpi.library.generate import SOURCES

_OPTIONS = ("-shared", "-fPIC", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror")
_MOST_BYTES = 1 << 20
_MOST_PRINTED = 1500
_PAUSE = 0.02


def loaded_by(command: Sequence[str], beside: Path) -> Mpi:
    """The MPI library of the first process that calls MPI. The command is started for it, and ended at that call.

    beside: a folder that all nodes share, for what that process says. A command that never calls MPI runs to its end.
    Raises ProgramNotRunnable, ProgramFailed, ProgramUnsupported, ToolMissing, StorageError.
    """
    finder = built("libprobe_mpi_finder.so", [SOURCES / "finder.c"], _OPTIONS)
    with (
        tempfile.TemporaryDirectory(prefix="loaded-", dir=beside.resolve()) as folder,
        tempfile.TemporaryFile() as printed,
    ):
        given = {**os.environ, **environment([finder]), "PROBE_MPI_FIND": folder}
        told, status = Path(folder), None
        with launcher.started(command, given, printed) as process:
            try:
                while not (found := sorted(told.glob("loaded.*"))) and status is None:
                    status = process.poll()
                    time.sleep(_PAUSE)
            finally:
                launcher.end(process)
            found = found or sorted(told.glob("loaded.*"))
        # Ranks that nobody ended see that it is gone.
        files = [os.fsdecode(name) for name in read_foreign(found[0], _MOST_BYTES).split(b"\0")[:-1]] if found else []
        printed.seek(0)
        said = printed.read()[-_MOST_PRINTED:].decode(errors="replace").strip()
    if not files and status:
        raise ProgramFailed(f"{' '.join(command)} ended with status {status}: {said or 'it printed nothing'}")
    mpi = mpi_among(files[0], map(Path, files)) if files else None
    if mpi is None:
        raise ProgramNotRunnable(
            f"no word of `{' '.join(command)}` is a program that uses MPI's shared library, and nothing that it starts "
            "loads one and calls MPI_Init"
        )
    return mpi
