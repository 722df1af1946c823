# SPDX-License-Identifier: Apache-2.0
"""Environment of recorded ranks: what their launcher and their wrappers set for each, kept for the rank alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from checkpoint.errors import ProbeFileDamaged
from checkpoint.foreign_file import read_foreign
from reducer.output_file import create_file, storage_errors

_LAUNCHERS = re.compile(r"(OMPI|PMIX?|PMI2|PRTE|ORTE|OPAL|HYD[A-Z]*|MPIR|SRUN|PALS|FLUX)_|MPI_LOCAL")
_OF_RANKS = re.compile(r"(RANK(ID|S)?|SIZE|PROCID|LOCALID|NTASKS|NPROCS)$")
_SHELLS = {"_", "PWD", "OLDPWD", "SHLVL"}
_OURS = "PROBE_MPI_"
_PRELOAD = "LD_PRELOAD"
_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class Surroundings:
    """How a rank's environment differs from its launcher's: variables with other values, and those that are gone."""

    values: dict[str, str]
    removed: tuple[str, ...] = ()


def surroundings_of(entries: Sequence[str], given: Mapping[str, str], recorder: Path) -> Surroundings:
    """The difference between the environments of a rank, NAME=VALUE each, and of its launcher; none without entries.

    Left out are variables of shells, of this project, and of launchers, but for those that tell ranks apart. `recorder`
    is no part of LD_PRELOAD.
    """
    if not entries:
        return Surroundings({})
    theirs = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    if _PRELOAD in theirs:
        theirs[_PRELOAD] = _without(theirs[_PRELOAD], recorder)
    known = {**given, _PRELOAD: _without(given.get(_PRELOAD, ""), recorder)}
    values = {name: value for name, value in theirs.items() if known.get(name) != value and _is_programs(name)}
    removed = [name for name in given if name not in theirs and name != _PRELOAD and _is_programs(name)]
    return Surroundings(values, tuple(removed))


def _is_programs(name: str) -> bool:
    if name in _SHELLS or name.startswith(_OURS):
        return False
    return _OF_RANKS.search(name) is not None or not _LAUNCHERS.match(name)


def _without(preloaded: str, recorder: Path) -> str:
    """The other libraries of LD_PRELOAD; nodes that share no folder have the recorder under a name of their own."""
    own = (str(recorder), "/recorder.so")
    return " ".join(path for path in re.split(r"[ :]+", preloaded) if path and not path.endswith(own))


def write_surroundings(folder: Path, rank: int, found: Surroundings) -> None:
    """Keep them in a recording, where its owner alone reads them: NAME=VALUE, or a NAME that is gone, each ended by a
    zero. Raises StorageError."""
    path = _path(folder, rank)
    with storage_errors("write", path), ExitStack() as undo:
        with create_file(path, undo) as file:
            entries = [*(f"{name}={value}" for name, value in found.values.items()), *found.removed]
            file.write(b"".join(os.fsencode(entry) + b"\0" for entry in entries))
        undo.pop_all()


def read_surroundings(folder: Path, rank: int) -> Surroundings:
    """Those that were kept. Raises ProbeFileDamaged and StorageError."""
    path = _path(folder, rank)
    entries = os.fsdecode(read_foreign(path, _MOST_BYTES)).split("\0")
    if entries.pop() or not all(entry.partition("=")[0] for entry in entries):
        raise ProbeFileDamaged(f"{path}: is no environment; record the program again")
    values = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    return Surroundings(values, tuple(entry for entry in entries if "=" not in entry))


def _path(folder: Path, rank: int) -> Path:
    return folder / f"environment.{rank}"
