# SPDX-License-Identifier: Apache-2.0
"""Result files: checked before the work begins, put in place whole, full disks named."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from checkpoint.errors import StorageError


def check_target(target: Path) -> None:
    """Raise StorageError where no finished file can be put at `target`."""
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
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
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
