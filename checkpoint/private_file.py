# SPDX-License-Identifier: Apache-2.0
"""Create files that hold a program's memory: for nobody else, wherever they are."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

_MOST_AT_ONCE = 1 << 30
_NO_HOLES = (errno.EINVAL, errno.ENOTSUP)
"""What file systems say that know of none."""


def create_private(path: Path, buffering: int = -1) -> IO[bytes]:
    """A new file of mode 0600 to write to; never one that is there, or that a link points to. Raises OSError."""

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o600)

    # A file object that is made of a descriptor would not know its name.
    return open(path, "xb", buffering, opener=opened)


def write_private(path: Path, data: bytes) -> None:
    """Put a file that `create_private` makes, with `data`, in the place of what is there. Raises OSError."""
    path.unlink(missing_ok=True)
    with create_private(path) as out:
        out.write(data)


def copy_private(source: Path, target: Path) -> None:
    """As shutil.copyfile, into a file that `create_private` makes, with the holes of `source`. Raises OSError."""
    with source.open("rb") as contents, create_private(target) as out:
        copy_contents(contents, out)


def keep_length_alone(path: Path) -> None:
    """Put a hole of its length in a file's place, with its permission bits; at once, and where nobody may write to it,
    too. Raises OSError."""
    status, hole = path.stat(), path.with_name(f"{path.name}.hole")
    # Left by a build that was killed.
    hole.unlink(missing_ok=True)
    with create_private(hole) as out:
        os.ftruncate(out.fileno(), status.st_size)
        os.fchmod(out.fileno(), stat.S_IMODE(status.st_mode))
    hole.replace(path)


def copy_contents(source: IO[bytes], target: IO[bytes]) -> None:
    """Put what is in `source` into the empty file `target`; what is a hole there takes no room here either. Raises
    OSError."""
    there, here = source.fileno(), target.fileno()
    size, at = os.fstat(there).st_size, 0
    os.ftruncate(here, size)
    while at < size:
        begin, at = _next_data(there, at, size)
        os.lseek(here, begin, os.SEEK_SET)
        while begin < at:
            done = os.sendfile(here, there, begin, min(at - begin, _MOST_AT_ONCE))
            if not done:
                # It has become shorter meanwhile.
                return
            begin += done


def _next_data(file: int, at: int, size: int) -> tuple[int, int]:
    """Where the data behind `at` begin and end; the end of the file where there are none."""
    try:
        begin = os.lseek(file, at, os.SEEK_DATA)
        return begin, os.lseek(file, begin, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size, size
        if error.errno not in _NO_HOLES:
            raise
        return at, size
