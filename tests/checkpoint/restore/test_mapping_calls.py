# SPDX-License-Identifier: Apache-2.0
"""Sets of addresses as ranges, against sets of single pages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkpoint.linux import PAGE_SIZE
from checkpoint.restore.mapping_calls import Spans

RANGE = st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda r: (r[0] * PAGE_SIZE, (r[0] + r[1]) * PAGE_SIZE))


def pages(start: int, end: int) -> set[int]:
    return set(range(start, end, PAGE_SIZE))


@given(st.lists(st.tuples(st.booleans(), RANGE), max_size=30), RANGE)
def test_ranges_hold_what_single_pages_would(
    changes: list[tuple[bool, tuple[int, int]]], look: tuple[int, int]
) -> None:
    spans, expected = Spans(), set[int]()
    for add, (start, end) in changes:
        if add:
            spans.add_all([(start, end)])
            expected |= pages(start, end)
        else:
            spans.remove(start, end)
            expected -= pages(start, end)
    found = [page for start, count in spans.stretches() for page in pages(start, start + count * PAGE_SIZE)]
    assert sorted(found) == sorted(expected)
    inside = [page for start, end in spans.inside(*look) for page in pages(start, end)]
    assert sorted(inside) == sorted(expected & pages(*look))
    assert spans.copy().stretches() == spans.stretches()
