# SPDX-License-Identifier: Apache-2.0
"""The files of a probe on the node that runs it: which of them are there as they were, and copies of the others."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from checkpoint.errors import NodeUnfit
from probe.formats.manifest import OUTPUT, ExternalFile, PrivateFile
from reducer.member_source import sha256_of
from reducer.member_table import StoredFile
from reducer.unpack import ProbeArchive


def check_external(files: Iterable[ExternalFile]) -> None:
    """Raise NodeUnfit where this node lacks one of the files, or has another one at its path."""
    for file in files:
        if problem := _problem(file):
            raise NodeUnfit(
                f"{file.path}: {problem}; the probe was built with this file left out (--external): copy it from the "
                "reference node, or build the probe with the file inside"
            )


def _problem(file: ExternalFile) -> str:
    path = Path(file.path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return "is not a regular file here"
        if status.st_size != file.size:
            return f"has {status.st_size} bytes here, {file.size} at capture"
        # CRIU compares the permission bits of files that it opens again.
        if stat.S_IMODE(status.st_mode) != file.mode:
            return f"has permissions {stat.S_IMODE(status.st_mode):04o} here, {file.mode:04o} at capture"
        if file_sha256(path) != file.sha256:
            return "has other contents here than at capture (its SHA-256 differs)"
    except FileNotFoundError:
        return "is missing here"
    except OSError as error:
        return f"cannot be read here ({error.strerror})"
    return ""


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return sha256_of(file)


def _status_if_readable(path: Path) -> os.stat_result | None:
    """Of a regular file that this user may read; None for anything else, and for what lies where he may not go."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK) else None


def differing_files(files: Iterable[StoredFile]) -> list[StoredFile]:
    """Those of a probe's files that this node does not have as they were at capture: contents or permission bits.

    What phases write is left out: each has copies of its own.
    """
    return [file for file in files if file.purpose != OUTPUT and _differs(file)]


def _differs(file: StoredFile) -> bool:
    here = Path(file.path)
    status = _status_if_readable(here)
    if status is None or status.st_size != file.size or stat.S_IMODE(status.st_mode) != file.mode:
        return True
    return file_sha256(here) != file.sha256


class NodeFiles:
    """The probe's files as this node has them; the probe's own copy stands in for what differs or is missing."""

    def __init__(self, archive: ProbeArchive, folder: Path, differing: Sequence[StoredFile]) -> None:
        """Copies go to `folder`; `differing` as `differing_files` finds them."""
        self._archive = archive
        self._folder = folder
        self._differing = differing
        self._binds: list[tuple[str, str]] | None = None

    def binds(self) -> list[tuple[str, str]]:
        """(copy, path) of every file that this node does not have as it was at capture."""
        if self._binds is None:
            self._binds = []
            for file in self._differing:
                # CRIU compares the permission bits too.
                copy = self._folder / f"{file.sha256}-{file.mode:o}"
                if not copy.exists():
                    self._archive.extract_file(file.sha256, copy, file.mode)
                self._binds.append((str(copy), file.path))
        return self._binds

    def private_copies(self, files: Iterable[PrivateFile], phase: int, folder: Path) -> list[tuple[str, str]]:
        """(copy, path) of the files that `phase` writes, where `copy_private_files` puts them as they were at capture:
        nothing of this node is changed."""
        own = [f for f in files if f.phase == phase]
        return [(str(folder / f"written-{number}"), file.path) for number, file in enumerate(own)]

    def copy_private_files(self, files: Iterable[PrivateFile], phase: int, folder: Path) -> None:
        """Make the copies in `folder`, which is made too."""
        folder.mkdir(mode=0o700, exist_ok=True)
        for number, file in enumerate(f for f in files if f.phase == phase):
            self._archive.extract_file(file.sha256, folder / f"written-{number}", file.mode)
