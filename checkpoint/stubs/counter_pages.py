# SPDX-License-Identifier: Apache-2.0
"""Read the counters of a running program, where its memory has pages for them, and tell what each of them counts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from checkpoint.linux import PAGE_SIZE
from checkpoint.page_table import PageTable
from checkpoint.process.tracee import Tracee
from checkpoint.stubs.counts import Counts, collected
from checkpoint.stubs.encode import page_align

PER_PAGE = PAGE_SIZE // 8
_NO_SITE = -1


class CounterPages:
    """The pages of several areas of counters. Each: its address, the begin of a page, and its columns, rising.

    All areas are read together: with the libraries of a program there are dozens, of a few pages that are used each.
    """

    def __init__(self, areas: Sequence[tuple[int, npt.NDArray[np.int64]]]) -> None:
        sizes = [page_align(8 * len(columns)) // PAGE_SIZE for _, columns in areas]
        self._columns = np.full((sum(sizes), PER_PAGE), _NO_SITE, dtype=np.int64)
        self._addresses = np.zeros(sum(sizes), dtype=np.int64)
        """Of each page, and the column of each counter in it."""
        first = 0
        # In the order of the columns, which a sum of them need not be brought into then.
        for (address, columns), size in sorted(zip(areas, sizes, strict=True), key=lambda found: found[0][1][0]):
            self._columns.reshape(-1)[first * PER_PAGE :][: len(columns)] = columns
            self._addresses[first : first + size] = address + PAGE_SIZE * np.arange(size)
            first += size
        self._spans = _stretches(self._addresses)

    def read(self, tracee: Tracee, offset: int, pages: PageTable | None) -> Counts:
        """Executions counted `offset` bytes behind the areas' addresses. Raises OSError where the program is gone.

        Of half a million sites a program executes some thousand. A page of counters that is only read here becomes one
        of zeros, which is read at every later look: without `pages` all are.
        """
        there = np.arange(len(self._addresses)) if pages is None else self._present(pages, offset)
        values = np.empty((len(there), PER_PAGE), dtype=np.int64)
        addresses = self._addresses[there]
        for first, end in _stretches(addresses):
            tracee.read_counters(int(addresses[first]) + offset, values[first:end].reshape(-1))
        counted = values.reshape(-1)
        found = np.flatnonzero(counted)
        columns = self._columns[there[found // PER_PAGE], found % PER_PAGE]
        if not (mine := columns != _NO_SITE).all():
            # Behind the counters of the sites are those of the ways out of loops.
            columns, found = columns[mine], found[mine]
        return collected(columns, counted[found])

    def _present(self, pages: PageTable, offset: int) -> npt.NDArray[np.int64]:
        """Numbers of the pages that may be other than 0."""
        parts = [
            first + pages.present_pages(int(self._addresses[first]) + offset, end - first) for first, end in self._spans
        ]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _stretches(addresses: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """[first, end) of the pages that lie one behind the other."""
    if not len(addresses):
        return []
    edges = (np.flatnonzero(addresses[1:] - addresses[:-1] != PAGE_SIZE) + 1).tolist()
    return list(zip([0, *edges], [*edges, len(addresses)], strict=True))


@contextlib.contextmanager
def page_table(pid: int) -> Iterator[PageTable | None]:
    """None where it cannot be looked at, as of a program that closes /proc to its own user."""
    try:
        table = PageTable(pid)
    except OSError:
        yield None
        return
    with table:
        yield table
