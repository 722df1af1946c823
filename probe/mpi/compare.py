# SPDX-License-Identifier: Apache-2.0
"""Compare two recordings of one program: whether each rank made the same calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from checkpoint.errors import Diverged
from probe.mpi.calls import names
from probe.mpi.recording import Recording
from probe.mpi.trace import RankCalls, read_calls

_SAME = ("function", "tag", "comm", "count", "element", "peer")
_RECV = names().index("Recv")


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
    differs = np.zeros(both, dtype=bool)
    for name in _SAME:
        differs |= before.calls[name][:both] != after.calls[name][:both]
    answered = (before.calls["function"] == _RECV) & (before.calls["other"] < 0)
    # Another rank may have answered, with another message.
    differs &= ~answered[:both] | (after.calls["function"][:both] != _RECV)
    found = np.flatnonzero(differs)
    if len(found) or len(before.calls) != len(after.calls):
        number = int(found[0]) if len(found) else both
        raise Diverged(
            f"rank {rank} made other calls in the second run, from call {number}: {_named(after, number)} instead of "
            f"{_named(before, number)}"
        )
    return both


def _named(calls: RankCalls, number: int) -> str:
    if number >= len(calls.calls):
        return "the end"
    one = calls.calls[number]
    told = f"MPI_{names()[int(one['function'])]} of {int(one['count']) * int(one['element'])} B"
    return f"{told} with rank {int(one['peer'])}" if int(one["peer"]) >= 0 else told
