# SPDX-License-Identifier: Apache-2.0
"""Environment of recorded ranks: what their launcher and their wrappers set for each, kept for the rank alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from checkpoint.errors import ProbeFileDamaged
from checkpoint.foreign_file import read_foreign
from reducer.output_file import create_file, storage_errors

_LAUNCHERS = re.compile(r"(OMPI|PMIX?|PMI2|PRTE|ORTE|OPAL|HYD[A-Z]*|MPIR|MPI|SLURM|SLURMD|SRUN|PALS|FLUX|IPATH)_")
_OF_RANKS = re.compile(r"(RANK(ID|S)?|SIZE|PROCID|LOCALID|NTASKS|NPROCS)$")
_SHELLS = {"_", "PWD", "OLDPWD", "SHLVL"}
_OURS = "PROBE_MPI_"
_PRELOAD = "LD_PRELOAD"
_MOST_BYTES = 4 << 20


def set_for_rank(entries: Iterable[str], given: Mapping[str, str], recorder: Path) -> dict[str, str]:
    """Variables of a rank that its launcher was not given, or with other values: `entries` are NAME=VALUE.

    Left out are those of shells, of this project, and of launchers, but for those that tell ranks apart. `recorder` is
    no part of LD_PRELOAD.
    """
    theirs = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    if _PRELOAD in theirs:
        theirs[_PRELOAD] = _without(theirs[_PRELOAD], recorder)
    known = {**given, _PRELOAD: _without(given.get(_PRELOAD, ""), recorder)}
    return {
        name: value
        for name, value in theirs.items()
        if known.get(name) != value
        and name not in _SHELLS
        and not name.startswith(_OURS)
        and (_OF_RANKS.search(name) or not _LAUNCHERS.match(name))
    }


def _without(preloaded: str, recorder: Path) -> str:
    """The other libraries of LD_PRELOAD; nodes that share no folder have the recorder under a name of their own."""
    own = (str(recorder), "/recorder.so")
    return " ".join(path for path in re.split(r"[ :]+", preloaded) if path and not path.endswith(own))


def write_surroundings(folder: Path, rank: int, variables: Mapping[str, str]) -> None:
    """Keep them in a recording, where its owner alone reads them. Raises StorageError."""
    path = _path(folder, rank)
    with storage_errors("write", path), ExitStack() as undo:
        with create_file(path, undo) as file:
            file.write(b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in variables.items()))
        undo.pop_all()


def read_surroundings(folder: Path, rank: int) -> dict[str, str]:
    """Those that were kept. Raises ProbeFileDamaged and StorageError."""
    path = _path(folder, rank)
    entries = os.fsdecode(read_foreign(path, _MOST_BYTES)).split("\0")
    if entries.pop() or any(entry.find("=") < 1 for entry in entries):
        raise ProbeFileDamaged(f"{path}: is no environment; record the program again")
    return dict(entry.split("=", 1) for entry in entries)


def _path(folder: Path, rank: int) -> Path:
    return folder / f"environment.{rank}"
