# SPDX-License-Identifier: Apache-2.0
"""Calls of recorded ranks, each with the computing time before it: what a simulation plays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from checkpoint.errors import ProbeFileDamaged
from probe.mpi.library.calls import names
from probe.mpi.parts import END, Part, parts

CALL: Final = np.dtype(
    [
        ("function", "<u2"), ("reserved", "<u2"), ("extras", "<u4"), ("peer", "<i4"), ("tag", "<i4"), ("comm", "<i4"),
        ("other", "<i4"), ("count", "<u8"), ("element", "<u4"), ("request", "<u4"), ("computing", "<u8"),
        ("inside", "<u8"), ("site", "<u8"),
    ]
)  # fmt: skip
"""A call as the recorder writes it. peer: rank in MPI_COMM_WORLD; computing, inside: ns; extras: numbers behind it."""

_CALL_WORDS = CALL.itemsize // 4
_MOST_NS = 10**18
_MOST_COUNT = 1 << 40
MOST_REQUESTS = 1 << 26
"""Of a rank's requests: their numbers begin at 0."""


@dataclass(frozen=True)
class RankCalls:
    """The calls of one rank, in order. first: index in `extras` of each call's own, and one more for the end.

    own_threads: most that the program itself had beside its first. processors: that it could use; 0: not known.
    folder: the recording.
    """

    rank: int
    ranks: int
    calls: npt.NDArray[Any]
    extras: npt.NDArray[np.int32]
    first: npt.NDArray[np.int64]
    own_threads: int = 0
    processors: int = 0
    folder: Path = Path()

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


@dataclass(frozen=True)
class Shared:
    """A communicator of several ranks, as one of them has it. key: a digest of its members, and of where it was made.

    calls: a digest of the collective calls on it, with their roots and amounts. made: the call of that rank which made
    it; -1: MPI_COMM_WORLD.
    """

    key: bytes
    size: int
    calls: bytes
    made: int


class Agreement:
    """What the ranks of a recording say of the communicators that they share.

    Where they agree, a communicator has the members that each of them says, and each takes from a collective call as
    many bytes as the others give.
    """

    def __init__(self) -> None:
        self._first: dict[bytes, tuple[Path, int, Shared]] = {}
        self._sharers: dict[bytes, int] = {}

    def add(self, found: RankCalls, said: Iterable[Shared]) -> None:
        """Add a rank. Raises ProbeFileDamaged where its calls are not those of another rank with the communicator."""
        for one in said:
            _, rank, first = self._first.setdefault(one.key, (found.folder, found.rank, one))
            self._sharers[one.key] = self._sharers.get(one.key, 0) + 1
            if first.calls != one.calls:
                where = "MPI_COMM_WORLD" if one.made < 0 else f"the communicator that its call {one.made} made"
                raise ProbeFileDamaged(
                    f"{found.folder}: rank {found.rank} contradicts rank {rank}: collective calls, roots or amounts "
                    f"differ on {where}; record the program again"
                )

    def refuse_unshared(self) -> None:
        """Raise ProbeFileDamaged for a communicator that not all of its members have."""
        for key, (folder, rank, first) in self._first.items():
            if self._sharers[key] != first.size:
                raise ProbeFileDamaged(
                    f"{folder}: rank {rank} makes a communicator of {first.size} ranks in its call {first.made}, and "
                    f"{self._sharers[key]} of them say the same; record the program again"
                )


def read_calls(folder: Path, rank: int) -> RankCalls:
    """The calls of one rank, checked. Raises ProbeFileDamaged and StorageError."""
    found, extras, ranks, ended = [np.zeros(0, dtype=CALL)], [np.zeros(0, dtype=np.int32)], 0, False
    for part in parts(folder, "calls", rank):
        ranks = part.ranks
        if ended and part.contents:
            raise part.damaged("goes on after its end", 0)
        calls, numbers = _calls(part)
        ended = ended or (len(calls) > 0 and int(calls["function"][-1]) == END)
        found.append(calls)
        extras.append(numbers)
    rows = np.concatenate(found)
    if not len(rows) or int(rows["function"][-1]) != END:
        raise ProbeFileDamaged(f"{folder}: the calls of rank {rank} have no end: the rank ended before MPI_Finalize")
    calls, last = rows[:-1], rows[-1]
    first = np.concatenate([[0], np.cumsum(calls["extras"], dtype=np.int64)])
    return RankCalls(
        rank, ranks, calls, np.concatenate(extras), first, own_threads=int(last["count"]),
        processors=int(last["element"]), folder=folder,
    )  # fmt: skip


def _calls(part: Part) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32]]:
    """The calls of one part, the end among them, and all numbers behind them."""
    words = memoryview(part.contents).cast("I")
    starts, place, cut = [], 0, ""
    while place < len(words):
        if len(words) - place < _CALL_WORDS:
            cut = "half of a call"
            break
        starts.append(place)
        # The end has no numbers behind it.
        count = 0 if words[place] & 0xFFFF == END else words[place + 1]
        if count + count % 2 > len(words) - place - _CALL_WORDS:
            place, cut = place + _CALL_WORDS, "numbers of a call are cut short"
            break
        place += _CALL_WORDS + count + count % 2
    at = np.array(starts, dtype=np.int64)
    contents = np.frombuffer(part.contents, dtype="<i4")
    calls = contents[at[:, None] + np.arange(_CALL_WORDS)].reshape(-1).view(CALL)
    _refuse_impossible(part, calls, at * 4)
    if cut:
        raise part.damaged(cut, place * 4)
    counts = np.where(calls["function"] == END, 0, calls["extras"]).astype(np.int64)
    behind = np.repeat(at + _CALL_WORDS - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    return calls, contents[behind]


def _refuse_impossible(part: Part, calls: npt.NDArray[Any], places: npt.NDArray[np.int64]) -> None:
    function = calls["function"]
    large = (calls["count"] > _MOST_COUNT) | (calls["element"] >= 2**31) | (calls["request"] > MOST_REQUESTS)
    ended = np.zeros(len(calls), dtype=bool)
    ended[1:] = np.cumsum(function == END)[:-1] > 0
    checks = (
        (ended, "goes on after its end"),
        ((function != END) & (function >= len(names())), "call number {function}, which is none,"),
        ((calls["peer"] < -1) | (calls["peer"] >= part.ranks), "a call to rank {peer} of {ranks}"),
        (large, "a call larger than any"),
        ((calls["computing"] > _MOST_NS) | (calls["inside"] > _MOST_NS), "a call that lasts for decades"),
    )
    for wrong, text in checks:
        if wrong.any():
            first = int(np.argmax(wrong))
            said = text.format(function=function[first], peer=calls["peer"][first], ranks=part.ranks)
            raise part.damaged(said, int(places[first]))
