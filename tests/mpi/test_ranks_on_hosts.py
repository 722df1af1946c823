# SPDX-License-Identifier: Apache-2.0
"""MPI programs on several hosts: by srun on nodes of a Slurm, with ranks that are missing, or there twice."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from mpi_programs import LIBRARIES, allow_root, built, results
from mpi_recordings import made_recording
from slurm_cluster import NODES, SlurmCluster, cluster

from checkpoint.errors import ProgramFailed, ProgramUnsupported
from checkpoint.paths import cache_dir
from probe.mpi.record import record
from probe.mpi.recording import RankRun, Recording, read_recording, write_recording
from probe.mpi.replay import replay
from probe.mpi.show import recording_lines
from probe.mpi.simulate import Where, simulate

LONGEST_SOCKET = 107

pytestmark = pytest.mark.alone("four nodes of Slurm, on its ports, share the processors")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    allow_root(monkeypatch)
    return tmp_path


def test_srun_on_two_nodes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # PMIx keeps a folder for each node, and all nodes are this machine.
    (place / "recordings").mkdir()
    for node in NODES:
        (place / f"tmp-{node}").mkdir()
    with cluster(place / "slurm", f"TmpFS={place}/tmp-%n") as slurm:
        for name in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(name, slurm.environment[name])
        made = [srun(slurm, *how, place, monkeypatch) for how in (("openmpi", "pmix"), ("mpich", "pmi2"))]
        # Of another kind each rank is a program of its own.
        with pytest.raises(ProgramUnsupported, match="rank 0: two processes are this rank, each as one of 1"):
            srun(slurm, "mpich", "pmix", place, monkeypatch)
        assert not (place / "recordings" / "mpich-pmix").exists()
    for one in made:
        assert [run.host for run in one.ranks] == ["n1", "n2"]
        assert read_recording(one.folder) == one
        assert any("n1, n2" in line for line in recording_lines(one))
        # How many processors the nodes have is not known here.
        assert one.processors == 0 and one.warnings == ()
        where = Path(one.ranks[0].folder)
        first = results("cg", where, 2)
        assert [replay(one, rank).status for rank in range(2)] == [0, 0]
        assert results("cg", where, 2) == first
        assert simulate(one, Where(network="torus:2")).seconds > 0


def srun(
    slurm: SlurmCluster, library: str, kind: str, place: Path, monkeypatch: pytest.MonkeyPatch, gather: bool = False
) -> Recording:
    folder = place / f"{library}-{kind}"
    folder.mkdir()
    monkeypatch.chdir(folder)
    # Where it cannot be made srun ends with status 0, and has started nothing.
    socket = slurm.folder / "spool" / NODES[0] / "stepd.slurm.pmix.10.0"
    assert len(str(socket)) <= LONGEST_SOCKET, "give the test a shorter name"
    program = built("cg", library, folder)
    command = ["srun", f"--mpi={kind}", "-N", "2", "-n", "2", str(program)]
    slurm.wait_until_idle()
    return record(command, place / "recordings" / folder.name, gather=gather)


# Nodes other than n1 do not see the recordings, nor the compiled recorder.
_HIDDEN = 'mount -t tmpfs tmpfs "$0"; mount -t tmpfs tmpfs "$1"; shift; exec "$@"'


def test_srun_apart(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On nodes that share no folder."""
    for node in NODES:
        (place / f"tmp-{node}").mkdir()
    for folder in (cache_dir(), place / "recordings"):
        folder.mkdir(parents=True, exist_ok=True)
    hidden = ["unshare", "--mount", "sh", "-c", _HIDDEN, str(place / "recordings"), str(cache_dir())]
    away = [str(path) for path in Path(os.environ["TMPDIR"]).iterdir()]
    with cluster(place / "slurm", f"TmpFS={place}/tmp-%n", apart={node: hidden for node in NODES[1:]}) as slurm:
        for name in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(name, slurm.environment[name])
        with pytest.raises(ProgramFailed, match=r"cannot be written|ranks? left a recording"):
            srun(slurm, "openmpi", "pmix", place, monkeypatch)
        shutil.rmtree(place / "openmpi-pmix")
        made = [srun(slurm, *how, place, monkeypatch, True) for how in (("openmpi", "pmix"), ("mpich", "pmi2"))]
    for one in made:
        assert [run.host for run in one.ranks] == ["n1", "n2"] and read_recording(one.folder) == one
        where = Path(one.ranks[0].folder)
        first = results("cg", where, 2)
        assert [replay(one, rank).status for rank in range(2)] == [0, 0]
        assert results("cg", where, 2) == first
        assert simulate(one, Where(network="torus:2")).seconds > 0
    assert [str(path) for path in Path(os.environ["TMPDIR"]).iterdir()] == away


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_rank_that_leaves_nothing(library: str, place: Path) -> None:
    """As on a node that does not see the folder, or where the launcher takes LD_PRELOAD away."""
    program = str(built("cg", library, place))
    command = [f"mpirun.{library}", "-n", "1", program, ":", "-n", "1", "env", "-u", "LD_PRELOAD", program]
    with pytest.raises(ProgramFailed, match="1 of 2 ranks left a recording, rank 1 did not: all nodes must share"):
        record(command, place / "recording")
    assert not (place / "recording").exists()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_rank_that_cannot_write(library: str, place: Path) -> None:
    program = str(built("cg", library, place))
    command = [f"mpirun.{library}", "-n", "1", "env", f"PROBE_MPI_RECORD={place}/nowhere", program]
    with pytest.raises(
        ProgramFailed, match=r"its folder cannot be written \(No such file.*\): all nodes must share it"
    ):
        record(command, place / "recording")


def test_a_launcher_that_hands_on_what_slurm_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As MPICH's does inside a job: the node's name there is that of another process."""
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    monkeypatch.setenv("SLURM_TASK_PID", "1")
    made = record(["mpirun.mpich", "-n", "1", str(built("cg", "mpich", place))], place / "recording")
    assert [one.host for one in made.ranks] == [os.uname().nodename] and made.processors > 0


def test_a_rank_twice(place: Path) -> None:
    program = str(built("cg", "openmpi", place))
    with pytest.raises(ProgramUnsupported, match="rank 0: two processes are this rank, each as one of 1"):
        record(["sh", "-c", '"$0" & "$0"; wait', program], place / "recording")


def test_hosts_that_are_not_known(place: Path) -> None:
    made = made_recording(place / "older", [[], []])
    description = made.folder / "recording.json"
    text, changed = re.subn(r',\s*"host": ""', "", description.read_text())
    assert changed == 2
    description.write_text(text)
    assert made.hosts == () and read_recording(made.folder).hosts == ()
    runs = tuple(RankRun(rank, "/bin/true", "/", ("true",), False, host="n1") for rank in range(2))
    write_recording(Recording(made.folder, ("mpirun",), "", "", 1.0, {"/bin/true": "0"}, runs))
    assert read_recording(made.folder).hosts == ("n1",)
    assert not any(line.startswith("hosts") for line in recording_lines(read_recording(made.folder)))
