# SPDX-License-Identifier: Apache-2.0
"""Write what the player plays of each rank, from its recorded calls: peers within communicators, wildcards answered."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from checkpoint.errors import ProbeFileDamaged, ProgramUnsupported, StorageError
from probe.mpi.library.calls import NEW_COMMUNICATORS, calls, collectives, names
from probe.mpi.trace import MOST_REQUESTS, Agreement, RankCalls, Shared

STEP: Final = np.dtype(
    [
        ("function", "<i4"), ("peer", "<i4"), ("tag", "<i4"), ("comm", "<i4"), ("count", "<i8"), ("element", "<i4"),
        ("request", "<i4"), ("other", "<i4"), ("extras", "<i4"), ("seconds", "<f8"),
    ]
)  # fmt: skip
"""A step of the player, in C: Step in pintools/mpi/player.c."""

MOST_BYTES = 2**31 - 1
"""Of a message: counts of MPI 3.1 are C's int."""

MOST_OPEN = 1 << 20
"""Requests of a rank that are open at once: the player has a place for each (MOST_OPEN in pintools/mpi/player.c)."""

NUMBERS: Final = {name: number for number, name in enumerate(names())}
NEW: Final = {NUMBERS[call.name] for call in calls(NEW_COMMUNICATORS)}
ENDS: Final = {
    NUMBERS[name]
    for name in ("Wait", "Waitall", "Waitany", "Waitsome", "Test", "Testall", "Testany", "Testsome")
}  # fmt: skip
"""Calls that complete requests."""
SENDS: Final = {NUMBERS[f"{kind}{name}"] for kind, name in (
    ("", "Send"), ("", "Ssend"), ("", "Bsend"), ("", "Rsend"), ("I", "send"), ("I", "ssend"), ("I", "bsend"),
    ("I", "rsend"),
)}  # fmt: skip
RECEIVES: Final = {NUMBERS["Recv"], NUMBERS["Irecv"]}
BOTH: Final = {NUMBERS["Sendrecv"], NUMBERS["Sendrecv_replace"]}
_COUNTS: Final = {
    NUMBERS[name]: 1
    for each in ("Reduce_scatter", "Gatherv", "Scatterv", "Allgatherv")
    for name in (each, f"I{each.lower()}")
} | {NUMBERS[name]: 2 for name in ("Alltoallv", "Ialltoallv", "Alltoallw", "Ialltoallw")}
"""Collective calls whose ranks give different amounts: how many numbers for each rank stand behind them."""
_AT_ROOT: Final = {NUMBERS[name] for name in ("Gatherv", "Scatterv", "Igatherv", "Iscatterv")}
"""Only their roots know the amounts."""
_LISTED: Final = [NUMBERS[name] for name in ("Allgatherv", "Iallgatherv", "Reduce_scatter", "Ireduce_scatter")]
"""Of these, calls to which all ranks give the same numbers."""
_ROOTED: Final = [
    number for name, number in NUMBERS.items()
    if name.lower().removeprefix("i") in ("bcast", "reduce", "gather", "gatherv", "scatter", "scatterv")
]  # fmt: skip
_TOGETHER: Final = [*NEW, *(NUMBERS[one.call.name] for one in collectives())]
"""Calls that all ranks of a communicator make, in one order."""
_BLOCKS: Final = [
    number for name, number in NUMBERS.items()
    if name.lower().removeprefix("i") in ("gather", "scatter", "allgather", "alltoall", "reduce_scatter_block")
]  # fmt: skip
"""Collective calls that need room for so much of each rank."""
_BEGUN: Final = [
    number for name, number in NUMBERS.items()
    if name.startswith("I") and name[1:].capitalize() in NUMBERS and name not in ("Iprobe", "Improbe")
]  # fmt: skip
"""Calls that begin a request, which one of ENDS completes."""
_ENDED_WORDS = 3
"""A completed request in the numbers behind a call: its number, who answered, with which tag."""


@dataclass(frozen=True)
class Played:
    """Calls of a rank that are played, and bytes of the largest message."""

    calls: int
    largest: int


def write_plays(ranks: Iterable[RankCalls], folder: Path, *, scale: float = 1.0) -> tuple[Played, ...]:
    """Write play.N of all ranks of a recording. scale: of their computing times.

    Raises ProgramUnsupported, StorageError. Raises ProbeFileDamaged, also where ranks contradict each other.
    """
    agreement = Agreement()
    played = tuple(write_play(one, folder, scale=scale, agreement=agreement) for one in ranks)
    agreement.refuse_unshared()
    return played


def write_play(
    found: RankCalls, folder: Path, *, scale: float = 1.0, agreement: Agreement | None = None
) -> Played:  # fmt: skip
    """Write play.N of one rank. scale: of its computing times. agreement: of the recording's ranks, with this one.

    Raises ProbeFileDamaged, ProgramUnsupported, StorageError.
    """
    calls = found.calls
    function = calls["function"].astype(np.int64)
    ends, made, both = (np.isin(function, list(those)) for those in (ENDS, NEW, BOTH))
    sends, receives = np.isin(function, list(SENDS)), np.isin(function, list(RECEIVES))
    steps = np.zeros(len(calls), dtype=STEP)
    for name in ("function", "peer", "tag", "comm", "element", "other"):
        steps[name] = calls[name]
    steps["count"] = np.where(calls["element"] == 0, 0, calls["count"])
    steps["seconds"] = calls["computing"] * 1e-9 * scale
    steps["comm"][ends] = -1
    waited = _numbered(found, ends, steps)
    used = _Communicators(found, made, ~ends)
    steps["tag"][made], steps["peer"][made], steps["count"][made] = used.colours, used.places, used.made_sizes
    for each in (sends, receives, both):
        used.place(each, steps["peer"])
    used.place(both, steps["other"])
    counted = ~(ends | made | sends | receives | both)
    _refuse_miscounted(found, both, counted, used)
    steps["tag"][receives] = steps["tag"][receives].clip(0)
    # Of what a wait completes the requests alone, of what gives each rank another amount all.
    behind = np.diff(found.first)
    owner = np.repeat(np.arange(len(calls)), behind)
    numbers = found.extras[(both | counted)[owner]].clip(0)
    kept = np.where(both | counted, behind, np.where(ends, behind // _ENDED_WORDS, 0))
    steps["extras"] = kept
    largest = _largest(found, both, counted, used.sizes)
    if largest > MOST_BYTES:
        raise ProgramUnsupported(
            f"rank {found.rank} sends {largest} bytes in one call; a simulation takes 2 GB at most"
        )
    if agreement is not None:
        agreement.add(found, used.shared())
    try:
        (folder / f"play.{found.rank}").write_bytes(_packed(steps, kept, ends, waited, numbers))
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written ({error.strerror})") from error
    return Played(len(steps), largest)


def _packed(
    steps: npt.NDArray[Any], kept: npt.NDArray[np.int64], ends: npt.NDArray[np.bool_], waited: list[int],
    numbers: npt.NDArray[np.int32],
) -> bytes:  # fmt: skip
    """The bytes of the player's file: each step, and the numbers behind it in pairs."""
    words = STEP.itemsize // 4
    lengths = words + kept + kept % 2
    starts = np.cumsum(lengths) - lengths
    packed = np.zeros(int(lengths.sum()), dtype="<i4")
    packed[starts[:, None] + np.arange(words)] = steps.view("<i4").reshape(-1, words)
    owner = np.repeat(np.arange(len(steps)), kept)
    behind = starts[owner] + words + np.arange(len(owner)) - (np.cumsum(kept) - kept)[owner]
    packed[behind[ends[owner]]] = waited
    packed[behind[~ends[owner]]] = numbers
    return packed.tobytes()


def _numbered(found: RankCalls, ends: npt.NDArray[np.bool_], steps: npt.NDArray[Any]) -> list[int]:
    """Give requests places of their own while they are open, from 1 on, in `steps`, and receives their answers.

    Returns the places that the waits complete, in order; 0 for a request that is not open. The player's memory then
    is for as many requests as are open at once.
    """
    answers = answers_of(found)
    begun = np.isin(steps["function"], _BEGUN)
    asked = found.calls["request"].tolist()
    place, peers, tags = ([0] * len(steps) for _ in range(3))
    open_places: dict[int, int] = {}
    free: list[int] = []
    most = 0
    waited: list[int] = []
    received = steps["function"] == NUMBERS["Irecv"]
    for number in np.flatnonzero(begun | ends).tolist():
        if ends[number]:
            for request in found.extras_of(number)[::_ENDED_WORDS].tolist():
                if not 0 <= request <= MOST_REQUESTS:
                    raise _damaged(found, number, "names a request that nobody made")
                one = open_places.pop(request, 0)
                waited.append(one)
                if one:
                    free.append(one)
            continue
        request = asked[number]
        if request not in open_places:
            most += not free
            if most > MOST_OPEN:
                raise ProgramUnsupported(
                    f"{found.folder}: rank {found.rank} has more than {MOST_OPEN} requests open in its call {number}; "
                    "a simulation takes no more: let the program wait for some of them before"
                )
            open_places[request] = free.pop() if free else most
        place[number] = open_places[request]
        if received[number]:
            # A wildcard's answer is known where it is waited for.
            ended = answers.get(request)
            peers[number], tags[number] = ended.pop() if ended else (-1, 0)
    steps["request"] = place
    steps["peer"] = np.where(received, peers, steps["peer"])
    steps["tag"] = np.where(received, tags, steps["tag"])
    return waited


class _Communicators:
    """Which communicator each call uses, by the order in which they were made. used: calls that need one.

    colours, places, made_sizes: of the calls that make one, what its ranks have in common, the place of this one in it,
    and how many there are. sizes, own_places: of each call's communicator, how many ranks it has, 0: it needs none; and
    the place of this one.
    """

    def __init__(self, found: RankCalls, made: npt.NDArray[np.bool_], used: npt.NDArray[np.bool_]) -> None:
        self.found = found
        self.colours, self.places, self.made_sizes = [], [], []
        members = [np.arange(found.ranks), np.array([found.rank])]
        own_places = [found.rank, 0]
        keys = [(0, -1), (1, -1)]
        for number in np.flatnonzero(made).tolist():
            ranks = found.extras_of(number)
            other = int(found.calls[number]["other"])
            here = np.flatnonzero(ranks == found.rank)
            if other < 0:
                self.colours.append(0)
                self.places.append(0)
                self.made_sizes.append(0)
                continue
            if not len(here) or (ranks < 0).any() or (ranks >= found.ranks).any() or other > len(found.calls) + 1:
                raise _damaged(found, number, "makes a communicator without itself")
            if len(np.unique(ranks)) < len(ranks):
                raise _damaged(found, number, "makes a communicator with a rank that it has already")
            self.colours.append(int(ranks[0]))
            self.places.append(int(here[0]))
            self.made_sizes.append(len(ranks))
            members.append(ranks)
            own_places.append(int(here[0]))
            keys.append((other, number))
        self.members = members
        self.makers = [number for _, number in keys]
        # A number may be used again: the last one made before a call counts.
        calls = len(found.calls) + 1
        comms = np.array(keys, dtype=np.int64)
        order = np.lexsort((comms[:, 1], comms[:, 0]))
        sorted_keys = comms[order, 0] * calls + comms[order, 1] + 1
        wanted = found.calls["comm"].astype(np.int64)
        at = np.searchsorted(sorted_keys, wanted * calls + np.arange(len(wanted)), side="right") - 1
        self.own = order[at.clip(0)]
        unknown = used & ((at < 0) | (comms[self.own, 0] != wanted))
        if unknown.any():
            number = int(np.argmax(unknown))
            raise _damaged(found, number, f"uses communicator {int(wanted[number])}, which it does not have")
        self.sizes = np.where(used, np.array([len(one) for one in members])[self.own], 0)
        self.own_places = np.array(own_places)[self.own]

    def shared(self) -> Iterator[Shared]:
        """What this rank says of each communicator that it shares with others."""
        calls = self.found.calls
        numbers = np.flatnonzero(np.isin(calls["function"], _TOGETHER))
        numbers = numbers[np.argsort(self.own[numbers], kind="stable")]
        begins = np.searchsorted(self.own[numbers], np.arange(len(self.members) + 1))
        turns = np.zeros(len(calls), dtype=np.int64)
        turns[numbers] = np.arange(len(numbers)) - begins[self.own[numbers]]
        function = calls["function"][numbers]
        told = np.zeros((len(numbers), 3), dtype="<i8")
        told[:, 0] = function
        told[:, 1] = np.where(np.isin(function, _ROOTED), calls["other"][numbers], 0)
        told[:, 2] = np.where(np.isin(function, [*NEW, *_COUNTS]), 0, (calls["count"] * calls["element"])[numbers])
        listed = np.isin(function, _LISTED)
        keys: list[bytes] = []
        for own, (made, members) in enumerate(zip(self.makers, self.members, strict=True)):
            # Made by which of the calls on which communicator; numbers of communicators are each rank's own.
            parent = b"" if made < 0 else keys[self.own[made]] + turns[made].tobytes()
            keys.append(hashlib.sha256(parent + members.astype("<i8").tobytes()).digest())
            these = slice(begins[own], begins[own + 1])
            digest = hashlib.sha256(told[these].tobytes())
            for number in numbers[these][listed[these]].tolist():
                digest.update(self.found.extras_of(number).tobytes())
            if len(members) > 1:
                yield Shared(keys[own], len(members), digest.digest(), made)

    def place(self, those: npt.NDArray[np.bool_], ranks: npt.NDArray[np.int32]) -> None:
        """Replace ranks of the program by their places in the calls' communicators."""
        chosen = np.flatnonzero(those & (ranks >= 0))
        ranks[those & (ranks < 0)] = -1
        for own in np.unique(self.own[chosen]).tolist():
            numbers = chosen[self.own[chosen] == own]
            members = self.members[own]
            order = np.argsort(members, kind="stable")
            wanted = ranks[numbers]
            at = order[np.searchsorted(members[order], wanted).clip(0, len(members) - 1)]
            outside = members[at] != wanted
            if outside.any():
                number = int(numbers[np.argmax(outside)])
                raise _damaged(
                    self.found, number, f"names rank {int(ranks[number])}, which its communicator does not have"
                )
            ranks[numbers] = at


def answers_of(found: RankCalls) -> dict[int, list[tuple[int, int]]]:
    """Last first: who answered each request, and with which tag; one with a start for each persistent request."""
    answers: dict[int, list[tuple[int, int]]] = {}
    for number in np.flatnonzero(np.isin(found.calls["function"], list(ENDS))):
        extras = found.extras_of(int(number))
        if len(extras) % _ENDED_WORDS:
            raise _damaged(found, int(number), "waits for half of a request")
        for request, peer, tag in extras.reshape(-1, _ENDED_WORDS).tolist():
            answers.setdefault(request, []).append((peer, tag))
    for ended in answers.values():
        ended.reverse()
    return answers


def _refuse_miscounted(
    found: RankCalls, both: npt.NDArray[np.bool_], counted: npt.NDArray[np.bool_], used: _Communicators
) -> None:
    """Refuse collective calls without an amount for each rank, or with a root that their communicator does not have."""
    calls, behind, sizes = found.calls, np.diff(found.first), used.sizes
    mute = both & (behind != 2)
    if mute.any():
        raise _damaged(found, int(np.argmax(mute)), "does not say what it receives")
    each = np.zeros(len(NUMBERS), dtype=np.int64)
    each[list(_COUNTS)] = list(_COUNTS.values())
    unasked = np.isin(calls["function"], list(_AT_ROOT)) & (behind == 0) & (calls["other"] != used.own_places)
    wanted = np.where(unasked, 0, each[calls["function"]] * sizes)
    negative = np.zeros(len(calls), dtype=bool)
    negative[np.repeat(np.arange(len(calls)), behind)[found.extras < 0]] = True
    wrong = counted & ((behind != wanted) | negative)
    if wrong.any():
        number = int(np.argmax(wrong))
        raise _damaged(found, number, f"has {int(behind[number])} counts for {int(sizes[number])} ranks")
    least = np.where(np.isin(calls["function"], _ROOTED), 0, -1)
    wrong = counted & ((calls["other"] < least) | (calls["other"] >= sizes))
    if wrong.any():
        number = int(np.argmax(wrong))
        raise _damaged(found, number, f"has the root {int(calls[number]['other'])} of {int(sizes[number])} ranks")


def _largest(
    found: RankCalls, both: npt.NDArray[np.bool_], counted: npt.NDArray[np.bool_], sizes: npt.NDArray[np.int64]
) -> int:
    """Bytes of the largest message, or of all that a collective call gives to a rank or takes from it."""
    calls = found.calls
    if not len(calls):
        return 0
    blocks = np.where(np.isin(calls["function"], _BLOCKS), sizes, 1)
    # Of damaged recordings the product may be more than 64 bits hold.
    each = calls["count"].astype(np.float64) * calls["element"] * blocks
    sums = np.concatenate([[0], np.cumsum(found.extras.clip(0), dtype=np.int64)])
    given = np.where(counted, sums[found.first[1:]] - sums[found.first[:-1]], 0)
    back = found.extras[(found.first[1:] - 1)[both]].clip(0)
    return max(int(each.max()), int(given.max()), int(back.max(initial=0)))


def _damaged(found: RankCalls, number: int, text: str) -> ProbeFileDamaged:
    name = names()[int(found.calls[number]["function"])]
    return ProbeFileDamaged(
        f"{found.folder}: call {number} of rank {found.rank}, MPI_{name}, {text}; record the program again"
    )
