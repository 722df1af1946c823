# SPDX-License-Identifier: Apache-2.0
"""Where the stored bytes of a probe's members come from, and how files are made and failures of a disk told.

Standard library only, as reducer/unpack.py.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol

from checkpoint.errors import StorageError
from reducer.member_table import Member

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def sha256_of(file: BinaryIO) -> str:
    """SHA-256, hexadecimal, of a file from where it stands to its end."""
    digest = hashlib.sha256()
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()


class MemberSource(Protocol):
    """Where the stored bytes of members come from."""

    def open(self, member: Member) -> Callable[[int], bytes]:
        """A function that returns up to so many of its bytes, from the first on; b"" at the end."""

    def close(self) -> None:
        """Let go of what is open."""


class WholeFile:
    """All members in one file, back to back. One is read at a time."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file

    def open(self, member: Member) -> Callable[[int], bytes]:
        # OSErrors of whoever takes the contents are his: only reading is wrapped here.
        def read(size: int) -> bytes:
            with storage_errors("read", self._path):
                return self._file.read(size)

        with storage_errors("read", self._path):
            self._file.seek(member.offset)
        return read

    def close(self) -> None:
        self._file.close()


@contextmanager
def storage_errors(what: str, path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn an OSError into a StorageError that names `path` and, if the disk is full, the bytes `needed`."""
    try:
        yield
    except OSError as error:
        text = f"cannot {what} {path}: {error.strerror or error}"
        if error.errno in _FULL and needed is not None:
            text += f"; up to {needed} bytes are needed in {path.parent}{_free(path.parent)}: make room"
        raise StorageError(text) from error


def forgiving(action: Callable[[], Any]) -> None:
    with suppress(OSError):
        action()


def create_file(path: Path, undo: ExitStack) -> IO[bytes]:
    """A new file of mode 0600, which `undo` removes; never one that is there or that a link points to."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    undo.callback(forgiving, path.unlink)
    return os.fdopen(descriptor, "wb")


def _free(folder: Path) -> str:
    try:
        return f", {shutil.disk_usage(folder).free} are free"
    except OSError:
        return ""
