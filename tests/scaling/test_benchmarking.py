# SPDX-License-Identifier: Apache-2.0
"""Benchmarks with real MPI programs: here, over SSH, as a job of Slurm; what the preloaded library says of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from published import schema_errors
from slurm_cluster import cluster
from small_probe import ROOT, SECONDS
from sshd import machine

from checkpoint.errors import NodeMisbehaved, ProbeError, ProgramFailed, Unpredictable
from probe.applications.application import read_application
from probe.applications.inputs import configuration
from probe.cli.main import cli
from probe.scaling.bench import Measured, Order, order, run_here, run_of
from probe.store.opening import open_store
from probe.store.runs import stored_runs

pytestmark = [pytest.mark.slow(minutes=1), pytest.mark.alone("two ranks on two processors, Slurm's and sshd's ports")]

NPB = """
name = "npb"
launch = "mpirun --allow-run-as-root --oversubscribe -n {ranks}"
[kernel.cg]
command = "./mpi_kernel cg {size} {steps}"
parameters = { size = 20000, steps = 20 }
work = "size*steps"
[kernel.ft]
command = "./mpi_kernel ft {size} 5"
parameters = { size = 65536 }
work = "5*size"
[kernel.dd]
command = "dd if=/dev/zero of=/dev/null bs=64k count={count}"
launch = ""
parameters = { count = 100 }
work = "count"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs and their description, where every user can read them."""
    made = tmp_path_factory.mktemp("npb")
    for part in (made, *made.parents[:2]):
        part.chmod(0o755)
    source = ROOT / "tests" / "programs" / "mpi_kernel.c"
    subprocess.run(
        ["mpicc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", made / "mpi_kernel", source, "-lm"], check=True
    )
    (made / "npb.toml").write_text(NPB)
    return made


def wanted(folder: Path, kernel: str, cores: int) -> Order:
    application = read_application(folder / "npb.toml")
    found = application.kernel(kernel)
    return order(application, found, configuration(application, found), "here", cores)


def test_the_library_is_without_warnings(tmp_path: Path) -> None:
    source = ROOT / "pintools" / "mpi" / "times.c"
    options = ["-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-shared", "-fPIC", "-O2"]
    subprocess.run(["mpicc", *options, "-o", tmp_path / "times.so", source, "-ldl"], check=True)


@pytest.mark.parametrize(("ranks", "calls"), [(1, 20), (2, 20)])
def test_calls_and_bytes_are_those_of_the_program(folder: Path, tmp_path: Path, ranks: int, calls: int) -> None:
    """cg: a reduction of 8 bytes and a gather of the own part in every step; output is no MPI."""
    source = ROOT / "pintools" / "mpi" / "times.c"
    subprocess.run(["mpicc", "-shared", "-fPIC", "-o", tmp_path / "times.so", source, "-ldl"], check=True)
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
    environment = {**os.environ, "LD_PRELOAD": str(tmp_path / "times.so"), "PROBE_MPI_TIMES": str(tmp_path)}
    subprocess.run([*command, "./mpi_kernel", "cg", "20000", "20"], check=True, cwd=folder, env=environment)
    reports = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    for report in reports:
        by_name = {call["name"]: call for call in report["calls"]}
        assert by_name["Allreduce"]["calls"] == by_name["Allgatherv"]["calls"] == calls
        assert by_name["Allreduce"]["bytes"] == 8 * calls
        assert by_name["Allgatherv"]["bytes"] == calls * 8 * 20000 / ranks
        assert report["mpi"] == pytest.approx(sum(call["seconds"] for call in report["calls"]))
        assert 0 < report["mpi"] < report["seconds"] and report["ranks"] == ranks


@pytest.mark.parametrize("cores", [1, 2])
def test_a_run_here(folder: Path, cores: int) -> None:
    run = run_here(wanted(folder, "cg", cores), 60.0)
    assert (run.cores, run.ranks, run.nodes, run.benchmark, run.work) == (cores, cores, 1, True, 400_000)
    assert run.mpi is not None and run.io is not None and run.computing is not None
    assert 0 < run.computing < run.runtime and run.mpi + run.io + run.computing == pytest.approx(run.runtime)
    assert not run.oversubscribed and re.fullmatch(r"\d+\.\d+ s", run.notes["launch"])


def test_a_program_without_mpi(folder: Path) -> None:
    """All of its time is computing: that is known, not measured."""
    run = run_here(wanted(folder, "dd", 1), 60.0)
    assert run.mpi == 0 and run.computing == run.runtime > 0


def test_more_cores_than_there_are_is_no_data(folder: Path) -> None:
    with pytest.raises(Unpredictable, match=r"npb\.cg on 1000 cores: the node has \d+; threads that share a core"):
        run_here(wanted(folder, "cg", 1000), 60.0)


def test_failures_are_named(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "mpi_kernel", tmp_path)
    text = NPB.replace("dd if=/dev/zero", "sh -c 'echo too bad; exit 3' dd if=/dev/zero")
    (tmp_path / "npb.toml").write_text(text.replace("steps = 20", "steps = 20000000"))
    with pytest.raises(ProgramFailed, match=r"npb\.dd on 1 cores ended with status 3: too bad"):
        run_here(wanted(tmp_path, "dd", 1), 60.0)
    with pytest.raises(ProgramFailed, match="longer than 2 s"):
        run_here(wanted(tmp_path, "cg", 1), 2.0)


@pytest.mark.parametrize(
    "said", ["", "probe-bench cores 2\n", "probe-bench cores 2\nprobe-bench run 1 x 0\n",
             'probe-bench run 1 2 0\nprobe-bench rank {"rank": 0}\n', "probe-bench run 1 2 0\nprobe-bench rank [\n"],
)  # fmt: skip
def test_nonsense_is_refused(folder: Path, said: str) -> None:
    with pytest.raises((NodeMisbehaved, ProbeError)):
        run_of(wanted(folder, "cg", 1), said, Measured())


def test_the_rank_that_computes_longest_counts(folder: Path) -> None:
    """The other one waits for it in MPI; a rank that is missing makes the split unknown."""
    ranks = [
        {"rank": 0, "ranks": 2, "seconds": 10.0, "mpi": 6.0, "io": 0.5, "mpi_bytes": 8, "io_bytes": 0, "calls": []},
        {"rank": 1, "ranks": 2, "seconds": 10.0, "mpi": 1.0, "io": 0.25, "mpi_bytes": 8, "io_bytes": 0, "calls": []},
    ]
    lines = [f"probe-bench rank {json.dumps(rank)}" for rank in ranks]
    head = "probe-bench cores 2\nprobe-bench run 100.0 110.5 0\n"
    run = run_of(wanted(folder, "cg", 2), head + "\n".join(lines), Measured())
    assert (run.runtime, run.mpi, run.io, run.computing) == (10, 1, 0.25, 8.75)
    half = run_of(wanted(folder, "cg", 2), head + lines[0], Measured())
    assert half.mpi is None and half.runtime == 10.5 and half.notes == {"mpi": "not measured"}


def test_the_command_fills_the_store(folder: Path, tmp_path: Path) -> None:
    asked = ["bench", str(folder / "npb.toml"), "--kernel", "ft", "--cores", "1,2", "--node-type", "here"]
    asked += ["--set", "size=16384", "--store", str(tmp_path / "store.db")]
    said = json.loads(CliRunner().invoke(cli, [*asked, "--json"], catch_exceptions=False).stdout)
    assert schema_errors("probe-bench", said) == []
    plain: Any = CliRunner().invoke(cli, [*asked, "--repeat", "2"], catch_exceptions=False)
    assert plain.stdout.count("npb.ft on ") == 4 and "MPI 0." in plain.stdout
    with open_store(tmp_path / "store.db") as opened:
        runs = stored_runs(opened, app="npb", kernel="ft", node_type="here")
    assert [run.cores for run in runs] == [1, 2, 1, 1, 2, 2] and {run.work for run in runs} == {81920}
    for more in (["--partition", "main"], ["--slurm", "--on", "n1"]):
        assert CliRunner().invoke(cli, [*asked, *more]).exit_code == 2


def test_over_ssh(folder: Path, tmp_path: Path) -> None:
    with machine(tmp_path / "machine") as made:
        server = made.serve()
        ssh = ["--identity", made.identity, "--known-hosts", made.known_hosts, "--ssh-config", "/dev/null"]
        asked = ["bench", folder / "npb.toml", "--kernel", "cg", "--cores", "1", "--node-type", "far", "--json"]
        inside = tmp_path / "machine" / "tmp" / "npb"
        inside.mkdir()
        shutil.copy(folder / "mpi_kernel", inside)
        more = ["--on", f"root@127.0.0.1:{server.port}", "--store", tmp_path / "store.db"]
        lost = subprocess.run(
            made.command(["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "probe", *asked, *more, *ssh]),
            capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        assert lost.returncode == 3 and "say with --folder" in lost.stderr
        more += ["--folder", "/tmp/npb"]
        command = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "probe", *asked, *more, *ssh]
        done = subprocess.run(made.command(command), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["node_type"], run["cores"]) == ("far", 1) and run["runtime"] > 0


def test_as_a_job_of_slurm(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(tmp_path / "slurm") as slurm:
        monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
        monkeypatch.setenv("PATH", slurm.environment["PATH"])
        asked = ["bench", str(folder / "npb.toml"), "--kernel", "dd", "--cores", "1", "--node-type", "amd", "--json"]
        asked += ["--slurm", "--partition", "short", "--limit", "2m", "--store", str(tmp_path / "store.db")]
        done = CliRunner().invoke(cli, asked, catch_exceptions=False)
        (run,) = json.loads(done.stdout)["runs"]
        assert run["wait"] >= 0 and run["nodes"] == 1 and run["runtime"] > 0
        assert not list(folder.glob(".probe-bench-*"))
