# SPDX-License-Identifier: Apache-2.0
"""Look at what the kernel holds of files."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import numpy as np


def cached(path: Path) -> int:
    """Pages of it in the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        words = np.frombuffer(mapped, dtype=np.uint8)
        said = (ctypes.c_ubyte * (len(mapped) // 4096))()
        address = words.ctypes.data
        libc = ctypes.CDLL(None, use_errno=True)
        assert not libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), said), ctypes.get_errno()
        del words
        return sum(one & 1 for one in said)
