# SPDX-License-Identifier: Apache-2.0
"""Read what a flattened phase has in memory when it is restored, from its images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from checkpoint.flat.file_names import SHARED_PAGES
from checkpoint.flat.image import NAME, REPEATED, decode
from checkpoint.linux import PAGE_SIZE

Words = npt.NDArray[np.uint64]


def held_pages(images: Path) -> tuple[Words, Words]:
    """(addresses of its pages, (N,); their contents, (N, 512))."""
    (path,) = (path for path in images.glob("pages-*.img") if path.name != SHARED_PAGES)
    stored = np.fromfile(path, dtype=np.uint64).reshape(-1, PAGE_SIZE // 8)
    addresses: list[int] = []
    rows: list[int] = []
    row = 0
    for run in decode(images / NAME).runs:
        begin, once = run.address & ~REPEATED, bool(run.address & REPEATED)
        addresses += range(begin, begin + run.pages * PAGE_SIZE, PAGE_SIZE)
        rows += [row] * run.pages if once else range(row, row + run.pages)
        row += run.stored_pages
    assert row == len(stored), "the pages file has other pages than the runs"
    return np.array(addresses, dtype=np.uint64), stored[rows]
