# SPDX-License-Identifier: Apache-2.0
"""The MPI programs of tests/programs/mpi, at sizes that take some seconds on two ranks."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCES = Path(__file__).parents[3] / "tests" / "programs" / "mpi"

ARGUMENTS = {
    "halo": ("1600", "900"),
    "cg": ("2000000", "400"),
    "fft": ("1024", "40"),
    "pipeline": ("600", "1200"),
    "workers": ("100", "500000"),
    "ocean": ("120000",),
}
"""Of each program: what makes it take some seconds."""

NAMES = tuple(ARGUMENTS)

PACKAGES = ("gfortran", "libopenmpi-dev", "libsimgrid-dev", "openmpi-bin")


def compiled(name: str, folder: Path) -> Path:
    """The program, built for Open MPI into the folder."""
    fortran, made = SOURCES / f"{name}.f90", folder / name
    if fortran.exists():
        command = ["mpif90.openmpi", "-O2", "-fallow-argument-mismatch", "-o", made, fortran]
    else:
        command = ["mpicc.openmpi", "-O2", "-o", made, SOURCES / f"{name}.c", "-lm"]
    subprocess.run([str(word) for word in command], check=True, cwd=folder)
    return made


def ends(folder: Path) -> Path:
    """The library that tells how long a rank ran from MPI_Init to MPI_Finalize."""
    made = folder / "ends.so"
    source = Path(__file__).with_name("ends.c")
    options = ("-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror")
    subprocess.run(["cc", *options, "-o", str(made), str(source), "-ldl"], check=True)
    return made


def launched(program: Path, arguments: tuple[str, ...]) -> list[str]:
    """The command of two ranks, which leave their results beside the program."""
    where = ["--wdir", str(program.parent)]
    return ["mpirun.openmpi", "--use-hwthread-cpus", *where, "-n", "2", str(program), *arguments]
