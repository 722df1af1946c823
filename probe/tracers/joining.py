# SPDX-License-Identifier: Apache-2.0
"""Join neighbouring intervals when there are too many of them, or too much in them: that bounds a trace's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import scipy.sparse as sp

from checkpoint.stubs.counts import Counts, sum_of
from probe.formats.arrays import IntArray

MOST_INTERVALS = 20_000
"""Intervals that a tracer keeps."""

MOST_ENTRIES = 40_000_000
"""Entries of all vectors that a tracer keeps, one for each block that ran in each interval, 16 bytes each: 640 MB. As
many as the most intervals have with 2,000 blocks in each."""

T = TypeVar("T")


def join_neighbours(rows: list[T], join: Callable[[T, T], T], together: int = 2) -> None:
    """Put `join` of each `together` neighbours into their place; a rest of fewer at the end is joined where `together`
    is more than two, and stays as it is otherwise.

    Rows are let go as soon as they are joined, so that both lists are never held whole.
    """
    rows.reverse()
    joined = []
    while len(rows) >= 2:
        one = rows.pop()
        for _ in range(min(together - 1, len(rows))):
            one = join(one, rows.pop())
        joined.append(one)
    rows[:0] = joined


def sum_of_vectors(a: tuple[IntArray, IntArray], b: tuple[IntArray, IntArray]) -> tuple[IntArray, IntArray]:
    """The sum of two sparse vectors: columns, each once and rising, and the executions of each."""
    both = sum_of([Counts(*a), Counts(*b)])
    return both.columns, both.executions


def matrix_of(lengths: Sequence[int], vectors: Iterable[tuple[IntArray, IntArray]], columns: int) -> sp.csr_array:
    """Sparse vectors of so many entries each, columns and executions, as the rows of one array.

    `vectors` are taken one by one: all that is held is the array.
    """
    ends = np.cumsum([0, *lengths], dtype=np.int64)
    indices, data = np.empty(ends[-1], dtype=np.int64), np.empty(ends[-1], dtype=np.int64)
    for start, end, (found, executions) in zip(ends[:-1], ends[1:], vectors, strict=True):
        indices[start:end], data[start:end] = found, executions
    return sp.csr_array((data, indices, ends), shape=(len(lengths), columns))
