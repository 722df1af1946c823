# SPDX-License-Identifier: Apache-2.0
"""The MPI programs of tests/programs/mpi, built with either library and recorded."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from small_probe import ROOT

from probe.cli.main import cli
from probe.mpi.record import record
from probe.mpi.recording import Recording

SOURCES = ROOT / "tests" / "programs" / "mpi"
LIBRARIES = ("openmpi", "mpich")


def allow_root(patch: pytest.MonkeyPatch) -> None:
    """Let Open MPI's launcher start programs as root, which it does only for who says so twice."""
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        patch.setenv(name, "1")


def built(name: str, library: str, folder: Path, *options: str) -> Path:
    """The program, compiled into the folder."""
    fortran = SOURCES / f"{name}.f90"
    made = folder / name
    if fortran.exists():
        command = [f"mpif90.{library}", "-O1", "-fallow-argument-mismatch", "-o", made, fortran]
    else:
        command = [f"mpicc.{library}", "-O1", "-Wall", "-Wextra", "-Wno-stringop-overflow", "-Werror", "-o", made]
        command += [SOURCES / f"{name}.c", "-lm"]
    subprocess.run([*command, *options], check=True, cwd=folder)
    return made


def launched(library: str, ranks: int, program: Path, *arguments: str) -> list[str]:
    """The command line that a user types."""
    more = ["--oversubscribe"] if library == "openmpi" else []
    return [f"mpirun.{library}", *more, "-n", str(ranks), str(program), *arguments]


def recorded(name: str, library: str, ranks: int, folder: Path, arguments: Sequence[str] = ()) -> Recording:
    """A recording of the program, made in the folder, in which the ranks leave their results."""
    return record(launched(library, ranks, built(name, library, folder), *arguments), folder / "recording")


def results(name: str, folder: Path, ranks: int) -> list[bytes]:
    """What the ranks found; the files are gone afterwards."""
    paths = [folder / f"{name}.{rank}" for rank in range(ranks)]
    found = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    return found


def printed(*words: str | Path) -> Any:
    """What `probe mpi` says in JSON."""
    done = CliRunner().invoke(cli, ["mpi", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)
