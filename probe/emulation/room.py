# SPDX-License-Identifier: Apache-2.0
"""Room for an emulation on this node: memory and disk that it would take, looked at before the first byte is used.

Also sent to candidate nodes: Python 3.8 and the standard library.
"""

from __future__ import annotations

import os
from pathlib import Path

from checkpoint.errors import NodeUnfit, StorageError
from probe.node.facts import available_memory


def check_room(resident: int, written: int, folder: Path) -> None:
    """Raise NodeUnfit where this node has not so many bytes of memory or disk, StorageError where nothing can be put
    into the folder."""
    if not folder.is_dir() or not os.access(str(folder), os.W_OK | os.X_OK):
        raise StorageError(f"{folder}: not a folder that files can be made in; name another with --folder")
    available = available_memory()
    if available is not None and resident > available:
        raise NodeUnfit(
            f"{available >> 20} MB of memory are available, the profile holds {resident >> 20} MB; "
            "emulate less with --scale memory=…"
        )
    about = os.statvfs(str(folder))
    free = about.f_bavail * about.f_frsize
    if written > free:
        raise NodeUnfit(
            f"{folder}: {free >> 20} MB are free, the profile writes {written >> 20} MB; name another "
            "folder with --folder, or emulate less with --scale write=…"
        )
