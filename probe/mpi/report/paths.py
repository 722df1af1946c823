# SPDX-License-Identifier: Apache-2.0
"""Critical path of a program: in simulated times, and in those of a network that takes no time at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np

from checkpoint.errors import ModelInvalid
from probe.formats.arrays import FloatArray
from probe.mpi.report.matching import Matched, Place, Waits


@dataclass(frozen=True)
class Segment:
    """A stretch of the critical path, from one rank at a time to another, or the same, at a later one.

    is_computing: else it is in a call, or between ranks.
    """

    begin: float
    rank: int
    end: float
    last_rank: int
    is_computing: bool

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True)
class Path:
    """The critical path, from the program's begin to its end."""

    segments: tuple[Segment, ...]

    @property
    def seconds(self) -> float:
        return self.segments[-1].end if self.segments else 0.0

    @property
    def computing(self) -> float:
        """Seconds of it that are computing."""
        return sum(one.seconds for one in self.segments if one.is_computing)


def without_network(computing: Sequence[FloatArray], matched: Matched) -> tuple[FloatArray, ...]:
    """Times of all calls where messages take no time: of each rank, (calls, 2) seconds, entered and left.

    computing: of each rank, the seconds before each call. Raises ModelInvalid: ranks that wait for each other.
    """
    run = _FreeRun(computing, matched)
    run.all()
    return tuple(np.array(list(zip(*times, strict=True))).reshape(-1, 2) for times in zip(*run.times, strict=True))


class _FreeRun:
    """All ranks, each going on until it waits for a call that was not entered yet."""

    def __init__(self, computing: Sequence[FloatArray], matched: Matched) -> None:
        self.computing = [one.tolist() for one in computing]
        self.matched = matched
        self.entered: list[list[float]] = [[] for _ in computing]
        self.left: list[list[float]] = [[] for _ in computing]
        self.missing = [len(places) for places in matched.groups]
        self.latest = [0.0] * len(matched.groups)
        self.groups_of: dict[Place, int] = {
            place: number for number, places in enumerate(matched.groups) for place in places
        }
        self.sleeping: dict[Place | int, list[int]] = defaultdict(list)
        self.until_left: dict[Place, list[int]] = defaultdict(list)

    @property
    def times(self) -> tuple[list[list[float]], list[list[float]]]:
        return self.entered, self.left

    def all(self) -> None:
        ready = list(range(len(self.computing)))
        while ready:
            ready += self._further(ready.pop())
        for rank, one in enumerate(self.computing):
            if len(self.left[rank]) < len(one):
                raise ModelInvalid(
                    f"rank {rank} waits in its call {len(self.left[rank])} for ranks that wait for it; record the "
                    "program again"
                )

    def _further(self, rank: int) -> Iterator[int]:
        """Let a rank go on. Yields the ranks that this wakes."""
        entered, left, waits = self.entered[rank], self.left[rank], self.matched.waits[rank]
        while len(left) < len(self.computing[rank]):
            number = len(left)
            if len(entered) == number:
                entered.append((left[-1] if left else 0.0) + self.computing[rank][number])
                yield from self._woken(rank, number)
            end = entered[number]
            for other, call in waits.calls.get(number, ()):
                if len(self.entered[other]) <= call:
                    self.sleeping[other, call].append(rank)
                    return
                end = max(end, self.entered[other][call])
            for group in waits.groups.get(number, ()):
                if self.missing[group]:
                    self.sleeping[group].append(rank)
                    return
                end = max(end, self.latest[group])
            if number in waits.before:
                # Who stands right before has waited for all before it.
                group, count = waits.before[number]
                other, call = self.matched.groups[group][count - 1]
                if len(self.left[other]) <= call:
                    self.until_left[other, call].append(rank)
                    return
                end = max(end, self.left[other][call])
            left.append(end)
            yield from self.until_left.pop((rank, number), ())

    def _woken(self, rank: int, number: int) -> Iterator[int]:
        yield from self.sleeping.pop((rank, number), ())
        group = self.groups_of.get((rank, number))
        if group is not None:
            self.missing[group] -= 1
            self.latest[group] = max(self.latest[group], self.entered[rank][number])
            if not self.missing[group]:
                yield from self.sleeping.pop(group, ())


class _Last:
    """Of each collective call, who entered it last: of all, and of the members before each where that is waited for."""

    def __init__(self, times: Sequence[FloatArray], matched: Matched) -> None:
        self.of_all = [max(places, key=lambda place: times[place[0]][place[1], 0]) for places in matched.groups]
        self.before: dict[int, list[Place]] = {}
        for group in {group for waits in matched.waits for group, _ in waits.before.values()}:
            places = matched.groups[group]
            self.before[group] = list(accumulate(places, partial(max, key=lambda place: times[place[0]][place[1], 0])))


def _waiting(waits: Waits) -> set[int]:
    return waits.calls.keys() | waits.groups.keys() | waits.before.keys()


def waited(times: Sequence[FloatArray], matched: Matched) -> tuple[FloatArray, ...]:
    """Of each rank, until when each call waited for others to enter theirs: from its entry on, to its end at most."""
    last = _Last(times, matched)
    found = []
    for rank, one in enumerate(times):
        until = one[:, 0].copy()
        for number in _waiting(matched.waits[rank]):
            place = _awaited(times, matched, last, (rank, number))
            if place is not None:
                until[number] = times[place[0]][place[1], 0]
        found.append(until)
    return tuple(found)


def _awaited(times: Sequence[FloatArray], matched: Matched, last: _Last, place: Place) -> Place | None:
    """The call of another rank that this one waited for longest, if it waited."""
    rank, number = place
    waits = matched.waits[rank]
    entered, left = times[rank][number]
    others = [*waits.calls.get(number, ()), *(last.of_all[group] for group in waits.groups.get(number, ()))]
    if number in waits.before:
        group, count = waits.before[number]
        others.append(last.before[group][count - 1])
    late = [(float(times[other][call, 0]), (other, call)) for other, call in others]
    late = [one for one in late if entered < one[0] <= left]
    return max(late)[1] if late else None


def critical_path(times: Sequence[FloatArray], matched: Matched) -> Path:
    """From the last rank's end back: through its calls, and over to whoever a call waited for.

    times: of each rank, (calls, 2) seconds at which its calls were entered and left.
    """
    last = _Last(times, matched)
    ends = [float(one[-1, 1]) if len(one) else 0.0 for one in times]
    rank = ends.index(max(ends))
    number = len(times[rank]) - 1
    found: list[Segment] = []
    while number >= 0:
        end = float(times[rank][number, 1])
        place = _awaited(times, matched, last, (rank, number)) or (rank, number)
        begin = float(times[place[0]][place[1], 0])
        if end > begin:
            found.append(Segment(begin, place[0], end, rank, is_computing=False))
        rank, number = place
        before = float(times[rank][number - 1, 1]) if number else 0.0
        if begin > before:
            found.append(Segment(before, rank, begin, rank, is_computing=True))
        number -= 1
    return Path(tuple(reversed(found)))
