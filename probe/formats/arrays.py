# SPDX-License-Identifier: Apache-2.0
"""Array types that stages hand on, and files of arrays."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from checkpoint.errors import StorageError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


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
