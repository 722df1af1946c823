# SPDX-License-Identifier: Apache-2.0
"""Time direct reads of a file made here: one behind the other and far apart, of a page and of a mebibyte.

A program by itself, for `python3 -I - FOLDER BYTES`. Prints JSON: medians in seconds, and the file system's bytes. The
file loses its name before anything is written, so nothing of it stays, however this ends.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

PAGE, LARGE = 4096, 1 << 20
MOST_SECONDS = 600
_READS = 64


def _refuse(text: str) -> NoReturn:
    print(json.dumps({"refused": text}))
    sys.exit(0)


def _unnamed(folder: str, size: int) -> tuple[int, int]:
    """A descriptor for direct reads of a file of `size` bytes without a name, and the bytes of its file system."""
    path = Path(folder) / f".probe-disk-{os.getpid()}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        number = os.open(path, flags, 0o600)
    except OSError as error:
        _refuse(f"{folder}: {error.strerror}; give another --folder")
    try:
        path.unlink()
        space = os.fstatvfs(number)
        if space.f_bavail * space.f_frsize < size + LARGE:
            _refuse(f"{folder}: no room for a file of {size} bytes; give another --folder or --disk-bytes")
        piece = os.urandom(LARGE)
        for _ in range(0, size, LARGE):
            left = memoryview(piece)
            while left:
                left = left[os.write(number, left) :]
        os.fsync(number)
        try:
            own = f"/proc/self/fd/{number}"
            return os.open(own, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC), space.f_blocks * space.f_frsize
        except OSError:
            _refuse(f"{folder}: its file system has no direct reads (O_DIRECT); give another --folder")
    except OSError as error:
        _refuse(f"{folder}: {error.strerror}; give another --folder")
    finally:
        os.close(number)


def _median(file: int, places: Sequence[int], size: int) -> float:
    with mmap.mmap(-1, size) as room:
        taken = []
        for place in places:
            begun = time.perf_counter()
            if os.preadv(file, [room], place) != size:
                _refuse("a read ended early")
            taken.append(time.perf_counter() - begun)
    # The first one waits for what the disk did before.
    return statistics.median(taken[1:])


def main(folder: str, size: int) -> None:
    """Print the times."""
    # Whoever asked may be gone, and then nobody ends this.
    signal.alarm(MOST_SECONDS)
    size -= size % LARGE
    file, capacity = _unnamed(folder, size)
    drawn = random.Random(1)
    pages = size // PAGE
    count = min(_READS, size // LARGE)
    print(
        json.dumps(
            {
                "page": _median(file, [PAGE * number for number in range(_READS)], PAGE),
                "large": _median(file, [LARGE * number for number in range(count)], LARGE),
                "far": _median(file, [PAGE * drawn.randrange(pages) for _ in range(_READS)], PAGE),
                "capacity": capacity,
            }
        )
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except OSError as failed:
        _refuse(f"{sys.argv[1]}: {failed.strerror}; give another --folder")
