# SPDX-License-Identifier: Apache-2.0
"""Result files: checked beforehand, made for nobody else, full disks named. Python 3.8, standard library."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from checkpoint.errors import StorageError
from checkpoint.private_file import create_private

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_target(target: Path) -> None:
    """Raise StorageError where no finished file can be put at `target`."""
    with storage_errors("write", target):
        _check_target(target)


def _check_target(target: Path) -> None:
    if target.is_dir():
        raise StorageError(f"{target}: is a folder; give the name of a file")
    if target.exists() and not target.is_file():
        # The finished file takes the place of what is there: a device such as /dev/null would be gone.
        raise StorageError(f"{target}: is not an ordinary file and would be replaced; give the name of a file")
    if not target.parent.is_dir():
        raise StorageError(f"{target.parent}: no such folder")
    if not os.access(target.parent, os.W_OK):
        raise StorageError(f"{target.parent}: cannot be written")


@contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Turn the errors of a full or forbidden disk below `path` into StorageError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            free = ""
            try:
                room = os.statvfs(path if path.exists() else path.parent)
                free = f" ({room.f_bavail * room.f_frsize >> 20} MB free)"
            except OSError:
                pass
            raise StorageError(f"{error.filename or path}: the disk is full{free}; free some, or use --work") from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise StorageError(f"{error.filename or path}: cannot be written: {error.strerror}") from error
        raise


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
    file = create_private(path)
    undo.callback(forgiving, path.unlink)
    return file


def write_or_skip(out: IO[bytes], data: bytes) -> None:
    """Write `data`, or leave a hole in their place where they are zeros: of what a phase only appends to a probe
    carries no more than the length. To be followed by `truncate`."""
    if data == bytes(len(data)):
        out.seek(len(data), os.SEEK_CUR)
    else:
        out.write(data)


def make_folder(path: Path) -> None:
    """Make a new folder, and those above it. Raises StorageError, also where it is there already."""
    try:
        path.mkdir(parents=True)
    except FileExistsError as error:
        raise StorageError(f"{path}: exists already; name a new folder") from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from error


def _free(folder: Path) -> str:
    try:
        return f", {shutil.disk_usage(folder).free} are free"
    except OSError:
        return ""
