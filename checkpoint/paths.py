# SPDX-License-Identifier: Apache-2.0
"""Folders where this installation keeps its own files.

One environment variable, `PROBE_HOME`, moves all of them below one folder; without it they follow the XDG
conventions of the user who runs the command.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

HOME_VARIABLE = "PROBE_HOME"
"""Environment variable that replaces both the data and the cache folder."""


def data_dir() -> Path:
    """Folder for files worth keeping, such as the private CRIU. Not created here."""
    return _folder("data")


def cache_dir() -> Path:
    """Folder for files that can be made again at any time. Not created here."""
    return _folder("cache")


def private_criu_dir() -> Path:
    """Root of the private CRIU: distribution packages with their own loader and libc."""
    return data_dir() / "criu"


def is_shared(folder: Path) -> bool:
    """Whether somebody else could have put programs into a folder that we run programs from: another user but root, or
    everybody. False where there is none."""
    try:
        status = folder.stat()
    except OSError:
        return False
    return status.st_uid not in (os.geteuid(), 0) or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


SHARED = "belongs to somebody else, or others can write to it"


def _folder(kind: str) -> Path:
    if home := os.environ.get(HOME_VARIABLE):
        return Path(home).absolute() / kind
    # Candidate nodes have the standard library alone, and a home of ours.
    import platformdirs

    return Path(platformdirs.user_data_dir("probe") if kind == "data" else platformdirs.user_cache_dir("probe"))
