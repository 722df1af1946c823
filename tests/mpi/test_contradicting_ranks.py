# SPDX-License-Identifier: Apache-2.0
"""Recordings that the player has no room for: ranks contradict each other or themselves, too many requests are open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mpi_recordings import made_call, made_recording

from checkpoint.errors import ModelInvalid, ProbeFileDamaged, ProgramUnsupported
from probe.mpi.play import MOST_OPEN, STEP, write_play
from probe.mpi.recording import Recording
from probe.mpi.simulate import Prepared, Where, simulate
from probe.mpi.trace import read_calls

RANKS = 4
ALL = range(RANKS)
ON = Where(network=f"torus:{RANKS}")
MINE = {"comm": 2}
DOUBLES = {"count": 1000, "element": 8}
ROWS = {"count": 100, "element": 80}
EIGHT = {"element": 8}

Calls = Callable[[int], list[bytes]]
"""What a rank calls."""


def recording_of(folder: Path, calls: Calls) -> Recording:
    return made_recording(folder / "recording", [calls(rank) for rank in ALL])


def duplicate(members: range | list[int]) -> bytes:
    return made_call("Comm_dup", other=2, extras=list(members))


def with_first(rank: int) -> list[int]:
    """Of the player's communicator these are all, as their first members are equal."""
    return [0, rank] if rank else [0]


CONTRADICTIONS: dict[str, tuple[Calls, str]] = {
    "members": (
        lambda rank: [duplicate(with_first(rank)), made_call("Allgather", **MINE, **DOUBLES)],
        "rank 1 makes a communicator of 2 ranks in its call 0, and 1 of them say the same",
    ),
    "counts": (
        lambda rank: [
            duplicate(with_first(rank)), made_call("Alltoallv", **MINE, extras=[8] * 2 * len(with_first(rank))),
        ],
        "rank 1 makes a communicator of 2 ranks in its call 0, and 1 of them say the same",
    ),
    "order of members": (
        lambda rank: [duplicate([0, 1, 2, 3] if rank else [0, 2, 1, 3])],
        "rank 0 makes a communicator of 4 ranks in its call 0, and 1 of them say the same",
    ),
    "a member that made none": (
        lambda rank: [made_call("Comm_split", other=2 if rank else -1, extras=ALL)],
        "rank 1 makes a communicator of 4 ranks in its call 0, and 3 of them say the same",
    ),
    "made of others": (
        lambda rank: [duplicate(ALL), made_call("Comm_dup", comm=2 if rank else 0, other=3, extras=ALL)],
        "contradicts rank 0: .* differ on MPI_COMM_WORLD",
    ),
    "calls": (
        lambda rank: [duplicate(ALL) if rank else made_call("Bcast", other=0, **DOUBLES)],
        "rank 1 contradicts rank 0: collective calls, roots or amounts differ on MPI_COMM_WORLD",
    ),
    "fewer calls": (
        lambda rank: [duplicate(ALL), *[made_call("Barrier", **MINE)] * (rank != 3)],
        "rank 3 contradicts rank 0: .* differ on the communicator that its call 0 made",
    ),
    "roots": (
        lambda rank: [made_call("Scatter", other=rank % 2, **DOUBLES)], "rank 1 contradicts rank 0: .* roots",
    ),
    "bytes": (
        lambda rank: [made_call("Scatter", other=0, count=1 + (rank == 2), element=8)],
        "rank 2 contradicts rank 0: .* amounts",
    ),
    "bytes of all": (
        lambda rank: [made_call("Allgatherv", count=1, element=8, extras=[8, 8, 8, 8 + (rank == 2)])],
        "rank 2 contradicts rank 0: .* amounts",
    ),
    "a root without counts": (
        lambda rank: [made_call("Gatherv", other=2, **DOUBLES)], "of rank 2, MPI_Gatherv, has 0 counts for 4 ranks",
    ),
    "no root": (
        lambda rank: [made_call("Bcast", other=-1, **DOUBLES)], "of rank 0, MPI_Bcast, has the root -1 of 4 ranks",
    ),
    "a member twice": (
        lambda rank: [duplicate([0, 1, 2, 3, 3])], "of rank 0, MPI_Comm_dup, makes a communicator with a rank that it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_what_contradicts_itself_is_not_played(case: str, tmp_path: Path) -> None:
    calls, message = CONTRADICTIONS[case]
    made = recording_of(tmp_path, calls)
    with pytest.raises(ProbeFileDamaged, match=f"^{made.folder}: .*{message}.*; record the program again$"):
        simulate(made, ON)


def test_the_player_refuses_another_size_than_was_recorded(tmp_path: Path) -> None:
    """Ranks whose steps nobody compared: its buffers have room for the communicators that they name."""
    made = recording_of(tmp_path, CONTRADICTIONS["members"][0])
    played = tuple(write_play(read_calls(made.folder, rank), tmp_path) for rank in ALL)
    with pytest.raises(ModelInvalid, match=r"a communicator has 4 ranks in place of [12]: ranks contradict each other"):
        simulate(made, ON, plays=Prepared(tmp_path, played))


# -- requests


def begun(requests: int) -> list[bytes]:
    """So many requests, which a wait completes in the end."""
    made = [made_call("Ibarrier", comm=1, request=number) for number in range(requests)]
    wait = made_call("Waitall", comm=-1, extras=[word for number in range(requests) for word in (number, -1, 0)])
    return [*made, wait]


def test_more_open_requests_than_the_player_has_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.mpi.play.MOST_OPEN", 5)
    assert simulate(made_recording(tmp_path / "five", [begun(5) * 3]), ON).calls == 19
    with pytest.raises(
        ProgramUnsupported, match="six: rank 0 has more than 5 requests open in its call 5; a simulation"
    ):
        simulate(made_recording(tmp_path / "six", [begun(6)]), ON)


@pytest.mark.parametrize("place", [MOST_OPEN + 1, -1])
def test_the_player_refuses_a_place_that_it_does_not_have(place: int, tmp_path: Path) -> None:
    made = made_recording(tmp_path / "made", [[made_call("Irecv", peer=0, request=0, **DOUBLES)]])
    played = write_play(read_calls(made.folder, 0), tmp_path)
    steps = np.fromfile(tmp_path / "play.0", dtype=STEP)
    steps["request"][0] = place
    steps.tofile(tmp_path / "play.0")
    with pytest.raises(ModelInvalid, match="a rank has more than 1048576 requests open at once"):
        simulate(made, ON, plays=Prepared(tmp_path, (played,)))


# -- what agrees


def in_rows(rank: int) -> list[bytes]:
    """Rows and columns of a square; ranks number them differently, and the first makes one of its own in between."""
    row, column = [rank // 2 * 2, rank // 2 * 2 + 1], [rank % 2, rank % 2 + 2]
    first, second = (2, 3) if rank % 2 else (3, 2)
    own = [made_call("Comm_dup", comm=1, other=4, extras=[0]), made_call("Barrier", comm=4)] if rank == 0 else []
    return [
        made_call("Comm_split", other=first, extras=row), *own, made_call("Comm_split", other=second, extras=column),
        made_call("Comm_create", other=4 if rank else -1, extras=[3, 2, 1] if rank else []),
        # As many bytes, in rows of ten.
        made_call("Bcast", comm=first, other=rank // 2, **(ROWS if rank % 2 else DOUBLES)),
        made_call("Allreduce", comm=second, **DOUBLES),
        made_call("Gatherv", comm=second, other=1, count=10 if rank > 1 else 1, extras=[8, 80] * (rank > 1), **EIGHT),
        made_call("Alltoallv", comm=first, extras=[rank % 2 + 1] * 2 + [1, 2]),
        made_call("Comm_dup", comm=second, other=second, extras=column), made_call("Barrier", comm=second),
    ]  # fmt: skip


def test_ranks_that_agree_are_played(tmp_path: Path) -> None:
    made = recording_of(tmp_path, in_rows)
    assert simulate(made, ON).seconds > 0
