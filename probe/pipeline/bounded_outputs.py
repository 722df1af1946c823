# SPDX-License-Identifier: Apache-2.0
"""Keep of what the program prints its beginning and its end: some programs print gigabytes, in each of nine runs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEPT_START = 64 << 20
"""Bytes of an output that stay, and are compared."""

KEPT_END = 1 << 20
"""Bytes at its end that stay too: where a program fails, it says why there."""

_LOOK_SECONDS = 0.25
_LEAST_HOLE = 16 << 20
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # linux/falloc.h

# Loaded before anything is forked.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


@contextmanager
def bounded_outputs(folder: Path) -> Iterator[None]:
    """As long as this lasts, outputs in `folder` (*.stdout, *.stderr) take no more room than that on the disk.

    Their sizes stay: what is between reads as zeros. File systems without holes (NFS before 4.2) keep all of it.
    """
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(folder, ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(folder: Path, ended: threading.Event) -> None:
    holes: dict[tuple[int, int], int] = {}
    while not ended.wait(_LOOK_SECONDS):
        for path in (*folder.glob("*.stdout"), *folder.glob("*.stderr")):
            # It may be removed at any moment, and another made.
            with contextlib.suppress(OSError):
                _drop_middle(path, holes)


def _drop_middle(path: Path, holes: dict[tuple[int, int], int]) -> None:
    """Make what is neither at the beginning nor at the end a hole; `holes`: how far each file's reaches already."""
    status = path.stat()
    file = status.st_dev, status.st_ino
    begin, end = holes.get(file, KEPT_START), status.st_size - KEPT_END
    if end - begin < _LEAST_HOLE:
        return
    descriptor = os.open(path, os.O_WRONLY)
    try:
        if not _libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, begin, end - begin):
            holes[file] = end
    finally:
        os.close(descriptor)
