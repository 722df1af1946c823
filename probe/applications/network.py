# SPDX-License-Identifier: Apache-2.0
"""Bandwidth of a network by the size of messages, and how far its steps take messages off a straight line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from checkpoint.errors import ProbeError
from checkpoint.foreign_file import read_foreign
from probe.formats.arrays import FloatArray

_MOST_BYTES = 1 << 20
_LEAST_LINES = 4
_LARGEST = 1e15
_REMEDY = "give the lines that osu_bw or pintools/mpi/bandwidth.c prints: BYTES MB/S"


@dataclass(frozen=True)
class Bandwidths:
    """sizes: bytes of messages, ascending; seconds: of one message among many under way. Equal shapes."""

    sizes: FloatArray
    seconds: FloatArray

    def slowness(self, size: FloatArray) -> FloatArray:
        """Seconds of messages of `size` bytes over those of the best line through all sizes, a + bytes/b."""
        columns = np.column_stack([np.ones_like(self.sizes), self.sizes]) / self.seconds[:, None]
        scale = np.linalg.norm(columns, axis=0)
        fitted, _ = nnls(columns / scale, np.ones_like(self.sizes))
        line = np.column_stack([np.ones_like(self.sizes), self.sizes]) @ (fitted / scale)
        # Between sizes and beyond them: what the nearest ones are off.
        found: FloatArray = np.interp(np.log(size), np.log(self.sizes), self.seconds / line)
        return found


@dataclass(frozen=True)
class Steps:
    """A network's steps under an application: its messages have `sizes` bytes on `cores` cores (ascending, equal
    shapes)."""

    bandwidths: Bandwidths
    cores: FloatArray
    sizes: FloatArray

    def __call__(self, cores: FloatArray) -> FloatArray:
        """What MPI time on so many cores has beside a network without steps, a factor."""
        return self.bandwidths.slowness(self.messages(cores))

    def messages(self, cores: FloatArray) -> FloatArray:
        """Bytes of a message: between the measured numbers of cores, and beyond, by a power of the cores."""
        x, y = np.log(self.cores), np.log(self.sizes)
        power = float(np.polyfit(x, y, 1)[0])
        asked = np.log(cores)
        beyond = np.where(asked > x[-1], asked - x[-1], np.where(asked < x[0], asked - x[0], 0.0))
        found: FloatArray = np.exp(np.interp(asked, x, y) + power * beyond)
        return found


def read_bandwidths(path: Path) -> Bandwidths:
    """Read lines of a size and 10^6 bytes a second; # begins a comment. Raises ProbeError with line, StorageError."""
    found: list[tuple[float, float]] = []
    for number, line in enumerate(read_foreign(path, _MOST_BYTES).decode("utf-8", "replace").splitlines(), start=1):
        if words := line.partition("#")[0].split():
            found.append(_pair(words, f"{path}: line {number}"))
            if len(found) > 1 and found[-1][0] <= found[-2][0]:
                raise ProbeError(f"{path}: line {number}: sizes must grow; {_REMEDY}")
    if len(found) < _LEAST_LINES:
        raise ProbeError(f"{path}: {len(found)} sizes of messages, at least {_LEAST_LINES} are needed; {_REMEDY}")
    sizes, rates = np.array(found).T
    return Bandwidths(sizes, sizes / (1e6 * rates))


def _pair(words: Sequence[str], where: str) -> tuple[float, float]:
    try:
        size, rate = (float(word) for word in words)
    except ValueError as error:
        raise ProbeError(f"{where}: {' '.join(words)[:40]!r} is no size and bandwidth; {_REMEDY}") from error
    if not (1 <= size <= _LARGEST and 1 / _LARGEST <= rate <= _LARGEST):
        raise ProbeError(f"{where}: size and bandwidth must be above 0 and below {_LARGEST:g}; {_REMEDY}")
    return size, rate
