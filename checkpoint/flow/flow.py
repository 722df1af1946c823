# SPDX-License-Identifier: Apache-2.0
"""The flow of a region: executions of its blocks, its system calls, and windows of its steps."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from checkpoint.flow.classes import NumberClasses

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

MOST_KEPT = 1000
"""System calls that are kept one by one."""

Place = tuple[str, int]
"""A block: path of its image at capture, link-time address of the instruction that is counted there."""


def digest(data: bytes) -> str:
    """32 digits."""
    return hashlib.sha256(data).hexdigest()[:32]


def state_of(counts: Mapping[Place, int]) -> str:
    """A digest of these executions."""
    return digest("\n".join(f"{path} {offset} {counts[path, offset]}" for path, offset in sorted(counts)).encode())


@dataclass(frozen=True, order=True)
class Point:
    """The `count`-th execution of a block, since the phase was restored."""

    place: Place
    count: int


@dataclass(frozen=True)
class Window:
    """Steps from a point on, arrays of one length: the instruction's address, the stack pointer, and the address in
    memory that it uses. `unknown`: vector registers say which addresses it uses."""

    places: Words
    stack: Words
    used: Words
    unknown: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.places)

    @property
    def unknown_steps(self) -> int:
        return int(self.unknown.sum())

    def digest(self) -> str:
        """The same for the same steps at the same addresses."""
        known = np.where(self.unknown, np.uint64(0), self.used)
        return digest(b"".join(column.astype("<u8").tobytes() for column in (self.places, self.stack, known)))

    def kept(self) -> KeptWindow:
        """What a probe holds of it."""
        return KeptWindow(len(self), self.digest(), self.unknown_steps)


@dataclass(frozen=True)
class KeptWindow:
    """What is kept of a window: how many steps it has, its digest, and of how many steps nobody knows the address."""

    steps: int
    said: str
    unknown_steps: int

    def __len__(self) -> int:
        return self.steps

    def digest(self) -> str:
        return self.said


@dataclass(frozen=True)
class Passed:
    """A point that was reached: executions of all blocks so far, a digest of which they were, and the steps made from
    there."""

    point: Point
    executions: int
    state: str
    window: Window | KeptWindow


@dataclass(frozen=True)
class Calls:
    """System calls: (number, first argument, third argument) of the first in order, shape (N, 3); how many there were
    in all, a digest of them, and whether all of them were seen."""

    first: Integers
    made: int
    said: str
    complete: bool

    @staticmethod
    def of(calls: npt.ArrayLike, complete: bool) -> Calls:
        """These calls, of which MOST_KEPT are kept."""
        made = np.array(calls, dtype=np.uint64).reshape(-1, 3).astype(np.int64)
        return Calls(made[:MOST_KEPT], len(made), digest(made.astype("<i8").tobytes()), complete)


@dataclass(frozen=True)
class Flow:
    """One run of warm-up and region.

    counts   executions of every block that ran, of all images that are files
    passed   points in the order in which they were reached
    images   SHA-256 of each image, by its path at capture
    classes  of the numbers in the memory that was asked for, when the region ended
    in_copies  whether copies of the code noted the steps: where these have no room, single steps do
    """

    counts: Mapping[Place, int]
    calls: Calls
    passed: tuple[Passed, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict)
    classes: NumberClasses | None = None
    seconds: float = 0.0
    in_copies: bool = False

    @property
    def executions(self) -> int:
        return sum(self.counts.values())

    @property
    def steps(self) -> int:
        return sum(len(one.window) for one in self.passed)


Contents = Callable[[], Iterator[tuple[int, memoryview]]]
"""Gives (address, bytes) of what is written over a restored phase's memory."""


class Numbers(NamedTuple):
    """A span of memory whose numbers are looked at. `floats`: whether it holds floats rather than doubles, None: each
    page tells by itself. Computed from other data, doubles may look like pairs of floats."""

    address: int
    size: int
    floats: bool | None = None


@dataclass(frozen=True)
class Plan:
    """What is wanted of a run: points, steps at each of them, what is written over the memory first, and spans whose
    numbers are looked at in the end. `in_copies`: copies of the code note the steps
    (copied_steps.py), which is many times faster; only windows that were made in the same way can be compared."""

    points: tuple[Point, ...] = ()
    steps: int = 0
    contents: Contents | None = None
    numbers: tuple[Numbers, ...] = ()
    in_copies: bool = False
