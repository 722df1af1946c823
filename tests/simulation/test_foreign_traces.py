# SPDX-License-Identifier: Apache-2.0
"""Traces that others wrote: SimGrid's own are read, and what cannot be replayed is refused by rank and line."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from aspen_models import lulesh
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint.errors import ModelInvalid, ProbeError, StorageError
from probe.simulation.foreign_trace import read_trace
from probe.simulation.networks import network_of
from probe.simulation.outcome import On, of_model, of_trace
from probe.simulation.plan import plan
from probe.simulation.platform import Links, write_platform
from probe.simulation.replay import replay_trace
from probe.simulation.trace import Trace, write_trace
from probe.simulation.traffic import traffic

CUBE = (2, 2, 2)
LINKS = Links(1e9, 1e-6)
LIMIT = 120

GOOD = (
    "0 init\n0 irecv 1 3 4 0\n0 isend 1 3 4 0\n0 waitall 2\n0 allreduce 1 0 0\n0 send 1 9 4 2\n0 finalize\n",
    "1 init\n1 irecv 0 3 4 0\n1 isend 0 3 4 0\n1 wait 0 1 3\n1 waitall 1\n1 allreduce 1 0 0\n1 recv -555 -444 4 2\n"
    "1 finalize\n",
)


def trace_in(folder: Path, *texts: str) -> Path:
    """The index of a trace whose ranks do that, named as from its own folder."""
    (folder / "ranks").mkdir()
    for rank, text in enumerate(texts):
        (folder / "ranks" / f"{rank}.txt").write_text(text)
    index = folder / "index.txt"
    index.write_text("".join(f"ranks/{rank}.txt\n" for rank in range(len(texts))))
    return index


def test_a_trace_is_summed_and_replayed(tmp_path: Path) -> None:
    found = of_trace(trace_in(tmp_path, *GOOD), On(network_of("torus:2"), LINKS, limit=LIMIT))
    assert (found.ranks, found.traffic.messages, found.traffic.bytes) == (2, 3, 32 + 32 + 4)
    assert found.traffic.collectives == {"allreduce": 1}
    assert found.seconds is not None and 3e-6 <= found.seconds < 1e-4


def test_a_generated_trace_has_its_models_traffic_and_time(tmp_path: Path) -> None:
    on = On(network_of("torus:2x2x2"), LINKS, limit=LIMIT)
    write_trace(plan(lulesh()), CUBE, tmp_path / "trace")
    of_file, of_flow = of_trace(tmp_path / "trace", on), of_model(lulesh(), CUBE, None, on, {})
    assert of_file.traffic == of_flow.traffic == traffic(lulesh(), CUBE, on.network)
    assert of_file.seconds == of_flow.seconds


_PROGRAM = """
#include <mpi.h>
int main(int argc, char **argv)
{
    int rank;
    double values[8];
    MPI_Request open[2];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Irecv(values, 4, MPI_DOUBLE, MPI_ANY_SOURCE, 3, MPI_COMM_WORLD, &open[0]);
    MPI_Isend(values, 4, MPI_DOUBLE, 1 - rank, 3, MPI_COMM_WORLD, &open[1]);
    MPI_Wait(&open[0], MPI_STATUS_IGNORE);
    MPI_Wait(&open[1], MPI_STATUS_IGNORE);
    MPI_Bcast(values, 2, MPI_INT, 0, MPI_COMM_WORLD);
    %s
    MPI_Finalize();
    return 0;
}
"""


def recorded(extra: str, folder: Path) -> Path:
    """The trace that SimGrid records of a program."""
    (folder / "made.c").write_text(_PROGRAM % extra)
    subprocess.run(["smpicc", "made.c", "-o", "made"], cwd=folder, check=True, timeout=LIMIT, capture_output=True)
    platform, hosts = write_platform(network_of("torus:2"), 2, LINKS, folder)
    subprocess.run(
        ["smpirun", "-np", "2", "-platform", platform, "-hostfile", hosts, "-trace-ti", "-trace-file", "seen.txt",
         "./made"],
        cwd=folder, check=True, timeout=LIMIT, capture_output=True,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(folder)},
    )  # fmt: skip
    return folder / "seen.txt"


def test_what_simgrid_records_is_read(tmp_path: Path) -> None:
    """It records receives from anybody in another way than it reads them."""
    found = read_trace(recorded("", tmp_path))
    assert found.ranks == 2 and found.sent == {(0, 1, 32): 1, (1, 0, 32): 1} and found.collectives == {"bcast": 1}
    assert replay_trace(found.trace, 2, network_of("torus:2"), LINKS, limit=LIMIT).seconds > 0


def test_what_simgrid_records_and_cannot_replay_is_named(tmp_path: Path) -> None:
    call = "MPI_Sendrecv(values, 1, MPI_INT, 1 - rank, 1, values + 2, 1, MPI_INT, 1 - rank, 1, MPI_COMM_WORLD,"
    path = recorded(f"{call} MPI_STATUS_IGNORE);", tmp_path)
    with pytest.raises(ModelInvalid, match=r"rank-1.txt:\d+: rank 0 does 'sendRecv', which SimGrid does not replay"):
        read_trace(path)


@pytest.mark.parametrize(
    ("rank", "change", "words"),
    [
        (0, ("waitall 2", "waitall 26"), "0.txt:4: rank 0 waits for 26 requests, and 2 are open"),
        (1, ("1 wait 0 1 3", "1 wait 0 1 4"), "1.txt:4: rank 1 waits for a message from 0 to 1 with tag 4, of which"),
        (
            0,
            ("0 send 1 9 4 2\n", ""),
            "1.txt:7: rank 1 receives a message from any to 1 with tag any that nobody sends",
        ),
        (1, ("irecv 0 3 4", "irecv 0 5 4"), "1.txt:4: rank 1 waits for a message from 0 to 1 with tag 3, of which"),
        (0, ("isend 1 3", "isend 1 4"), "1.txt:2: rank 1 receives a message from 0 to 1 with tag 3 that nobody sends"),
        (
            1,
            ("1 recv -555 -444 4 2\n", ""),
            "0.txt: rank 0 sends a message from 0 to 1 with tag 9 that nobody receives",
        ),
        (0, ("0 finalize\n", ""), "0.txt:6: rank 0 does not end with finalize: the trace is cut short"),
        (0, ("finalize\n", "finalize"), "0.txt:7: rank 0 has a line without end: it is cut short"),
        (0, ("isend 1 3 4 0", "isend 1"), "0.txt:3: rank 0 has too few numbers behind isend: 1 of 3; it is cut short"),
        (1, ("1 allreduce 1 0 0\n", ""), "1.txt:7: rank 1 ends without the allreduce of rank 0's line 5"),
        (1, ("allreduce", "allgather"), "1.txt:6: rank 1 calls allgather where rank 0 calls allreduce"),
        (0, ("0 allreduce 1 0 0\n", ""), "1.txt:6: rank 1 calls allreduce, which rank 0 does not"),
        (0, ("isend 1 3", "isend 2 3"), "0.txt:3: rank 0 has a message with rank 2: there are ranks 0 to 1"),
        (1, ("recv -555", "recv -1"), "1.txt:7: rank 1 has a message with rank -1: there are ranks 0 to 1"),
        (1, ("recv -555 -444", "recv -555 -1"), "1.txt:7: rank 1 has a message with tag -1: tags are 0 or more"),
        (0, ("isend 1 3 4 0", "isend 1 3 4 99"), "4 values of datatype 99, which is unknown here"),
        (0, ("isend 1 3", "isend 1 x"), "0.txt:3: rank 0 has a word that is no number behind isend"),
        (0, ("isend 1 3", "isend 1 nan"), "0.txt:3: rank 0 has a word that is no number behind isend"),
        (0, ("0 isend", "1 isend"), "0.txt:3: rank 0 is expected here, not 1"),
        (0, ("0 init\n", ""), "0.txt:1: rank 0 begins with init, and once"),
        (0, ("finalize\n", "finalize\n0 barrier\n"), "0.txt:8: rank 0 goes on after finalize"),
        (0, ("waitall 2", "waitAny 2"), "0.txt:4: rank 0 does 'waitAny', which SimGrid does not replay"),
    ],
)
def test_traces_that_cannot_be_replayed(rank: int, change: tuple[str, str], words: str, tmp_path: Path) -> None:
    """The first is LULESH's bug of the paper."""
    texts = list(GOOD)
    assert change[0] in texts[rank]
    texts[rank] = texts[rank].replace(*change)
    with pytest.raises(ModelInvalid, match=re.escape(words)):
        read_trace(trace_in(tmp_path, *texts))


def test_an_index_that_names_nothing(tmp_path: Path) -> None:
    index = tmp_path / "index.txt"
    with pytest.raises(StorageError, match="should name a file for each rank"):
        read_trace(index)
    index.write_text("")
    with pytest.raises(ModelInvalid, match="names 0 files of ranks"):
        read_trace(index)
    index.write_text("absent.txt\n")
    with pytest.raises(ModelInvalid, match="which is no file"):
        read_trace(index)
    index.write_bytes(b"\xff\n")
    with pytest.raises(ModelInvalid, match="not text"):
        read_trace(index)
    (tmp_path / "trace").mkdir()
    with pytest.raises(StorageError, match=re.escape("trace/trace.txt: cannot be read")):
        read_trace(tmp_path / "trace")


def test_a_network_smaller_than_the_trace(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="has 1 nodes, too few for 2 ranks"):
        of_trace(trace_in(tmp_path, *GOOD), On(network_of("torus:1"), LINKS))


def test_more_ranks_than_open_files(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match=r"ranks need as many open files, and this machine allows \d+"):
        replay_trace(Trace(tmp_path / "index.txt", 1), 3_000_000_000, network_of("torus:2"), LINKS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(cut=st.integers(0, 200), put=st.text(alphabet="01 -9init\nsendrecvwaitall.", max_size=12))
def test_damaged_traces_are_read_or_refused(cut: int, put: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Never another exception."""
    text = GOOD[0][:cut] + put + GOOD[0][cut + len(put) :]
    try:
        read_trace(trace_in(tmp_path_factory.mktemp("trace"), text, GOOD[1]))
    except ProbeError as error:
        assert str(error)
