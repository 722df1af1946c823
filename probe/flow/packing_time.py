# SPDX-License-Identifier: Apache-2.0
"""Estimate how long packing takes that synthetic memory saves."""

from __future__ import annotations

import time

import numpy as np

from checkpoint.linux import PAGE_SIZE
from probe.flow.memory import WHOLE, Modes, PhaseMemory
from reducer.compression import packer

_EVERY = 64
"""Of so many pages one is packed: by its address, so that it is the same one in every phase."""


class SavedPacking:
    """What packing the replaced pages of several phases would have taken. Pages that phases have in common are packed
    once, and count once."""

    def __init__(self, compression: str) -> None:
        self._compression = compression
        self._seen: set[int] = set()

    def seconds(self, memory: PhaseMemory, modes: Modes) -> float:
        """Seconds of one processor, for the pages of this phase that are replaced as a whole; others are packed as
        before. Reading them is not counted."""
        chosen = np.flatnonzero((modes == WHOLE) & (memory.addresses // PAGE_SIZE % _EVERY == 0))
        contents = memory.pages()
        fresh = []
        for row in chosen.tolist():
            page = contents[row].tobytes()
            if hash(page) not in self._seen:
                self._seen.add(hash(page))
                fresh.append(page)
        packing = packer(self._compression)
        begun = time.thread_time()
        for page in fresh:
            packing.compress(page)
        packing.flush()
        return (time.thread_time() - begun) * _EVERY
