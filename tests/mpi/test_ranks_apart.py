# SPDX-License-Identifier: Apache-2.0
"""Ranks on two nodes that share no folder, started over SSH: recorded, gathered, and what can go wrong there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from mpi_nodes import AHEAD, MpiNodes, two_nodes
from mpi_programs import LIBRARIES, allow_root, built, launched, results

from probe.mpi.compare import refuse_differing
from probe.mpi.gathering import GATHERED
from probe.mpi.parts import check_inbox
from probe.mpi.probes.packing import opened
from probe.mpi.record import record
from probe.mpi.recording import Recording, read_recording
from probe.mpi.replay import replay
from probe.mpi.simulate import Where, simulate
from probe.mpi.trace import read_calls

# MPICH hangs by itself between nodes, and is tried again.
pytestmark = pytest.mark.slow(minutes=1)

HOSTS = {"openmpi": "--host", "mpich": "-hosts"}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MpiNodes]:
    folder = tmp_path_factory.mktemp("nodes")
    for library in LIBRARIES:
        place = folder / "programs" / library
        place.mkdir(parents=True)
        for name in ("cg", "endings", "halo", "workers"):
            built(name, library, place)
    with two_nodes(folder) as made:
        yield made


_UCX = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "ve0", "UCX_TCP_PUT_ENABLE": "n"}
_TRIES = 8


@pytest.fixture(autouse=True)
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_root(monkeypatch)


@contextmanager
def sent(folder: Path) -> Iterator[threading.Event]:
    """Set as soon as what ranks recorded has been sent to that folder, which may be gone later."""
    seen, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            if any(folder.glob(f"{GATHERED}.*")):
                seen.set()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield seen
    finally:
        over.set()
        watching.join()


def recorded(
    nodes: MpiNodes, library: str, into: Path, *words: str, hosts: str = "na,nb", options: tuple[str, ...] = (),
    **more: str,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """`probe mpi record --gather` on the first node, as users call it."""
    launcher = [f"mpirun.{library}", HOSTS[library], hosts, "-n", str(1 + hosts.count(","))]
    said = ["-m", "probe", "mpi", "record", "--gather", *options, "-o", str(into), "--", *launcher, *words]
    for _ in range(_TRIES):
        seconds = 120 if library == "openmpi" else 12
        with sent(into) as was_sent:
            done = nodes.run(sys.executable, *said, cwd=nodes.programs / library, seconds=seconds, **_UCX, **more)
        # MPICH 4.0 may hang in MPI_Finalize: https://github.com/pmodels/mpich/pull/6596.
        if done.returncode != 124:
            break
        assert library == "mpich" and was_sent.is_set(), "the recorder hangs: it had not sent all"
        assert not into.exists()
    return done


def refused(
    nodes: MpiNodes, library: str, into: Path, status: int, *words: str, hosts: str = "na,nb",
    options: tuple[str, ...] = (), **more: str,
) -> str:  # fmt: skip
    """What it says, where it fails; nothing stays behind on either node."""
    done = recorded(nodes, library, into, *words, hosts=hosts, options=options, **more)
    assert done.returncode == status, done.stdout + done.stderr
    assert not into.exists()
    assert left_behind(nodes) == []
    return done.stderr


def left_behind(nodes: MpiNodes) -> list[str]:
    here = [str(path) for place in ("/tmp", os.environ["TMPDIR"]) for path in Path(place).glob("probe-mpi-??????")]
    return here + nodes.on_second("find /tmp /run -name 'probe-mpi-??????'").split()


def asked(recording: Recording, rank: int) -> bytes:
    """All of its calls but times and addresses."""
    found = read_calls(recording.folder, rank)
    calls = found.calls.copy()
    for name in ("computing", "inside", "site"):
        calls[name] = 0
    return calls.tobytes() + found.extras.tobytes()


@pytest.mark.parametrize("library", LIBRARIES)
def test_two_nodes(library: str, nodes: MpiNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = recorded(nodes, library, tmp_path / "apart", "./cg")
    assert done.returncode == 0, done.stderr
    made = read_recording(tmp_path / "apart")
    assert [run.host for run in made.ranks] == ["na", "nb"] and made.processors == 0
    assert made.command[-1] == "./cg" and made.ranks[1].arguments == ("./cg",)
    assert sorted(path.name for path in made.folder.iterdir()) == [
        "calls.0.000", "calls.1.000", "environment.0", "environment.1", "inbox.0.000", "inbox.1.000", "printed",
        "recording.json",
    ]  # fmt: skip
    assert left_behind(nodes) == []
    # Each rank left its result on its own node, the same as without a recorder.
    place = nodes.programs / library
    found = [(place / "cg.0").read_bytes(), nodes.on_second('cat "$1/cg.1"', place).encode()]
    assert not (place / "cg.1").exists()
    alone = tmp_path / "alone"
    alone.mkdir()
    monkeypatch.chdir(alone)
    subprocess.run(launched(library, 2, place / "cg"), check=True)
    assert found == results("cg", alone, 2)
    # The same run on one node has the same calls: what gathers is not among them.
    once = record(launched(library, 2, place / "cg"), tmp_path / "once")
    assert refuse_differing(once, made) > 0
    assert [asked(made, rank) for rank in range(2)] == [asked(once, rank) for rank in range(2)]
    assert [check_inbox(made.folder, rank).answers for rank in range(2)] == [
        check_inbox(once.folder, rank).answers for rank in range(2)
    ]
    monkeypatch.chdir(place)
    (place / "cg.0").unlink()
    assert [replay(made, rank).status for rank in range(2)] == [0, 0]
    assert results("cg", place, 2) == found
    assert simulate(made, Where(network="torus:2")).seconds > 0


@pytest.mark.parametrize("library", LIBRARIES)
def test_clocks_a_day_apart(library: str, nodes: MpiNodes, tmp_path: Path) -> None:
    """Every time in a recording is a duration, by one node's clock."""
    assert str(AHEAD) in nodes.on_second("cat /proc/self/timens_offsets").split()
    # MPICH of Debian 12 hangs by itself with three.
    ranks = 3 if library == "openmpi" else 2
    done = recorded(nodes, library, tmp_path / "apart", "./workers", hosts=",".join(("na", "nb", "na")[:ranks]))
    assert done.returncode == 0, done.stderr
    made = read_recording(tmp_path / "apart")
    assert 0 < made.seconds < 600
    for rank in range(ranks):
        calls = read_calls(made.folder, rank).calls
        assert 0 < int(np.sum(calls["computing"]) + np.sum(calls["inside"])) * 1e-9 < made.seconds
    assert 0 < simulate(made, Where(network=f"torus:{ranks}")).seconds < 600


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_rank_that_ends_there(library: str, nodes: MpiNodes, tmp_path: Path) -> None:
    said = refused(nodes, library, tmp_path / "rec", 6, "./endings", "die")
    assert "./endings die ended with status" in said
    said = refused(nodes, library, tmp_path / "rec", 6, "./endings", "abort")
    assert "rank 1 called MPI_Abort with status 5: nothing was recorded" in said
    assert "rank 1: a message comes to MPI_BOTTOM" in refused(
        nodes, library, tmp_path / "rec", 4, "./endings", "bottom"
    )


def small_folder(nodes: MpiNodes, size: str) -> str:
    """A folder on the second node with so much room, where it is TMPDIR; not there on the first."""
    place = f"/run/small-{size}"
    nodes.on_second('mkdir -p "$1"; mountpoint -q "$1" || mount -t tmpfs -o "size=$2" tmpfs "$1"', place, size)
    return place


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_disk_that_is_full_there(library: str, nodes: MpiNodes, tmp_path: Path) -> None:
    place = small_folder(nodes, "400k")
    # Some 2 MB of answers each.
    said = refused(nodes, library, tmp_path / "rec", 6, *given(library, place), "./cg", "200000", "3", TMPDIR=place)
    assert f"rank 1: {place} cannot be written: No space left on device" in said
    assert nodes.on_second('find "$1" -mindepth 1', place) == ""
    place = small_folder(nodes, "100k")
    said = refused(nodes, library, tmp_path / "rec", 6, *given(library, place), "./cg", TMPDIR=place)
    assert f"rank of nb: {place} cannot hold the recorder" in said


def given(library: str, place: str) -> tuple[str, ...]:
    """Open MPI's launcher tells ranks on other nodes only what it is asked to."""
    return ("-x", "TMPDIR") if library == "openmpi" else ("-genv", "TMPDIR", place)


def test_most_bytes_hold_there(nodes: MpiNodes, tmp_path: Path) -> None:
    said = refused(nodes, "openmpi", tmp_path / "rec", 4, "./cg", "200000", "3", options=("--max-inbox", "1M"))
    assert "the recording is larger than --max-inbox" in said


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_rank_beside_the_folder(library: str, nodes: MpiNodes, tmp_path: Path) -> None:
    said = refused(nodes, library, tmp_path / "rec", 4, "./cg", hosts="nb")
    assert (
        "rank 0: no rank runs on a node that has the recording's folder, as its owner's alone: record on a node" in said
    )


def test_a_folder_of_the_same_name_there(nodes: MpiNodes, tmp_path: Path) -> None:
    """It is not the recording's, and is left alone."""
    folder = tmp_path / "rec"
    nodes.on_second('mkdir -p "$1"; printf other >"$1/token"', folder)
    assert recorded(nodes, "openmpi", folder, "./cg").returncode == 0
    assert len(read_recording(folder).ranks) == 2
    assert nodes.on_second('cd "$1"; ls; cat token', folder) == "token\nother"


def test_another_program_there(nodes: MpiNodes, tmp_path: Path) -> None:
    place = nodes.programs / "openmpi"
    shutil.copy(place / "cg", place / "cg2")
    nodes.on_second('cp "$1/cg" "$1/cg2"; printf x >>"$1/cg2"', place)
    said = refused(nodes, "openmpi", tmp_path / "rec", 4, "./cg2")
    assert f"rank 1 on nb ran another {place}/cg2 than the one here: copy it to all nodes" in said
    nodes.on_second('rm "$1/cg2"', place)
    said = refused(nodes, "openmpi", tmp_path / "rec", 6, "./cg2")
    assert "rank of nb: ./cg2 is not there" in said


def test_a_probe_of_them(nodes: MpiNodes, tmp_path: Path) -> None:
    """Built on the first node, from the rank of either: the run is recorded once."""
    words = [
        "mpi",
        "build",
        "--gather",
        "--capture",
        "direct",
        "--runs",
        "0",
        "-q",
        "-o",
        str(tmp_path / "app.mpiprobe"),
    ]
    command = ["--", "mpirun.openmpi", "--host", "na,nb", "-n", "2", "./halo", "1200", "1000"]
    place = nodes.programs / "openmpi"
    done = nodes.run(sys.executable, "-m", "probe", *words, *command, cwd=place)
    assert done.returncode == 0 and "recorded, 2 ranks" in done.stderr, done.stderr
    with opened(tmp_path / "app.mpiprobe") as found:
        assert found.recording.hosts == ("na", "nb")
        assert sorted(rank for one in found.clusters for rank in one.ranks) == [0, 1]
