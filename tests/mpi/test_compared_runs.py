# SPDX-License-Identifier: Apache-2.0
"""Two recorded runs of one MPI program: the same calls, other answers, the first call that differs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from mpi_parts import call, part
from published import schema_errors

from checkpoint.errors import Diverged
from probe.cli.main import cli
from probe.mpi.compare import refuse_differing
from probe.mpi.library.calls import names
from probe.mpi.parts import END
from probe.mpi.recording import RankRun, Recording, write_recording

NUMBER = {name: number for number, name in enumerate(names())}


def calls_of(folder: Path, rank: int, ranks: int, made: Sequence[bytes], *, end: bool = True) -> None:
    body = b"".join([*made, *([call(END)] if end else [])])
    (folder / f"calls.{rank}.000").write_bytes(part("calls", rank, ranks, 0, body))


def recording(folder: Path, ranks: int, kept: Callable[[int], bool] = lambda rank: True) -> Recording:
    runs = tuple(RankRun(rank, "/bin/true", "/", ("true",), kept(rank)) for rank in range(ranks))
    return Recording(folder, ("mpirun",), "Open MPI", "mpicc", 1.0, {"/bin/true": "0"}, runs, 2)


SEND, RECV = NUMBER["Send"], NUMBER["Recv"]
ASKED, ANY = call(RECV, peer=1, other=1, count=8, element=1), call(RECV, peer=1, other=-1, count=8, element=1)

ALL, BOTH_WAYS = NUMBER["Alltoallv"], NUMBER["Sendrecv"]
IN_SIZES = call(ALL, other=-1, extras=[2, 2, 2, 2])
ROOTED = call(NUMBER["Bcast"], other=0, count=8, element=1)
BOTH = call(BOTH_WAYS, peer=1, other=1, extras=[0, 8])


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([ASKED], [call(SEND, peer=1, count=8, element=1)], "call 0: MPI_Send of 8 B with rank 1 instead of MPI_Recv"),
        (
            [ASKED, ASKED],
            [ASKED, call(RECV, peer=0, other=0, count=8, element=1)],
            "call 1: MPI_Recv of 8 B with rank 0",
        ),
        ([ASKED], [call(RECV, peer=1, other=1, count=9, element=1)], "call 0: MPI_Recv of 9 B with rank 1 instead"),
        ([ASKED, ASKED], [ASKED], "call 1: the end instead of MPI_Recv of 8 B"),
        ([ANY], [call(NUMBER["Barrier"])], "call 0: MPI_Barrier of 0 B instead of MPI_Recv of 8 B with rank 1"),
        ([ANY], [ASKED], "call 0: .* 8 B with rank 1, with another root or source"),
        ([ANY], [call(RECV, peer=1, comm=1, other=-1, count=8, element=1)], "call 0: .*, with another communicator"),
        ([IN_SIZES], [call(ALL, other=-1, extras=[1, 3, 2, 2])], "call 0: .*, with other sizes or members"),
        ([ASKED, IN_SIZES], [ASKED, call(ALL, other=-1, extras=[1, 3])], "call 1: .*, with other sizes or members"),
        ([ROOTED], [call(NUMBER["Bcast"], other=1, count=8, element=1)], "call 0: .*, with another root or source"),
        ([BOTH], [call(BOTH_WAYS, peer=1, other=0, extras=[0, 8])], "call 0: .*, with another root or source"),
        ([BOTH], [call(BOTH_WAYS, peer=1, other=1, extras=[0, 9])], "call 0: .*, with other sizes or members"),
    ],
)
def test_a_second_run_that_differs(first: list[bytes], second: list[bytes], message: str, tmp_path: Path) -> None:
    runs = []
    for name, made in (("a", first), ("b", second)):
        (tmp_path / name).mkdir()
        calls_of(tmp_path / name, 0, 2, [ANY])
        calls_of(tmp_path / name, 1, 2, made)
        runs.append(recording(tmp_path / name, 2))
    with pytest.raises(Diverged, match=f"rank 1 made other calls in the second run, from {message}"):
        refuse_differing(runs[0], runs[1])
    with pytest.raises(Diverged, match=r"has 2 ranks, .* has 1"):
        refuse_differing(runs[0], recording(tmp_path / "b", 1))


def test_a_second_run_with_other_answers(tmp_path: Path) -> None:
    """A wildcard is another number in each library, and requests are completed in any order."""
    for name, peer in (("a", 0), ("b", 1)):
        (tmp_path / name).mkdir()
        for rank in range(2):
            answered = call(RECV, peer=peer, other=-1 - peer, count=8 + peer, element=1, computing=peer + 5)
            begun = call(NUMBER["Irecv"], other=-1 - peer, count=8, element=1)
            waited = call(NUMBER["Wait"], comm=-1, extras=[0, peer, peer])
            calls_of(tmp_path / name, rank, 2, [answered, ASKED, begun, waited])
        write_recording(recording(tmp_path / name, 2))
    done = CliRunner().invoke(cli, ["mpi", "compare", "--json", str(tmp_path / "a"), str(tmp_path / "b")])
    assert schema_errors("probe-mpi-compare", json.loads(done.stdout)) == []
    assert json.loads(done.stdout)["calls"] == 8
