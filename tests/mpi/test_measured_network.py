# SPDX-License-Identifier: Apache-2.0
"""Networks measured between two ranks: described for SimGrid, given back by it, and measured for real."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from mpi_parts import call, part
from mpi_programs import LIBRARIES, allow_root, launched
from mpi_recordings import made_call, made_recording
from published import schema_errors

from checkpoint.errors import ModelInvalid, ProgramFailed, StorageError, ToolMissing
from probe.cli.main import cli
from probe.mpi.library.calls import names
from probe.mpi.network.describing import write_measured
from probe.mpi.network.measuring import Measured, measure
from probe.mpi.parts import END
from probe.mpi.platforms import settings_of
from probe.mpi.recording import RankRun, Recording
from probe.mpi.simulate import Where, simulate

NUMBER = {name: number for number, name in enumerate(names())}
TRIPS = 50


def made(hosts: tuple[str, str] = ("a", "b"), eager: int = 4096) -> Measured:
    """Half a microsecond, 4 GB/s to the eager limit, then 10 GB/s behind 3 more microseconds."""
    sizes = np.array([float(2**n) for n in range(23)])
    half = np.where(sizes <= eager, 5e-7 + sizes / 4e9, 3.5e-6 + sizes / 10e9)
    bytes_ = np.array([8.0, 64.0, 4096.0, 65536.0])
    return Measured(hosts, sizes, half, half * 1.5, half / 4, np.column_stack([bytes_, bytes_ * 1e-9]), eager, 0.5)


def ping_pong(folder: Path, size: int) -> Recording:
    """Round trips of two ranks that compute nothing."""
    for rank in range(2):
        sent = call(NUMBER["Send"], peer=1 - rank, count=size, element=1)
        got = call(NUMBER["Recv"], peer=1 - rank, count=size, element=1)
        body = ([sent, got] if rank == 0 else [got, sent]) * TRIPS
        (folder / f"calls.{rank}.000").write_bytes(part("calls", rank, 2, 0, b"".join([*body, call(END)])))
    runs = tuple(RankRun(rank, "/bin/true", "/", ("true",), True) for rank in range(2))
    return Recording(folder, ("mpirun",), "Open MPI", "mpicc", 1.0, {"/bin/true": "0"}, runs)


@pytest.mark.parametrize("hosts", [("a", "b"), ("a", "a")])
@pytest.mark.parametrize("size", [1, 96, 3000, 50_000, 2_000_000])
def test_a_simulation_gives_the_measured_times_back(size: int, hosts: tuple[str, str], tmp_path: Path) -> None:
    measured = made(hosts)
    is_own = hosts[0] == hosts[1]
    write_measured(measured, tmp_path / "net.xml", nodes=1 if is_own else 4)
    where = Where(tmp_path / "net.xml", per_node=2 if is_own else 1)
    found = simulate(ping_pong(tmp_path, size), where).seconds / (2 * TRIPS)
    assert found == pytest.approx(np.interp(size, measured.sizes, measured.half), rel=0.05)


def both_sides(folder: Path, body: bytes, **network: Any) -> float:
    """Simulated seconds of one of many equal calls that both ranks make, on a network with these other measurements."""
    folder.mkdir()
    write_measured(replace(made(("a", "a")), **network), folder / "net.xml", nodes=1)
    recording = made_recording(folder / "recording", [[body] * TRIPS] * 2)
    return simulate(recording, Where(folder / "net.xml", per_node=2)).seconds / TRIPS


@pytest.mark.parametrize("size", [1, 96, 3000])
def test_ranks_that_send_to_each_other_take_what_was_measured(size: int, tmp_path: Path) -> None:
    """Beyond half a round trip: both begin their receives before anything is under way."""
    ends = [
        made_call("Sendrecv", peer=1 - rank, other=1 - rank, count=size, element=1, extras=(0, size)) for rank in (0, 1)
    ]
    measured = replace(made(("a", "a")), both=made().half * 1.2)
    write_measured(measured, tmp_path / "net.xml", nodes=1)
    recording = made_recording(tmp_path / "recording", [[end] * TRIPS for end in ends])
    found = simulate(recording, Where(tmp_path / "net.xml", per_node=2)).seconds / TRIPS
    assert found == pytest.approx(np.interp(size, measured.sizes, measured.both), rel=0.05)


@pytest.mark.parametrize("each", [1e-9, 20e-9])
def test_reductions_compute(each: float, tmp_path: Path) -> None:
    """A sum of 64 doubles in MPI_Allreduce: once on each of two ranks."""
    body = made_call("Allreduce", count=64, element=8)
    bytes_ = np.array([8.0, 64.0, 4096.0, 65536.0])
    free = both_sides(tmp_path / "free", body, reduced=np.column_stack([bytes_, bytes_ * 1e-13]))
    found = both_sides(tmp_path / "dear", body, reduced=np.column_stack([bytes_, bytes_ * each]))
    assert found - free == pytest.approx(512 * each, rel=0.05)


RECEIVE = 1e-3
"""Seconds to begin a receive, far above all else that small messages take."""


def receives(folder: Path, ranks: Sequence[Sequence[bytes]], line: str = f"0:{RECEIVE}:0") -> float:
    """How many receives are begun behind each other where each rank makes these calls, and one takes `line`."""
    write_measured(made(("a", "a")), folder / "net.xml", nodes=1)
    text = (folder / "net.xml").read_text()
    text, count = re.subn(r'(id="probe-begun" value=)"[^"]*"', rf'\1"{line}"', text)
    assert count == 1
    (folder / "net.xml").write_text(text)
    recording = made_recording(folder / "recording", ranks)
    return simulate(recording, Where(folder / "net.xml", per_node=len(ranks))).seconds / RECEIVE


@pytest.mark.parametrize(
    ("name", "extras", "wanted"),
    [
        ("Alltoall", (), 7), ("Alltoallv", (8,) * 16, 7), ("Scan", (), 7), ("Exscan", (), 7), ("Allreduce", (), 3),
        ("Allgather", (), 3),
    ],
)  # fmt: skip
def test_receives_of_collective_calls(name: str, extras: tuple[int, ...], wanted: int, tmp_path: Path) -> None:
    """Of eight ranks: from each other one, from all before it, or in three doublings."""
    body = made_call(name, count=0 if extras else 1, element=1 if extras else 8, extras=extras)
    assert receives(tmp_path, [[body]] * 8) == pytest.approx(wanted, abs=0.3)


def test_receives_of_different_sizes_cost_what_they_do_in_the_mean(tmp_path: Path) -> None:
    """A microsecond for a byte: 1000 of each in the mean, of three other ranks. Each gives what the others take."""
    counts = (500, 1500, 1500, 500)
    ranks = [[made_call("Alltoallv", element=1, extras=(counts[rank],) * 4 + counts)] for rank in range(4)]
    assert receives(tmp_path, ranks, f"0:0:{RECEIVE / 1000}") == pytest.approx(3, abs=0.3)


def test_receives_from_nobody_cost_nothing(tmp_path: Path) -> None:
    """At the ends of a chain: MPI_PROC_NULL stands for the rank that is not there."""
    nobody = [
        made_call("Sendrecv", count=8, element=1, extras=(0, 8)), made_call("Recv", count=8, element=1),
        made_call("Irecv", count=8, element=1),
    ]  # fmt: skip
    first = made_call("Sendrecv", peer=1, count=8, element=1, extras=(0, 8))
    last = made_call("Sendrecv", other=0, count=8, element=1, extras=(0, 8))
    (tmp_path / "nobody").mkdir()
    assert receives(tmp_path / "nobody", [nobody] * 2) < 0.3
    assert receives(tmp_path, [[first], [last]]) == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize("value", ["", "0:1", "0:1:x", "0:-1:0", "8:1:1;0:1:1", "0:1e999:0"])
def test_costs_that_are_no_numbers(value: str, tmp_path: Path) -> None:
    path = tmp_path / "net.xml"
    write_measured(made(), path, nodes=2)
    path.write_text(re.sub(r'(id="probe-begun" value=)"[^"]*"', rf'\1"{value}"', path.read_text()))
    with pytest.raises(ModelInvalid, match=r"probe-begun (has|must have)"):
        simulate(ping_pong(tmp_path, 8), Where(path))


def test_eager_messages_do_not_wait(tmp_path: Path) -> None:
    """Two ranks that send before they receive: below the limit both go on, above it SimGrid stands still."""
    write_measured(made(eager=1024), tmp_path / "net.xml", nodes=2)
    assert simulate(crossing(tmp_path, 1000), Where(tmp_path / "net.xml")).seconds > 0
    with pytest.raises(ModelInvalid, match="stands still"):
        simulate(crossing(tmp_path, 2000), Where(tmp_path / "net.xml"))


def crossing(folder: Path, size: int) -> Recording:
    found = ping_pong(folder, size)
    for rank in range(2):
        body = [call(NUMBER[name], peer=1 - rank, count=size, element=1) for name in ("Send", "Recv")]
        (folder / f"calls.{rank}.000").write_bytes(part("calls", rank, 2, 0, b"".join([*body, call(END)])))
    return found


def test_a_step_up_is_never_faster(tmp_path: Path) -> None:
    """A disturbed message may be slower than a larger one; in the description it is not, nor are those behind it."""
    noisy = made()
    half = noisy.half.copy()
    half[10] *= 9
    write_measured(replace(noisy, half=half), tmp_path / "net.xml", nodes=2)
    seconds = [simulate(ping_pong(tmp_path, size), Where(tmp_path / "net.xml")).seconds for size in (500, 1024, 1500)]
    assert seconds == sorted(seconds)
    assert seconds[-1] / (2 * TRIPS) == pytest.approx(np.interp(1500, noisy.sizes, made().half), rel=0.25)


def test_settings_that_are_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "net.xml"
    write_measured(made(), path, nodes=2)
    assert len(settings_of(path)) == 7
    path.write_text(re.sub(r'(id="smpi/os" value=)"[^"]*"', r'\1"0:1 --cfg=contexts/nthreads:8"', path.read_text()))
    with pytest.raises(ModelInvalid, match=r"smpi/os is .* which are no numbers"):
        settings_of(path)


def test_two_nodes_are_no_single_one(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="on two nodes: describe two nodes at least with --nodes"):
        write_measured(made(), tmp_path / "net.xml", nodes=1)
    with pytest.raises(StorageError, match="is a folder"):
        write_measured(made(), tmp_path, nodes=2)


def test_the_memory_of_one_node_is_no_network(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match=r"both on a: leave --nodes out, or name two nodes .* \(--host a,b\)"):
        write_measured(made(("a", "a")), tmp_path / "net.xml", nodes=2)
    assert not (tmp_path / "net.xml").exists()


@pytest.mark.parametrize(
    ("launcher", "compiler", "error", "message"),
    [
        (["mpirun.openmpi", "--oversubscribe", "-n", "3"], "mpicc.openmpi", ProgramFailed, "needs two ranks"),
        (["echo"], "mpicc.openmpi", ProgramFailed, "the network was not measured"),
        (["/nowhere/mpirun"], "mpicc.openmpi", ToolMissing, "/nowhere/mpirun: cannot be started"),
        (["echo"], "nowhere", ToolMissing, "nowhere is not installed"),
    ],
)
def test_what_cannot_be_measured(
    launcher: Sequence[str], compiler: str, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_root(monkeypatch)
    with pytest.raises(error, match=message):
        measure(launcher, compiler)


@pytest.mark.parametrize("library", LIBRARIES)
def test_this_machine_is_measured(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allow_root(monkeypatch)
    words = ["net", "-o", str(tmp_path / "net.xml"), "--mpicc", f"mpicc.{library}", "--json", "--"]
    launcher = launched(library, 2, Path("x"))[:-1]
    done = CliRunner().invoke(cli, ["mpi", *words, *launcher], catch_exceptions=False)
    answer = json.loads(done.stdout)
    assert schema_errors("probe-mpi-net", answer) == []
    sizes = [one["bytes"] for one in answer["sizes"]]
    assert sizes == sorted(sizes) and (sizes[0], sizes[-1]) == (1, 4 << 20)
    assert answer["hosts"][0] == answer["hosts"][1]
    # Buffered sends of every library; 4 MiB are no library's.
    assert 64 <= answer["eager"] < 4 << 20
    assert 0 <= answer["overlap"] <= 1
    assert simulate(ping_pong(tmp_path, 1000), Where(tmp_path / "net.xml", per_node=2)).seconds > 0
