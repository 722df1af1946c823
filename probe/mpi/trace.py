# SPDX-License-Identifier: Apache-2.0
"""Calls of recorded ranks, each with the computing time before it: what a simulation plays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from checkpoint.errors import ProbeFileDamaged
from probe.mpi.calls import names
from probe.mpi.parts import END, Part, parts

CALL: Final = np.dtype(
    [
        ("function", "<u2"), ("reserved", "<u2"), ("extras", "<u4"), ("peer", "<i4"), ("tag", "<i4"), ("comm", "<i4"),
        ("other", "<i4"), ("count", "<u8"), ("element", "<u4"), ("request", "<u4"), ("computing", "<u8"),
        ("inside", "<u8"), ("site", "<u8"),
    ]
)  # fmt: skip
"""A call as the recorder writes it. peer: rank in MPI_COMM_WORLD; computing, inside: ns; extras: numbers behind it."""

_MOST_NS = 10**18
_MOST_COUNT = 1 << 40
MOST_REQUESTS = 1 << 26
"""Of a rank's requests: their numbers begin at 0."""


@dataclass(frozen=True)
class RankCalls:
    """The calls of one rank, in order. first: index in `extras` of each call's own, and one more for the end.

    own_threads: most that the program itself had beside its first. processors: that it could use; 0: not known.
    """

    rank: int
    ranks: int
    calls: npt.NDArray[Any]
    extras: npt.NDArray[np.int32]
    first: npt.NDArray[np.int64]
    own_threads: int = 0
    processors: int = 0

    @property
    def computing(self) -> float:
        """Seconds between the calls: of CPU time, or while threads of the program's own had a processor."""
        return float(self.calls["computing"].sum()) * 1e-9

    @property
    def inside(self) -> float:
        """Seconds of wall time in the calls."""
        return float(self.calls["inside"].sum()) * 1e-9

    @property
    def sent(self) -> int:
        """Bytes that the rank hands over to be sent, a collective's once."""
        return int((self.calls["count"] * self.calls["element"]).sum())

    def only(self, kept: npt.NDArray[np.bool_]) -> RankCalls:
        """The same rank with those of its calls alone."""
        lengths = np.diff(self.first)
        first = np.concatenate([[0], np.cumsum(lengths[kept])]).astype(np.int64)
        return replace(self, calls=self.calls[kept], extras=self.extras[np.repeat(kept, lengths)], first=first)

    def extras_of(self, number: int) -> npt.NDArray[np.int32]:
        """The numbers behind one call."""
        return self.extras[self.first[number] : self.first[number + 1]]


def read_calls(folder: Path, rank: int) -> RankCalls:
    """The calls of one rank, checked. Raises ProbeFileDamaged and StorageError."""
    calls, extras, ranks, ended, own_threads, processors = [], [], 0, False, 0, 0
    for part in parts(folder, "calls", rank):
        ranks = part.ranks
        place = 0
        while place < len(part.contents):
            if ended:
                raise part.damaged("goes on after its end", place)
            one = _call(part, place, ranks)
            place += CALL.itemsize
            ended = int(one["function"]) == END
            if ended:
                own_threads, processors = int(one["count"]), int(one["element"])
                continue
            count = int(one["extras"])
            room = (count + count % 2) * 4
            if room > len(part.contents) - place:
                raise part.damaged("numbers of a call are cut short", place)
            calls.append(one)
            extras.append(np.frombuffer(part.contents, dtype="<i4", count=count, offset=place))
            place += room
    if not ended:
        raise ProbeFileDamaged(f"{folder}: the calls of rank {rank} have no end: the rank ended before MPI_Finalize")
    first = np.concatenate([[0], np.cumsum([len(one) for one in extras])]).astype(np.int64)
    flat = np.concatenate(extras).astype(np.int32) if extras else np.zeros(0, np.int32)
    return RankCalls(rank, ranks, np.array(calls, dtype=CALL), flat, first, own_threads, processors)


def _call(part: Part, place: int, ranks: int) -> Any:
    if len(part.contents) - place < CALL.itemsize:
        raise part.damaged("half of a call", place)
    one = np.frombuffer(part.contents, dtype=CALL, count=1, offset=place)[0]
    function = int(one["function"])
    if function != END and function >= len(names()):
        raise part.damaged(f"call number {function}, which is none,", place)
    if not -1 <= int(one["peer"]) < ranks:
        raise part.damaged(f"a call to rank {int(one['peer'])} of {ranks}", place)
    if int(one["count"]) > _MOST_COUNT or int(one["element"]) >= 2**31 or int(one["request"]) > MOST_REQUESTS:
        raise part.damaged("a call larger than any", place)
    if int(one["computing"]) > _MOST_NS or int(one["inside"]) > _MOST_NS:
        raise part.damaged("a call that lasts for decades", place)
    return one
