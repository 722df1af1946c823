# SPDX-License-Identifier: Apache-2.0
"""Compare two recordings of one program: whether each rank made the same calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from checkpoint.errors import Diverged
from probe.mpi.library.calls import names
from probe.mpi.play import ENDS
from probe.mpi.recording import Recording
from probe.mpi.trace import RankCalls, read_calls

_ASKED = ("function", "comm")
_CARRIED = ("tag", "count", "element", "peer")
"""What a receive from anybody is answered with, in another run perhaps otherwise."""
_RECV, _IRECV = names().index("Recv"), names().index("Irecv")
_ELSE = {"tag": "tag", "comm": "communicator", "other": "root or source", "element": "type"}


def refuse_differing(first: Recording, second: Recording) -> int:
    """Number of calls that both recordings have, of all ranks. Times are not compared, nor who answers a wildcard.

    Raises Diverged: other numbers of ranks, or the first call that differs, by its rank and number. Raises
    ProbeFileDamaged and StorageError.
    """
    if len(first.ranks) != len(second.ranks):
        raise Diverged(f"{first.folder} has {len(first.ranks)} ranks, {second.folder} has {len(second.ranks)}")
    return sum(_compared(first.folder, second.folder, run.rank) for run in first.ranks)


def _compared(first: Path, second: Path, rank: int) -> int:
    before, after = read_calls(first, rank), read_calls(second, rank)
    both = min(len(before.calls), len(after.calls))
    differs = _differing(before, after, both)
    found = np.flatnonzero(differs)
    if len(found) or len(before.calls) != len(after.calls):
        number = int(found[0]) if len(found) else both
        raise Diverged(
            f"rank {rank} made other calls in the second run, from call {number}: {_named(after, number)} instead of "
            f"{_named(before, number)}{_told_apart(before, after, number)}"
        )
    return both


def _differing(before: RankCalls, after: RankCalls, both: int) -> npt.NDArray[np.bool_]:
    """Which of the first `both` calls differ."""
    first, second = before.calls[:both], after.calls[:both]
    asked, carried = (_unlike(first, second, fields) for fields in (_ASKED, _CARRIED))
    receives = np.isin(first["function"], [_RECV, _IRECV])
    # Libraries number MPI_ANY_SOURCE differently.
    asked |= np.where(receives, (first["other"] < 0) != (second["other"] < 0), first["other"] != second["other"])
    # Another rank may have answered, with another message.
    carried &= (first["function"] != _RECV) | (first["other"] >= 0)
    differs = asked | carried
    # Requests are completed in any order.
    behind = ~np.isin(first["function"], list(ENDS)) & ((first["extras"] > 0) | (second["extras"] > 0))
    for number in np.flatnonzero(behind & ~differs):
        differs[number] = not np.array_equal(before.extras_of(int(number)), after.extras_of(int(number)))
    return differs


def _unlike(first: npt.NDArray[Any], second: npt.NDArray[Any], fields: Sequence[str]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = np.any([first[name] != second[name] for name in fields], axis=0)
    return found


def _named(calls: RankCalls, number: int) -> str:
    if number >= len(calls.calls):
        return "the end"
    one = calls.calls[number]
    told = f"MPI_{names()[int(one['function'])]} of {int(one['count']) * int(one['element'])} B"
    return f"{told} with rank {int(one['peer'])}" if int(one["peer"]) >= 0 else told


def _told_apart(before: RankCalls, after: RankCalls, number: int) -> str:
    """What else differs, where both calls have the same name."""
    if _named(before, number) != _named(after, number):
        return ""
    first, second = before.calls[number], after.calls[number]
    for field, said in _ELSE.items():
        if first[field] != second[field]:
            return f", with another {said}"
    return ", with other sizes or members"
