# SPDX-License-Identifier: Apache-2.0
"""Notice that a build's runs change the files that their command line names, or leave others: runs may read them.

`optipng PICTURE` and `gzip FILE` work in place: no run repeats another. A solver that leaves where it got to begins
there the next time: all runs but the first are alike. Nothing is put back: who changed or made a file cannot be told,
and it may have been its owner. Only what its user has named is removed before each run (checkpoint/made_files.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from checkpoint.errors import Diverged, ProgramFailed
from checkpoint.made_files import hint_of
from probe.node.files import file_sha256

LARGEST_READ = 64 << 20
"""Bytes of a file up to which all of it is compared, else its size and the time of its last change."""

MOST_NAMES = 20_000
"""Of a folder in which new files are looked for."""


@dataclass(frozen=True)
class GivenFiles:
    """The files that a command line names. `states`: what was in each. `folder`: where the program runs; `there`: the
    names that were in it, None where these are more than MOST_NAMES."""

    states: Mapping[Path, str] = field(default_factory=dict)
    folder: Path = Path("/")
    there: frozenset[str] | None = None

    def changed(self) -> list[Path]:
        """Those that are no longer so."""
        return [path for path, state in self.states.items() if state_of(path) != state]

    def left(self) -> list[str]:
        """Names of the files that are in the program's folder now, and were not."""
        now = names_in(self.folder)
        return [] if now is None or self.there is None else sorted(now - self.there)


@contextmanager
def changes_named(argv: Sequence[str], folder: str, makes: Sequence[str] = ()) -> Iterator[GivenFiles]:
    """Run the block; where it raises Diverged or ProgramFailed, name what it changed of the files that `argv` names,
    else what it left.

    `folder`: the program's working folder. `makes`: patterns of files that each run begins without.
    """
    given = GivenFiles(states_of(argv, Path(folder)), Path(folder), names_in(Path(folder)))
    try:
        yield given
    except (Diverged, ProgramFailed) as error:
        changed = given.changed()
        if changed:
            names = ", ".join(map(str, changed))
            said = str(error).removesuffix(".")
            error.args = (
                f"{said}; {names}: no longer as when the build began; if the program changes it, let each run begin "
                "with a copy (a script that copies it, and then starts the program by exec)",
                *error.args[1:],
            )
        elif hint := hint_of(given.left(), makes):
            error.args = (f"{str(error).removesuffix('.')}{hint}", *error.args[1:])
        raise


def names_in(folder: Path) -> frozenset[str] | None:
    """Names of the regular files in it; None where these are too many, or it cannot be read."""
    found = set()
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number >= MOST_NAMES:
                    return None
                if entry.is_file(follow_symlinks=False):
                    found.add(entry.name)
    except OSError:
        return None
    return frozenset(found)


def states_of(argv: Sequence[str], folder: Path) -> dict[Path, str]:
    """By path: what is in the files that the words behind the first name, behind `=` too."""
    words = [word.partition("=")[2] if word.startswith("-") and "=" in word else word for word in argv[1:]]
    found = {folder / word: state_of(folder / word) for word in words if word}
    return {path: state for path, state in found.items() if state}


def state_of(path: Path) -> str:
    """What is in a file: its SHA-256, of a large one its size and the time of its last change. "" for what is no file
    that can be read."""
    try:
        status = path.stat()
        if not path.is_file():
            return ""
        if status.st_size > LARGEST_READ:
            return f"{status.st_size} {status.st_mtime_ns}"
        return file_sha256(path)
    except (OSError, ValueError):
        return ""
