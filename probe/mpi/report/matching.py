# SPDX-License-Identifier: Apache-2.0
"""Match the calls of all recorded ranks: which calls of others each call has to wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from checkpoint.errors import ModelInvalid
from probe.mpi.library.calls import names
from probe.mpi.play import BOTH, ENDS, NEW, NUMBERS, RECEIVES, SENDS, answers_of
from probe.mpi.trace import RankCalls

Place = tuple[int, int]
"""A call: its rank, and its number there."""

_WAITING_SENDS: Final = {NUMBERS["Ssend"], NUMBERS["Issend"]}
_AT_ONCE: Final = {NUMBERS[name] for name in ("Isend", "Issend", "Ibsend", "Irsend", "Irecv")}
_FROM_ROOT: Final = {NUMBERS[name] for name in ("Bcast", "Scatter", "Scatterv", "Ibcast", "Iscatter", "Iscatterv")}
_TO_ROOT: Final = {NUMBERS[name] for name in ("Reduce", "Gather", "Gatherv", "Ireduce", "Igather", "Igatherv")}
_IN_ORDER: Final = {NUMBERS["Scan"], NUMBERS["Exscan"]}
_LATER: Final = {number for name, number in NUMBERS.items() if name.startswith("I") and number not in SENDS | RECEIVES}
"""Collective calls that a wait completes."""


@dataclass
class Waits:
    """What one rank waits for. calls: by number, the calls of others that must have been entered before it ends.

    groups: by number, places in `Matched.groups` of collective calls that all must have entered.
    before: by number, such a place and how many of its first members must have entered (MPI_Scan): one number for each
    rank, where the calls themselves would be as many as the ranks squared.
    """

    calls: dict[int, list[Place]] = field(default_factory=lambda: defaultdict(list))
    groups: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    before: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Matched:
    """What the ranks wait for, and the members of each collective call: in the order of their communicator, where some
    wait for those before them.
    """

    waits: tuple[Waits, ...]
    groups: tuple[tuple[Place, ...], ...]


_Key = tuple[Any, ...]
_Wish = tuple[str, _Key, int]
"""The n-th send or receive with a key; or a collective call, of all ranks (-1), of one, or of the first so many."""


class _Scan:
    """One pass over all ranks: messages and collective calls by their keys, and what each call wishes for."""

    def __init__(self, eager: int) -> None:
        self.eager = eager
        self.sends: dict[_Key, list[Place]] = defaultdict(list)
        self.receives: dict[_Key, list[Place]] = defaultdict(list)
        self.together: dict[_Key, list[Place]] = defaultdict(list)
        self.ordered: dict[_Key, list[int]] = {}
        self.wishes: list[dict[int, list[_Wish]]] = []
        self.made: dict[_Key, int] = {}

    def rank(self, found: RankCalls) -> None:
        """Add one rank's calls."""
        calls = found.calls
        answers = answers_of(found)
        comms: dict[int, _Key] = {0: ("world",), 1: ("self", found.rank)}
        members: dict[int, list[int]] = {0: list(range(found.ranks)), 1: [found.rank]}
        counted: dict[_Key, int] = defaultdict(int)
        pending: dict[int, list[_Wish]] = {}
        wishes: dict[int, list[_Wish]] = defaultdict(list)
        self.wishes.append(wishes)
        rows = zip(*(calls[name].tolist() for name in _COLUMNS), strict=True)
        for number, (function, peer, tag, comm, other, count, element, request) in enumerate(rows):
            place = (found.rank, number)
            if function in ENDS:
                for ended in found.extras_of(number)[::3].tolist():
                    wishes[number] += pending.pop(ended, [])
                continue
            if function == NUMBERS["Finalize"]:
                continue
            key = comms[comm]
            wanted: list[_Wish] = []
            if function in SENDS:
                waiting = function in _WAITING_SENDS or count * element >= self.eager
                wanted = self._sent(place, (*key, found.rank, peer, tag), waiting)
            elif function in RECEIVES:
                if function in _AT_ONCE:
                    ended = answers.get(request)
                    peer, tag = ended.pop() if ended else (-1, 0)
                wanted = self._received(place, (*key, peer, found.rank, max(tag, 0)))
            elif function in BOTH:
                back = int(found.extras_of(number)[0])
                wanted = self._sent(place, (*key, found.rank, peer, tag), count * element >= self.eager)
                wanted += self._received(place, (*key, other, found.rank, max(back, 0)))
            else:
                turn = (key, counted[key])
                counted[key] += 1
                self.together[turn].append(place)
                if function in NEW and other >= 0:
                    members[other] = found.extras_of(number).tolist()
                    # A number, since keys of communicators made of others would nest without end.
                    made = (*turn, *members[other][:1])
                    comms[other] = ("made", self.made.setdefault(made, len(self.made)))
                if function in _IN_ORDER:
                    self.ordered[turn] = members[comm]
                wanted = _collective(function, turn, found.rank, members[comm], other)
            if function in _AT_ONCE | _LATER:
                pending[request] = wanted
            else:
                wishes[number] += wanted

    def _sent(self, place: Place, key: _Key, waiting: bool) -> list[_Wish]:
        if key[-2] < 0:
            return []
        self.sends[key].append(place)
        return [("receive", key, len(self.sends[key]) - 1)] if waiting else []

    def _received(self, place: Place, key: _Key) -> list[_Wish]:
        if key[-3] < 0:
            return []
        self.receives[key].append(place)
        return [("send", key, len(self.receives[key]) - 1)]


_COLUMNS = ("function", "peer", "tag", "comm", "other", "count", "element", "request")


def _collective(function: int, turn: _Key, rank: int, members: Sequence[int], root: int) -> list[_Wish]:
    """What MPI itself says: the algorithms of a library may let ranks wait for others, too."""
    if function in _FROM_ROOT:
        return [] if members[root] == rank else [("one", turn, members[root])]
    if function in _TO_ROOT:
        return [("all", turn, -1)] if members[root] == rank else []
    if function in _IN_ORDER:
        return [("before", turn, members.index(rank))] if members[0] != rank else []
    return [("all", turn, -1)]


def matched(ranks: Sequence[RankCalls], eager: int) -> Matched:
    """Match all calls. eager: bytes from which on a send waits for its receiver.

    Raises ModelInvalid: a rank waits for a message or for a collective call that nobody makes. Raises ProbeFileDamaged.
    """
    scan = _Scan(eager)
    for found in ranks:
        scan.rank(found)
    turns = {turn: number for number, turn in enumerate(scan.together)}
    by_rank = {turn: dict(places) for turn, places in scan.together.items()}
    whole = {}
    for turn, members in scan.ordered.items():
        here = by_rank[turn]
        whole[turn] = next((n for n, rank in enumerate(members) if rank not in here), len(members))
        scan.together[turn] = [(rank, here[rank]) for rank in members if rank in here]
    waits = []
    for found, wishes in zip(ranks, scan.wishes, strict=True):
        one = Waits()
        for number, wanted in wishes.items():
            for kind, key, which in wanted:
                if kind == "all":
                    one.groups[number].append(turns[key])
                    continue
                if kind == "before":
                    if which > whole[key]:
                        raise _alone(found, number, kind)
                    one.before[number] = (turns[key], which)
                    continue
                listed = scan.sends if kind == "send" else scan.receives
                if kind == "one":
                    call = by_rank[key].get(which)
                    place = None if call is None else (which, call)
                else:
                    place = listed[key][which] if which < len(listed[key]) else None
                if place is None:
                    raise _alone(found, number, kind)
                one.calls[number].append(place)
        waits.append(one)
    return Matched(tuple(waits), tuple(tuple(places) for places in scan.together.values()))


def _alone(found: RankCalls, number: int, kind: str) -> ModelInvalid:
    name = names()[int(found.calls[number]["function"])]
    what = {"send": "a message that nobody sends", "receive": "a receive that nobody begins"}.get(
        kind, "its root" if kind == "one" else "ranks before it"
    )
    return ModelInvalid(f"call {number} of rank {found.rank}, MPI_{name}, waits for {what}; record the program again")
