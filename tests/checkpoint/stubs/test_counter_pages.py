# SPDX-License-Identifier: Apache-2.0
"""Counters are read wherever the program has pages for them, and each for its own column."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from programs import build
from tracing import program_of, streams_of

from checkpoint import page_table as page_table_module
from checkpoint.linux import PAGE_SIZE
from checkpoint.process.maps import find_gap
from checkpoint.process.tracee import Tracee
from checkpoint.stubs.counter_pages import PER_PAGE, CounterPages, page_table

PAGES, OFFSET = 64, 32 * PAGE_SIZE


@pytest.fixture
def stopped(builds: Path) -> Iterator[tuple[Tracee, int]]:
    """A program at its entry point, and the address of pages that it has mapped and not touched."""
    with streams_of() as streams, Tracee.start(program_of(build("flat", builds), "1"), streams) as tracee:
        base = find_gap(tracee.mappings(), 1 << 32, 1 << 32, PAGES * PAGE_SIZE)
        tracee.map_memory(base, PAGES * PAGE_SIZE, executable=False)
        yield tracee, base


def write(tracee: Tracee, base: int, counts: dict[int, int]) -> None:
    """Counters by their numbers from `base` on."""
    for number, count in counts.items():
        tracee.write(base + 8 * number, count.to_bytes(8, "little"))


@pytest.mark.parametrize("seen", [True, False])
def test_all_areas_are_read_together(seen: bool, stopped: tuple[Tracee, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three areas the second lies behind the first; the third counts columns of the first, and some of its own."""
    tracee, base = stopped
    # As of more pages than are read at once.
    monkeypatch.setattr(page_table_module, "_MOST_PAGES", 2)
    first, second = 100 + np.arange(4 * PER_PAGE), np.arange(0, 80, 2)
    third = np.concatenate([100 + np.arange(10), 5000 + np.arange(3 * PER_PAGE - 15)])
    behind, apart = 4 * PER_PAGE, 10 * PER_PAGE
    pages = CounterPages([(base, first), (base + 8 * behind, second), (base + 8 * apart, third)])
    write(tracee, base, {0: 1, 3 * PER_PAGE + 7: 2, behind + 3: 4, apart: 8, apart + 2 * PER_PAGE: 16})
    # What counts no column, behind the last counter of an area.
    write(tracee, base, {behind + 40: 32, apart + 3 * PER_PAGE - 5: 64})
    # Another thread's, in other pages.
    write(tracee, base + OFFSET, {PER_PAGE: 128, apart + PER_PAGE: 256})
    with page_table(tracee.pid) as table:
        found = [pages.read(tracee, offset, table if seen else None) for offset in (0, OFFSET)]
    assert [dict(zip(one.columns.tolist(), one.executions.tolist(), strict=True)) for one in found] == [
        {6: 4, 100: 9, 100 + 3 * PER_PAGE + 7: 2, 4990 + 2 * PER_PAGE: 16},
        {100 + PER_PAGE: 128, 4990 + PER_PAGE: 256},
    ]
    assert all((np.diff(one.columns) > 0).all() for one in found)


def test_nothing_is_read_where_nothing_was_counted(
    stopped: tuple[Tracee, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracee, base = stopped
    monkeypatch.setattr(Tracee, "read_counters", lambda *_: pytest.fail("read"))
    with page_table(tracee.pid) as table:
        assert not len(CounterPages([(base, np.arange(9000))]).read(tracee, 0, table).columns)
        assert not len(CounterPages([]).read(tracee, 0, table).columns)


def test_what_lies_behind_the_counters_counts_nothing(stopped: tuple[Tracee, int]) -> None:
    tracee, base = stopped
    write(tracee, base, {5: 1})
    assert not len(CounterPages([(base, np.arange(5))]).read(tracee, 0, None).columns)
    assert CounterPages([(base, np.arange(6))]).read(tracee, 0, None).columns.tolist() == [5]
