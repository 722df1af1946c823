# SPDX-License-Identifier: Apache-2.0
"""Counts of the columns that executed say what those of all columns would."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.stubs.counts import Counts, sum_of
from probe.formats.arrays import IntArray

COLUMNS = 12
dense = st.lists(st.integers(0, 2**40) | st.just(0), min_size=COLUMNS, max_size=COLUMNS).map(np.array)


def counts_of(executions: IntArray) -> Counts:
    columns = np.flatnonzero(executions)
    return Counts(columns, executions[columns])


def assert_same(found: Counts, expected: IntArray) -> None:
    assert (np.diff(found.columns) > 0).all() and (found.executions > 0).all()
    assert found.executions.dtype == np.int64 and found.of_all(COLUMNS).tolist() == expected.tolist()


@given(dense, dense)
def test_what_came_after(before: IntArray, now: IntArray) -> None:
    assert_same(counts_of(now).since(counts_of(before)), np.maximum(now - before, 0))
    assert_same(counts_of(before + now).since(counts_of(before)), now)


@given(st.lists(dense, max_size=4))
def test_sums(parts: list[IntArray]) -> None:
    assert_same(sum_of([counts_of(part) for part in parts]), sum(parts, np.zeros(COLUMNS, dtype=np.int64)))


@given(dense, st.lists(st.integers(0, COLUMNS + 3)))
def test_some_columns(executions: IntArray, columns: list[int]) -> None:
    expected = [int(executions[column]) if column < COLUMNS else 0 for column in columns]
    assert counts_of(executions).at(np.array(columns, dtype=np.int64)).tolist() == expected
