# SPDX-License-Identifier: Apache-2.0
"""Array types that stages hand on, and files of arrays."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from checkpoint.errors import StorageError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def check_archive(path: Path) -> None:
    """Read a file of arrays to the end of every member. Raises zipfile.BadZipFile where one is not as it was written.

    numpy reads no further than an array is long: where damage makes a member longer, its checksum is not looked at.
    """
    with zipfile.ZipFile(path) as archive:
        if (name := archive.testzip()) is not None:
            raise zipfile.BadZipFile(f"{name} is damaged")


def write_arrays(path: Path, arrays: Mapping[str, Any], what: str) -> None:
    """Write arrays by name, whole or not at all, readable by the owner alone. Raises StorageError naming `what`."""
    partial = None
    try:
        descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            np.savez_compressed(file, **arrays)
        Path(partial).replace(path)
        partial = None
    except OSError as error:
        raise StorageError(f"{path}: {what} could not be written: {error.strerror}") from error
    finally:
        if partial is not None:
            Path(partial).unlink(missing_ok=True)
