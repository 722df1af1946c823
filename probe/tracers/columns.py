# SPDX-License-Identifier: Apache-2.0
"""Columns of a profile: the blocks that are counted, and how often each was executed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from checkpoint.stubs.counters import SiteCounters
from probe.formats.arrays import BoolArray, IntArray
from probe.formats.profile import BlockTable
from probe.tracers.hot_sites import Row
from probe.tracers.joining import matrix_of


def counts_of(rows: list[Row], counted: BoolArray) -> sp.csr_array:
    """Executions in each row, of the columns `counted` alone, which are numbered anew."""
    number = np.cumsum(counted) - 1
    lengths = [int(counted[row.columns].sum()) for row in rows]
    chosen = ((row, counted[row.columns]) for row in rows)
    vectors = ((number[row.columns[kept]], row.executions[kept]) for row, kept in chosen)
    return matrix_of(lengths, vectors, int(counted.sum()))


def blocks_of(counters: SiteCounters, columns: IntArray) -> BlockTable:
    """The blocks behind the columns of a profile, (B,)."""
    parts: list[list[npt.NDArray[Any]]] = [[], [], [], [], []]
    for number, image in enumerate(counters.images):
        mine = columns[(columns >= image.first) & (columns < image.first + len(image.sites))] - image.first
        sites = image.sites.take(mine)
        columns_of_image: list[npt.NDArray[Any]] = [
            np.full(len(mine), number),
            sites.offset,
            sites.block_start,
            sites.block_bytes,
            sites.block_instructions,
        ]
        for part, values in zip(parts, columns_of_image, strict=True):
            part.append(values)
    joined = [np.concatenate(p) if p else np.zeros(0, dtype=np.int64) for p in parts]
    return BlockTable(
        joined[0].astype(np.int32),
        joined[1].astype(np.int64),
        joined[2].astype(np.int64),
        joined[3].astype(np.int32),
        joined[4].astype(np.int32),
    )
