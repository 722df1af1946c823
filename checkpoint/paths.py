# SPDX-License-Identifier: Apache-2.0
"""Folders where this installation keeps its own files.

One environment variable, `PROBE_HOME`, moves all of them below one folder; without it they follow the XDG
conventions of the user who runs the command.
"""

from __future__ import annotations

import os
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


def _folder(kind: str) -> Path:
    if home := os.environ.get(HOME_VARIABLE):
        return Path(home).absolute() / kind
    # Candidate nodes have the standard library alone, and a home of ours.
    import platformdirs

    return Path(platformdirs.user_data_dir("probe") if kind == "data" else platformdirs.user_cache_dir("probe"))
