# SPDX-License-Identifier: Apache-2.0
"""Compare two flows of one region: which blocks, system calls, addresses and numbers differ, and from where on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from checkpoint.binary.syscall_names import call_name
from checkpoint.flow.flow import Calls, Flow, Passed, Place, Window


@dataclass(frozen=True)
class Difference:
    """What differs between two flows. All empty or zero: nothing does.

    blocks      executions in the one and in the other, of the blocks where these differ
    call        the first system call that differs, in words; "" if none does
    after, before   points between which the first block differs; None for the region's begin and end, or if none does
    addresses   steps that use another address, stack or instruction; of `steps` compared, at `points`
    unknown     steps whose address nobody knows
    numbers     the first class of numbers that differs, in words
    """

    blocks: Mapping[Place, tuple[int, int]]
    call: str = ""
    after: Passed | None = None
    before: Passed | None = None
    addresses: int = 0
    steps: int = 0
    unknown: int = 0
    points: int = 0
    numbers: str = ""

    @property
    def none(self) -> bool:
        return not (self.blocks or self.call or self.addresses or self.numbers)

    def sentence(self) -> str:
        """What differs, most basic first; "" where nothing does."""
        if self.blocks:
            return f"{len(self.blocks)} blocks are not executed as often"
        if self.call:
            return self.call
        if self.numbers:
            return self.numbers
        return f"{self.addresses} of {self.steps} steps use other addresses" if self.addresses else ""


def compare(mine: Flow, other: Flow, *, without: Iterable[Place] = ()) -> Difference:
    """How `mine` differs from `other`, both made by the same plan; blocks of `without` are not compared."""
    blocks = _differing(mine.counts, other.counts, set(without))
    pairs = list(zip(mine.passed, other.passed, strict=False))
    same_points = [(a, b) for a, b in pairs if a.point == b.point]
    steps = [_steps(a, b) for a, b in same_points]
    lost = len(mine.passed) != len(other.passed) or len(same_points) != len(pairs)
    after, before = _where(mine, other) if blocks else (None, None)
    return Difference(
        blocks=blocks,
        call=_call(mine.calls, other.calls),
        after=after,
        before=before,
        addresses=sum(s[0] for s in steps) + (1 if lost else 0),
        steps=sum(s[1] for s in steps),
        unknown=sum(s[2] for s in steps),
        points=len(same_points),
        numbers=mine.classes.differing(other.classes) if mine.classes and other.classes else "",
    )


def _differing(
    mine: Mapping[Place, int], other: Mapping[Place, int], without: set[Place]
) -> dict[Place, tuple[int, int]]:
    return {
        place: (mine.get(place, 0), other.get(place, 0))
        for place in sorted(mine.keys() | other.keys())
        if place not in without and mine.get(place, 0) != other.get(place, 0)
    }


def _steps(a: Passed, b: Passed) -> tuple[int, int, int]:
    """(differing, compared, unknown) steps of two windows at one point."""
    n = min(len(a.window), len(b.window))
    unknown = max(a.window.unknown_steps, b.window.unknown_steps)
    if a.window.digest() == b.window.digest():
        return 0, n, unknown
    if not isinstance(a.window, Window) or not isinstance(b.window, Window):
        return max(n, 1), n, unknown
    hidden = a.window.unknown[:n] | b.window.unknown[:n]
    other = (a.window.places[:n] != b.window.places[:n]) | (a.window.stack[:n] != b.window.stack[:n])
    other |= (a.window.used[:n] != b.window.used[:n]) & ~hidden
    return int(other.sum()) + abs(len(a.window) - len(b.window)), n, unknown


def _where(mine: Flow, other: Flow) -> tuple[Passed | None, Passed | None]:
    """The last point up to which as much was executed in both, and the first behind it; None for the region's begin and
    end."""
    last: Passed | None = None
    for a, b in zip(mine.passed, other.passed, strict=False):
        if a.point != b.point or a.state != b.state:
            return last, b
        last = b
    return last, None


def _call(mine: Calls, other: Calls) -> str:
    n = min(len(mine.first), len(other.first))
    differ = np.flatnonzero((mine.first[:n] != other.first[:n]).any(axis=1))
    if len(differ):
        at = int(differ[0])
        a, b = (call_name(int(calls.first[at, 0])) for calls in (mine, other))
        what = f"{a} instead of {b}" if a != b else f"{a} with other arguments"
        return f"system call {at + 1} is {what}"
    if mine.made != other.made:
        return f"{mine.made} system calls instead of {other.made}"
    return "" if mine.said == other.said else f"system calls behind the first {n} differ"
