# SPDX-License-Identifier: Apache-2.0
"""Write what the player plays of each rank, from its recorded calls: peers within communicators, wildcards answered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from checkpoint.errors import ProbeFileDamaged, ProgramUnsupported, StorageError
from probe.mpi.calls import NEW_COMMUNICATORS, calls, names
from probe.mpi.trace import MOST_REQUESTS, RankCalls

STEP: Final = np.dtype(
    [
        ("function", "<i4"), ("peer", "<i4"), ("tag", "<i4"), ("comm", "<i4"), ("count", "<i8"), ("element", "<i4"),
        ("request", "<i4"), ("other", "<i4"), ("extras", "<i4"), ("seconds", "<f8"),
    ]
)  # fmt: skip
"""A step of the player, in C: Step in pintools/mpi/player.c."""

MOST_BYTES = 2**31 - 1
"""Of a message: counts of MPI 3.1 are C's int."""

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
} | {NUMBERS[name]: 2 for name in ("Alltoallv", "Ialltoallv")}
"""Collective calls whose ranks give different amounts: how many numbers for each rank stand behind them."""
_AT_ROOT: Final = {NUMBERS[name] for name in ("Gatherv", "Scatterv", "Igatherv", "Iscatterv")}
"""Only their roots know the amounts."""
_ENDED_WORDS = 3
"""A completed request in the numbers behind a call: its number, who answered, with which tag."""


@dataclass(frozen=True)
class Played:
    """Calls of a rank that are played, and bytes of the largest message."""

    calls: int
    largest: int


def write_play(found: RankCalls, folder: Path, *, scale: float = 1.0) -> Played:
    """Write play.N of one rank. scale: of its computing times.

    Raises ProbeFileDamaged, ProgramUnsupported, StorageError.
    """
    steps = found.calls
    answers = answers_of(found)
    members: dict[int, list[int]] = {0: list(range(found.ranks)), 1: [found.rank]}
    made: list[bytes] = []
    largest = 0
    for number in range(len(steps)):
        one, extras = steps[number], found.extras_of(number)
        step, extras = _step(found, number, members, answers, extras)
        step["seconds"] = float(one["computing"]) * 1e-9 * scale
        largest = max(largest, _bytes(found, number, members))
        step["extras"] = len(extras)
        made += [step.tobytes(), extras.astype("<i4").tobytes(), b"\0" * (len(extras) % 2 * 4)]
    if largest > MOST_BYTES:
        raise ProgramUnsupported(
            f"rank {found.rank} sends {largest} bytes in one call; a simulation takes 2 GB at most"
        )
    try:
        (folder / f"play.{found.rank}").write_bytes(b"".join(made))
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written ({error.strerror})") from error
    return Played(len(steps), largest)


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


def _step(
    found: RankCalls,
    number: int,
    members: dict[int, list[int]],
    answers: dict[int, list[tuple[int, int]]],
    extras: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int32]]:
    one = found.calls[number]
    function = int(one["function"])
    step = np.zeros(1, dtype=STEP)
    for name in ("function", "peer", "tag", "comm", "count", "element", "request", "other"):
        step[name] = one[name].astype(np.int64)
    requests = extras[::_ENDED_WORDS]
    if function in ENDS and ((requests < 0) | (requests > MOST_REQUESTS)).any():
        raise _damaged(found, number, "names a request that nobody made")
    if int(one["element"]) == 0:
        step["count"] = 0
    if function in ENDS:
        step["comm"] = -1
        return step, extras.reshape(-1, _ENDED_WORDS)[:, 0].copy()
    own = members.get(int(one["comm"]))
    if own is None:
        raise _damaged(found, number, f"uses communicator {int(one['comm'])}, which it does not have")
    if function in NEW:
        step["tag"], step["peer"] = _made(found, number, members, extras)
        return step, extras[:0]
    if function in SENDS:
        step["peer"] = _place(found, number, own, int(one["peer"]))
        return step, extras[:0]
    if function in RECEIVES:
        peer, tag = int(one["peer"]), int(one["tag"])
        if function != NUMBERS["Recv"]:
            # A wildcard's answer is known where it is waited for.
            ended = answers.get(int(one["request"]))
            peer, tag = ended.pop() if ended else (-1, 0)
        step["peer"], step["tag"] = _place(found, number, own, peer), max(tag, 0)
        return step, extras[:0]
    if function in BOTH:
        if len(extras) != 2:
            raise _damaged(found, number, "does not say what it receives")
        step["peer"] = _place(found, number, own, int(one["peer"]))
        step["other"] = _place(found, number, own, int(one["other"]))
        return step, np.maximum(extras, 0)
    return step, _counts(found, number, len(own), extras)


def _made(
    found: RankCalls, number: int, members: dict[int, list[int]], extras: npt.NDArray[np.int32]
) -> tuple[int, int]:
    """What the ranks of a new communicator have in common, and the place of this one in it."""
    made = int(found.calls[number]["other"])
    if made < 0:
        return 0, 0
    ranks = extras.tolist()
    if found.rank not in ranks or not all(0 <= rank < found.ranks for rank in ranks) or made > len(found.calls) + 1:
        raise _damaged(found, number, "makes a communicator without itself")
    members[made] = ranks
    return ranks[0], ranks.index(found.rank)


def _place(found: RankCalls, number: int, members: list[int], rank: int) -> int:
    if rank < 0:
        return -1
    try:
        return members.index(rank)
    except ValueError:
        raise _damaged(found, number, f"names rank {rank}, which its communicator does not have") from None


def _counts(found: RankCalls, number: int, size: int, extras: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    root = int(found.calls[number]["other"])
    wanted = _COUNTS.get(int(found.calls[number]["function"]), 0) * size
    if int(found.calls[number]["function"]) in _AT_ROOT and not len(extras):
        wanted = 0
    if len(extras) != wanted or (extras < 0).any():
        raise _damaged(found, number, f"has {len(extras)} counts for {size} ranks")
    if not -1 <= root < size:
        raise _damaged(found, number, f"has the root {root} of {size} ranks")
    return extras


def _bytes(found: RankCalls, number: int, members: dict[int, list[int]]) -> int:
    one = found.calls[number]
    size = len(members.get(int(one["comm"]), ()))
    each = int(one["count"]) * int(one["element"])
    collective = int(one["peer"]) < 0 and int(one["function"]) not in ENDS | SENDS | RECEIVES
    return max(each * (size if collective else 1), int(found.extras_of(number).clip(0).sum(dtype=np.int64)))


def _damaged(found: RankCalls, number: int, text: str) -> ProbeFileDamaged:
    name = names()[int(found.calls[number]["function"])]
    return ProbeFileDamaged(f"call {number} of rank {found.rank}, MPI_{name}, {text}; record the program again")
