# SPDX-License-Identifier: Apache-2.0
"""Create files that hold a program's memory: for nobody else, wherever they are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import IO

_CHUNK = 1 << 20


def create_private(path: Path, buffering: int = -1) -> IO[bytes]:
    """A new file of mode 0600 to write to; never one that is there, or that a link points to. Raises OSError."""

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o600)

    # A file object that is made of a descriptor would not know its name.
    return open(path, "xb", buffering, opener=opened)


def copy_private(source: Path, target: Path) -> None:
    """As shutil.copyfile, into a file that `create_private` makes. Raises OSError."""
    with source.open("rb") as contents, create_private(target) as out:
        shutil.copyfileobj(contents, out, _CHUNK)
