# SPDX-License-Identifier: Apache-2.0
"""Reader of time-independent traces that others wrote: what SimGrid could not replay is refused by rank and line."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Final

from checkpoint.errors import ModelInvalid, StorageError
from probe.simulation.trace import ANY_SOURCE, INDEX, MOST_LINES, RECORDED_ANY_SOURCE, Trace, rank_files

MOST_RANKS = 4_000_000
LONGEST_LINE = 100_000
"""Bytes; a gatherv names a number for each rank."""

_WORDS: Final = {
    "init": 0, "finalize": 0, "comm_size": 1, "comm_split": 1, "comm_dup": 1, "compute": 1, "sleep": 1, "location": 2,
    "send": 3, "isend": 3, "recv": 3, "irecv": 3, "wait": 3, "test": 3, "waitall": 0, "barrier": 0, "bcast": 1,
    "reduce": 2, "allreduce": 2, "gather": 2, "scatter": 2, "allgather": 2, "alltoall": 2, "gatherv": 2, "scatterv": 2,
    "allgatherv": 2, "alltoallv": 2, "reducescatter": 2, "scan": 2, "exscan": 2,
}  # fmt: skip
"""Actions that SimGrid replays, and the least numbers behind each."""

_COLLECTIVES: Final = frozenset(
    ("barrier", "bcast", "reduce", "allreduce", "gather", "scatter", "allgather", "alltoall", "gatherv", "scatterv",
     "allgatherv", "alltoallv", "reducescatter", "scan", "exscan")
)  # fmt: skip
_BYTES: Final = {
    0: 8, 1: 4, 2: 1, 3: 2, 4: 8, 5: 4, 6: 1, 7: 8, 8: 1, 9: 1, 10: 2, 11: 4, 12: 8, 13: 8, 14: 4, 15: 1, 16: 1, 17: 2,
    18: 4, 19: 8, 20: 1, 21: 2, 22: 4, 23: 8,
}  # fmt: skip
"""Of SMPI's datatypes by number: MPI_DOUBLE, MPI_INT, MPI_CHAR, MPI_SHORT, MPI_LONG, MPI_FLOAT, MPI_BYTE and others."""

_DEFAULT_TYPE = 6

_ANY_TAG = -444
_ANY_SOURCES: Final = (ANY_SOURCE, RECORDED_ANY_SOURCE)

Route = tuple[int, int, int]
"""Sender, receiver, tag; below 0: any."""


@dataclass(frozen=True)
class Foreign:
    """A trace that can be replayed. sent: messages by (sender, receiver, bytes). collectives: calls of one rank."""

    trace: Trace
    ranks: int
    sent: Counter[tuple[int, int, int]]
    collectives: Counter[str]


@dataclass
class _Rank:
    """What is known of one rank up to the line at hand."""

    rank: int
    path: Path
    pending: Counter[Route] = field(default_factory=Counter)
    collectives: list[tuple[str, int]] = field(default_factory=list)
    line: int = 0

    def refused(self, text: str, line: int = 0) -> ModelInvalid:
        return ModelInvalid(f"{self.path}:{line or self.line}: rank {self.rank} {text}")


@dataclass
class _Messages:
    """Messages of all ranks. last: the line of the last receive of a kind, to be named."""

    sent: Counter[Route] = field(default_factory=Counter)
    received: Counter[Route] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    lines: dict[Route, int] = field(default_factory=dict)


def read_trace(path: Path) -> Foreign:
    """Read and check a trace: a folder with trace.txt, or the file that names the ranks' files.

    Raises ModelInvalid: an action that SimGrid does not replay, a wait without its request, a receive that nobody
    sends, a message that nobody receives, ranks whose collectives differ, a trace cut short. Raises StorageError.
    """
    index = path / INDEX if path.is_dir() else path
    files = _files(index)
    messages, lines = _Messages(), 0
    first: _Rank | None = None
    for number, file in enumerate(files):
        found = _Rank(number, file)
        lines += _read_rank(found, len(files), messages)
        if lines > MOST_LINES:
            raise ModelInvalid(f"{index}: has more than {MOST_LINES} lines")
        first = first or found
        _refuse_other_collectives(first, found)
    _refuse_unmatched(messages, files)
    assert first is not None
    return Foreign(Trace(index, lines), len(files), messages.sizes, Counter(name for name, _ in first.collectives))


def _files(index: Path) -> list[Path]:
    files = rank_files(index)
    if not 0 < len(files) <= MOST_RANKS:
        raise ModelInvalid(f"{index}: names {len(files)} files of ranks, not 1 to {MOST_RANKS}")
    for file in files:
        if not file.is_file():
            raise ModelInvalid(f"{index}: names {file}, which is no file")
    return files


def _read_rank(rank: _Rank, ranks: int, messages: _Messages) -> int:
    """Check one rank's file; return how many lines it has."""
    last = ""
    for words in _lines(rank):
        if words[0] != str(rank.rank):
            raise rank.refused(f"is expected here, not {words[0]}")
        action = words[1] if len(words) > 1 else ""
        if last == "finalize":
            raise rank.refused("goes on after finalize")
        if (action == "init") == bool(last):
            raise rank.refused("begins with init, and once")
        _check(rank, action, words[2:], ranks, messages)
        last = action
    if last != "finalize":
        raise rank.refused("does not end with finalize: the trace is cut short")
    return rank.line


def _lines(rank: _Rank) -> Iterator[list[str]]:
    """The words of each line that has any."""
    try:
        with rank.path.open() as file:
            while text := file.readline(LONGEST_LINE):
                rank.line += 1
                if not text.endswith("\n"):
                    longer = len(text) == LONGEST_LINE
                    raise rank.refused("has a line too long" if longer else "has a line without end: it is cut short")
                if words := text.split():
                    yield words
    except UnicodeDecodeError as error:
        raise rank.refused("has bytes that are no text") from error
    except OSError as error:
        raise StorageError(f"{rank.path}: cannot be read ({error.strerror})") from error


def _check(rank: _Rank, action: str, words: list[str], ranks: int, messages: _Messages) -> None:
    if action not in _WORDS:
        raise rank.refused(f"does '{action}', which SimGrid does not replay")
    if len(words) < _WORDS[action]:
        raise rank.refused(f"has too few numbers behind {action}: {len(words)} of {_WORDS[action]}; it is cut short")
    try:
        numbers = [float(word) for word in words]
        if not all(math.isfinite(number) for number in numbers):
            raise ValueError
    except ValueError:
        raise rank.refused(f"has a word that is no number behind {action}") from None
    if action in _COLLECTIVES:
        rank.collectives.append((action, rank.line))
    elif action in ("send", "isend", "recv", "irecv"):
        _message(rank, action, numbers, ranks, messages)
    elif action in ("wait", "test"):
        request = (int(numbers[0]), int(numbers[1]), int(numbers[2]))
        if not rank.pending[request] and action == "wait":
            raise rank.refused(f"waits for a message {_named(request)}, of which no request is open")
        if action == "wait":
            _close(rank.pending, request)
    elif action == "waitall":
        _wait_for_all(rank, numbers)


def _message(rank: _Rank, action: str, numbers: list[float], ranks: int, messages: _Messages) -> None:
    other, tag, amount = int(numbers[0]), int(numbers[1]), numbers[2]
    kind = int(numbers[3]) if len(numbers) > 3 else _DEFAULT_TYPE
    sends = action.endswith("send")
    if not 0 <= other < ranks and (sends or other not in _ANY_SOURCES):
        raise rank.refused(f"has a message with rank {other}: there are ranks 0 to {ranks - 1}")
    if tag < 0 and (sends or tag != _ANY_TAG):
        raise rank.refused(f"has a message with tag {tag}: tags are 0 or more")
    if kind not in _BYTES or amount < 0:
        raise rank.refused(f"has a message of {amount:g} values of datatype {kind}, which is unknown here")
    route = (rank.rank, other, tag) if sends else (other, rank.rank, tag)
    if action.startswith("i"):
        rank.pending[route] += 1
    if sends:
        messages.sent[route] += 1
        messages.sizes[(route[0], route[1], int(amount * _BYTES[kind]))] += 1
    else:
        messages.received[route] += 1
        messages.lines[route] = rank.line


def _wait_for_all(rank: _Rank, numbers: list[float]) -> None:
    """Fewer than there are is usual; more cannot be (LULESH's bug of the paper: 26 named, about 8 open)."""
    there_are = sum(rank.pending.values())
    if numbers and numbers[0] > there_are:
        raise rank.refused(f"waits for {numbers[0]:g} requests, and {there_are} are open")
    rank.pending.clear()


def _close(counts: Counter[Route], one: Route) -> None:
    counts[one] -= 1
    if not counts[one]:
        del counts[one]


def _named(route: Route) -> str:
    sender, receiver, tag = ("any" if number < 0 else str(number) for number in route)
    return f"from {sender} to {receiver} with tag {tag}"


def _refuse_other_collectives(first: _Rank, rank: _Rank) -> None:
    if [name for name, _ in first.collectives] == [name for name, _ in rank.collectives]:
        return
    for expected, found in zip_longest(first.collectives, rank.collectives):
        if found is None:
            raise rank.refused(f"ends without the {expected[0]} of rank 0's line {expected[1]}: it is cut short")
        if expected is None:
            raise rank.refused(f"calls {found[0]}, which rank 0 does not", found[1])
        if expected[0] != found[0]:
            raise rank.refused(f"calls {found[0]} where rank 0 calls {expected[0]}", found[1])


def _refuse_unmatched(messages: _Messages, files: list[Path]) -> None:
    """Receives from anybody may take whatever exact ones leave for their rank."""
    left: dict[int, Counter[Route]] = defaultdict(Counter)
    for route, count in messages.sent.items():
        left[route[1]][route] = count
    loose: dict[int, Counter[Route]] = defaultdict(Counter)
    for route, count in messages.received.items():
        if min(route[0], route[2]) < 0:
            loose[route[1]][route] = count
        elif left[route[1]][route] < count:
            raise _unsent(route, messages, files)
        else:
            left[route[1]][route] -= count
    for receiver in sorted({*left, *loose}):
        _refuse_loose(left[receiver], loose[receiver], messages, files)


def _refuse_loose(left: Counter[Route], loose: Counter[Route], messages: _Messages, files: list[Path]) -> None:
    for route, count in loose.items():
        if sum(there for one, there in left.items() if _fits(one, route)) < count or loose.total() > left.total():
            raise _unsent(route, messages, files)
    if left.total() > loose.total():
        unread = next(one for one, count in left.items() if count)
        rank = unread[0]
        raise ModelInvalid(f"{files[rank]}: rank {rank} sends a message {_named(unread)} that nobody receives")


def _fits(sent: Route, wanted: Route) -> bool:
    return all(want < 0 or have == want for have, want in zip(sent, wanted, strict=True))


def _unsent(route: Route, messages: _Messages, files: list[Path]) -> ModelInvalid:
    receiver = route[1]
    rank = _Rank(receiver, files[receiver])
    return rank.refused(f"receives a message {_named(route)} that nobody sends", messages.lines[route])
