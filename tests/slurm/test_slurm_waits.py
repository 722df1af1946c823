# SPDX-License-Identifier: Apache-2.0
"""Waits in a real Slurm with accounting: its own answer, history and simulation; and jobs that become runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_runs import computing, made_runs, mpi
from published import schema_errors
from slurm_cluster import SlurmCluster, cluster

from checkpoint.errors import SlurmError
from probe.applications.application import read_application
from probe.cli.main import cli
from probe.slurm.bench_jobs import with_joules
from probe.slurm.run_accounting import BENCHMARK, runs_of_lines
from probe.slurm.waits import answers, past_waits, present_waits
from probe.store.opening import open_store
from probe.store.runs import store_runs, stored_runs

pytestmark = pytest.mark.alone("a queue on four nodes of Slurm, on its ports")

FUSION = """
name = "fusion"
[kernel.gem]
parameters = { steps = 1 }
work = "2*steps"
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with cluster(tmp_path_factory.mktemp("waits"), accounting=True) as running:
        yield running


@pytest.fixture(autouse=True)
def here(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    monkeypatch.setenv("PATH", slurm.environment["PATH"])
    yield
    slurm.cancel_all()


def test_three_answers_about_a_full_queue(slurm: SlurmCluster) -> None:
    """Sixteen jobs of two nodes have gone through; now all nodes are busy for at most two minutes more."""
    for _ in range(16):
        slurm.submit("-N2", "--exclusive", "-t", "1", script="true\n")
    slurm.wait_for(lambda: not slurm.run("squeue", "-h").stdout, "sixteen jobs")
    slurm.wait_for(lambda: len(past_waits("main", "now-1hours")[0]) == 16, "sacct to know them")
    waits, skipped = past_waits("main", "now-1hours")
    assert skipped == 0 and {one.cores for one in waits} == {4} and {one.limit for one in waits} == {60.0}
    begun = time.time()
    slurm.submit("-N4", "--exclusive", "-t", "2", script="sleep 100\n")
    slurm.wait_for(lambda: "R" in slurm.run("squeue", "-h", "-o", "%t").stdout, "the long job")
    slurm.submit("-N4", "--exclusive", "-t", "1", script="true\n")
    slurm.wait_for(lambda: len(present_waits("main")) == 1, "the job that waits")
    own, history, simulated = answers("main", 4, 60.0, 0.8, since="now-1hours")
    assert history.seconds is not None and history.seconds == sorted(w.seconds for w in waits)[-1]
    # Two minutes at most for the long job, and one for the one that waits.
    left = 180 - (time.time() - begun)
    assert own.seconds is not None and 60 <= own.seconds <= 200, own
    assert simulated.seconds is not None and left - 20 <= simulated.seconds <= left + 20, simulated
    asked = ["queue", "--cores", "4", "--time", "1m", "--since", "now-1hours"]
    said = json.loads(CliRunner().invoke(cli, [*asked, "--json"], catch_exceptions=False).stdout)
    assert schema_errors("probe-queue", said) == []
    assert [one["way"] for one in said["answers"]] == ["Slurm", "history", "simulation"]
    (large, few, never) = answers("main", 64, 60.0, 0.8, since="now-1hours")
    assert large.seconds is None and "refused" in large.reason
    assert few.seconds is None and "needs 14" in few.reason
    assert never.seconds is None and "never starts" in never.reason
    with pytest.raises(SlurmError, match="no partition 'none'"):
        answers("none", 4, 60.0, 0.8)


def test_waits_for_the_predicted_run_time(slurm: SlurmCluster, tmp_path: Path) -> None:
    """ComPat D4.3, figure 9: the run time and 10 % more."""
    (tmp_path / "fusion.toml").write_text(FUSION)
    with open_store(tmp_path / "store.db") as opened:
        store_runs(opened, made_runs((1, 2, 4, 8), node_type="main"))
    asked = ["queue", "--cores", "4", "--partition", "main", "--store", str(tmp_path / "store.db")]
    asked += ["--application", str(tmp_path / "fusion.toml"), "--set", "steps=3"]
    said = json.loads(CliRunner().invoke(cli, [*asked, "--json"], catch_exceptions=False).stdout)
    assert schema_errors("probe-queue", said) == []
    assert said["predicted"] == pytest.approx(6 * (computing(4) + mpi(4)), rel=0.05)
    assert said["limit"] == pytest.approx(1.1 * said["predicted"])
    shown = CliRunner().invoke(cli, [*asked, "--overhead", "0"], catch_exceptions=False).stdout
    assert "predicted" in shown and "ends after" in shown


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "give --time, or --application"),
        (["--time", "1h", "--application", "x.toml"], "give --time, or --application"),
        (["--application", "x.toml"], "--application needs --node-type, or --partition"),
        (["--time", "1h", "--set", "steps=3"], "--node-type and --set go with --application"),
    ],
)
def test_options_of_queue_that_do_not_go_together(more: list[str], said: str) -> None:
    refused = CliRunner().invoke(cli, ["queue", "--cores", "4", *more])
    assert refused.exit_code == 2 and said in refused.output


def test_jobs_become_runs(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "fusion.toml").write_text(FUSION)
    slurm.submit("-n4", "-J", "fusion.gem", "--comment=its steps=3", script="sleep 2\n")
    slurm.submit("-n2", "-J", "fusion.gem", script="false\n")
    slurm.submit("-n1", "-J", "other", script="true\n")
    slurm.submit("-n1", "-J", "fusion.gem", f"--comment=probe=off {BENCHMARK}", script="true\n")
    slurm.wait_for(lambda: not slurm.run("squeue", "-h").stdout, "four jobs")
    named = ("sacct", "-X", "-n", "-S", "now-1hours", "--name=fusion.gem,other", "-o", "State")
    slurm.wait_for(lambda: slurm.run(*named).stdout.count("ED") == 4, "sacct to know them")
    store = ["--store", str(tmp_path / "store.db")]
    asked = ["slurm", "runs", str(tmp_path / "fusion.toml"), "--since", "now-1hours", *store]
    said = json.loads(CliRunner().invoke(cli, [*asked, "--json"], catch_exceptions=False).stdout)
    assert schema_errors("probe-slurm-runs", said) == []
    assert (said["stored"], said["known"]) == (1, 0)
    assert {one["reason"] for one in said["skipped"]} == {
        "not completed", "called like no kernel", "made by `probe bench`, which stored it",
    }  # fmt: skip
    assert "0 runs stored, 1 were there already" in CliRunner().invoke(cli, asked, catch_exceptions=False).stdout
    with open_store(tmp_path / "store.db") as opened:
        (run,) = stored_runs(opened)
    assert (run.cores, run.node_type, run.work, run.parameters) == (4, "main", 6, {"steps": 3})
    assert 2 <= run.runtime <= 30 and run.wait is not None and run.wait >= 0 and run.energy is None


def test_accounting_with_missing_fields(tmp_path: Path) -> None:
    (tmp_path / "fusion.toml").write_text(FUSION)
    good = "7|c|fusion.gem|main|2|8|COMPLETED|100|110|210|5000|a|b steps=4|"
    bad = [
        "", "7|c|fusion.gem", good.replace("|110|", "|Unknown|"), good.replace("|8|", "||"),
        good.replace("|210|", "|110|"), good.replace("|100|", "|120|"), good.replace("|main|", "||"),
        good.replace("steps=4", "steps=0"),
    ]  # fmt: skip
    read = runs_of_lines([good, *bad], read_application(tmp_path / "fusion.toml"), {}, threads_per_core=2)
    (run,) = read.runs
    assert (run.cores, run.ranks, run.wait, run.runtime, run.energy, run.energy_source, run.work) == (
        4, 4, 10, 100, 5000, "accounting", 8,
    )  # fmt: skip
    assert sum(read.skipped.values()) == len(bad)
    assert read.skipped["fields are missing"] == 2


def test_joules_of_a_benchmark_are_its_part_of_the_jobs() -> None:
    """Compiled and started within the job: 8 s of its 10 s are the run."""
    (run,) = made_runs((4,))
    run = replace(run, runtime=8.0, mpi=None)
    found = with_joules(run, "10|500\n")
    assert (found.energy, found.energy_source) == (400, "accounting")
    assert with_joules(run, "7|500").energy == 500
    for nothing in ("", "10|", "10|0", "|5", "10|many", "10|inf", "10"):
        assert with_joules(run, nothing) == run
