# SPDX-License-Identifier: Apache-2.0
"""Executions of those columns alone that executed: of a million sites a program runs through some thousand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

_IntArray = npt.NDArray[np.int64]


def _nothing() -> _IntArray:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Counts:
    """`columns`, rising, and the `executions` of each, none of them 0, both (number,)."""

    columns: _IntArray = field(default_factory=_nothing)
    executions: _IntArray = field(default_factory=_nothing)

    def since(self, before: Counts) -> Counts:
        """What was executed after `before`; of columns that have fewer executions now than then, nothing."""
        same = np.array_equal(self.columns, before.columns)
        more = self.executions - (before.executions if same else before.at(self.columns))
        ran = more > 0
        return Counts(self.columns[ran], more[ran])

    def at(self, columns: _IntArray) -> _IntArray:
        """Executions of these columns, 0 where there are none, (len(columns),)."""
        if not len(self.columns):
            return np.zeros(len(columns), dtype=np.int64)
        place = np.minimum(np.searchsorted(self.columns, columns), len(self.columns) - 1)
        return np.where(self.columns[place] == columns, self.executions[place], 0)

    def of_all(self, number: int) -> _IntArray:
        """Executions of all `number` columns that there are, (number,)."""
        found = np.zeros(number, dtype=np.int64)
        found[self.columns] = self.executions
        return found


def collected(columns: _IntArray, executions: _IntArray) -> Counts:
    """Counts of columns that come in any order, some of them more than once; `executions` of each, none of them 0."""
    if (columns[1:] > columns[:-1]).all():
        return Counts(columns, executions)
    order = np.argsort(columns, kind="stable")
    columns = columns[order]
    starts = np.flatnonzero(np.diff(columns, prepend=-1))
    return Counts(columns[starts], np.add.reduceat(executions[order], starts))


def sum_of(parts: Sequence[Counts]) -> Counts:
    """All of them together."""
    if not parts:
        return Counts()
    return collected(
        np.concatenate([part.columns for part in parts]), np.concatenate([part.executions for part in parts])
    )
