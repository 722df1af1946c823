# SPDX-License-Identifier: Apache-2.0
"""The code around an image's sites, as it lies in a process: read for patching, and written back.

Between two segments of code nothing need be mapped. Pages without a site are neither read nor written where a whole one
parts two sites.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checkpoint.binary.sites import SiteTable
from checkpoint.linux import PAGE_SIZE
from checkpoint.process.memory import ProcessMemory


@dataclass(frozen=True)
class SiteText:
    """`code`: bytes from address `start` on, zeros where nothing was read; `stretches`: [begin, end) of what was."""

    start: int
    code: npt.NDArray[np.uint8]
    stretches: list[tuple[int, int]]

    def write(self, memory: ProcessMemory) -> None:
        """Put back what was read, as it is now. The process is stopped."""
        for begin, end in self.stretches:
            memory.write(self.start + begin, self.code[begin:end].tobytes())


def read_text(memory: ProcessMemory, sites: SiteTable, bias: int) -> SiteText:
    """The code from the first of `sites` to the last, in address order. Raises OSError where a site is not mapped."""
    begin = sites.offset + bias
    end = begin + sites.length
    apart = np.flatnonzero(begin[1:] // PAGE_SIZE > (end[:-1] - 1) // PAGE_SIZE + 1)
    firsts, lasts = np.concatenate([[0], apart + 1]), np.concatenate([apart, [len(sites) - 1]])
    start = int(begin[0])
    code = np.zeros(int(end[-1]) - start, dtype=np.uint8)
    stretches = [(int(begin[i]) - start, int(end[j]) - start) for i, j in zip(firsts, lasts, strict=True)]
    for low, high in stretches:
        code[low:high] = np.frombuffer(memory.read(start + low, high - low), dtype=np.uint8)
    return SiteText(start, code, stretches)
