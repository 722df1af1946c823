# SPDX-License-Identifier: Apache-2.0
"""Read small files that others bring: regular ones and standard input alone, never more than they can rightly hold."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

from checkpoint import strict_json
from checkpoint.errors import ProbeError, StorageError

_LARGEST = 1e300
"""Far beyond any time or size, and its square root's square still is a number."""

MOST_BYTES = 64 << 20
"""Results of thousands of nodes; what Python makes of so much JSON still fits into memory."""


def read_foreign(path: Path, most: int = MOST_BYTES) -> bytes:
    """The contents of a regular file, or of standard input for `-`.

    Raises StorageError where it cannot be read, is a device, pipe or folder, or has more than `most` bytes.
    """
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(most + 1)
        else:
            # A pipe that nobody writes to would hold us where it is opened.
            with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise StorageError(f"{path}: not a regular file; give one, or - for standard input")
                data = file.read(most + 1)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        # A name with a NUL, from another file.
        raise StorageError(f"{path}: no file can have this name") from error
    if len(data) > most:
        raise StorageError(f"{path}: larger than {most} bytes; it cannot be what is asked for")
    return data


def read_foreign_json(path: Path, remedy: str, most: int = MOST_BYTES) -> Any:
    """The JSON in such a file. ProbeError with `remedy` for anything else, NaN and infinities included."""
    try:
        return strict_json.loads(read_foreign(path, most).decode("utf-8"))
    except ValueError as error:
        raise ProbeError(f"{path}: not JSON ({error}); {remedy}") from error


def finite(value: Any) -> float:
    """A number of such JSON. ValueError for anything else, texts of numbers too."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_LARGEST < value < _LARGEST:
        raise ValueError(f"{str(value)[:40]!r} is no number")
    return float(value)
