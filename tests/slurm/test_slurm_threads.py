# SPDX-License-Identifier: Apache-2.0
"""Programs whose threads share the work, in a real Slurm: their jobs get a processor for each thread."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from slurm_submissions import FAST_AND_SLOW, asked, here, run, slurm, store_times, untouched

from checkpoint.errors import NodeUnfit, SlurmError
from probe.schedulers.usable import usable
from probe.slurm.engine import run_on_slurm
from probe.slurm.facts import slurm_facts
from probe.slurm.submitting import choices
from probe.slurm.table import advise, table_text
from probe.store.opening import open_store

pytestmark = pytest.mark.alone("four nodes of Slurm, on its ports, share the processors")

__all__ = ["here", "slurm"]

MINE = "--comment=probe=solver"


def processors(slurm: SlurmCluster, *options: str) -> tuple[str, str]:
    """Processors of each task and of the whole job, as Slurm understood a submission."""
    number, _ = slurm.submit("--hold", *options)
    job = slurm.job(number)
    slurm.run("scancel", str(number))
    return job["CPUs/Task"], job["NumCPUs"]


def test_a_job_gets_a_processor_for_each_thread(slurm: SlurmCluster, tmp_path: Path) -> None:
    store_times(FAST_AND_SLOW, threads=2)
    run("slurm", "export")
    assert processors(slurm, MINE) == ("2", "2")
    found = asked(slurm, MINE)
    assert (found["TimeLimit"], found["Prefer"]) == ("00:25:00", "amd")
    assert "predicted" in str(found["said"]) and ": 2 processors per task, time limit 25 min" in str(found["said"])
    number, _ = slurm.submit(MINE, "-o", str(tmp_path / "out"), script="echo $SLURM_JOB_CPUS_PER_NODE\n")
    slurm.wait_for(lambda: slurm.job(number)["JobState"] == "COMPLETED", "the job")
    assert (tmp_path / "out").read_text() == "2\n"


def test_one_thread_needs_nothing(slurm: SlurmCluster) -> None:
    store_times(FAST_AND_SLOW)
    run("slurm", "export")
    assert processors(slurm, MINE) == ("1", "1")


def test_what_would_not_get_the_processors_is_left_alone(slurm: SlurmCluster) -> None:
    """The user asks for fewer; or Slurm might refuse the job for asking for more."""
    store_times(FAST_AND_SLOW, threads=2)
    run("slurm", "export")
    for options in (("-c1",), ("-n2",), ("-N2",), ("-w", "n3"), ("--constraint=slow",)):
        assert untouched(asked(slurm, MINE, *options)), options
    assert processors(slurm, MINE, "-c1") == ("1", "1")
    given = asked(slurm, MINE, "-c2", "-n2")
    assert (given["TimeLimit"], given["Prefer"]) == ("00:25:00", None), "it has the processors by itself"
    table = slurm.conf / "probe.table"
    text = table.read_text()
    assert "\t2:main=2000,short=2000\n" in text
    for other in ("\t2:short=2000\n", "\t2:main=10\n", "\t2:\n", "\t0:main=2000\n", "\tx\n", "\t2\n"):
        table.write_text(text.replace("\t2:main=2000,short=2000\n", other))
        assert untouched(asked(slurm, MINE, "--mem=100")), other


def test_nodes_with_fewer_processors_do_not_count(slurm: SlurmCluster) -> None:
    """n3 and n4 as nodes of one processor: no prediction of theirs matters, and no job of two threads gets there."""
    store_times({"n1": 500.0, "n2": 510.0}, threads=2)
    facts = slurm_facts()
    small = tuple(replace(n, cpus=1, kind=("small",)) if n.name in ("n3", "n4") else n for n in facts.nodes)
    with open_store() as store:
        (predicted,) = usable(store)
    (wide,) = advise([predicted], facts)
    (narrow,) = advise([predicted], replace(facts, nodes=small))
    assert wide.missing["main"] == ("n3", "n4") and "main" not in wide.limits
    assert not narrow.missing and narrow.limits["main"] == 15 and narrow.wide == {"main": 2000, "short": 2000}
    assert table_text([narrow], "main", 1.0)[0].endswith("\tmain=15\t\t2:main=2000,short=2000\n")
    assert "any node" in [choice.name for choice in choices(predicted, replace(facts, nodes=small), {})]
    with pytest.raises(NodeUnfit, match="2 threads, but no node of partition main has as many processors"):
        choices(predicted, replace(facts, nodes=tuple(replace(n, cpus=1) for n in facts.nodes)), {})


def test_submit_asks_for_the_processors(slurm: SlurmCluster) -> None:
    store_times(FAST_AND_SLOW, threads=2)
    common = ("slurm", "submit", "--probe", "solver")
    found = re.search(r"batch job (\d+)", run(*common, "--", "-o/dev/null", "--hold", "--wrap=true"))
    assert found and slurm.job(int(found[1]))["CPUs/Task"] == "2"
    said = json.loads(run(*common, "--json", "--dry-run", "--", "-o/dev/null", "--wrap=true"))
    assert {choice["threads"] for choice in said["choices"]} == {2}
    with pytest.raises(NodeUnfit, match="2 threads, but --cpus-per-task is 1"):
        run(*common, "--", "-c1", "--wrap=true")


def test_jobs_of_probes_have_the_processors(slurm: SlurmCluster, tmp_path: Path) -> None:
    """What they run is no probe, so that each says so and ends."""
    (tmp_path / "none.probe").write_text("nothing")
    asked_for = run_on_slurm(tmp_path / "none.probe", [], per_kind=True, threads=2)
    assert asked_for.failures and all("none.probe" in reason for reason in asked_for.failures.values())
    said = slurm.run("scontrol", "-o", "show", "job").stdout
    mine = [line for line in said.splitlines() if "JobName=probe-run-none" in line]
    assert mine and all("CPUs/Task=2" in line for line in mine)


def test_nodes_with_too_few_get_no_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match="3 threads share the work, and it has 2 processors"):
        run_on_slurm(tmp_path / "none.probe", [], threads=3)
    assert "probe-run-none" not in slurm.run("squeue", "-h", "-o", "%j").stdout


def test_the_client_hook_asks_for_the_processors(slurm: SlurmCluster, tmp_path: Path) -> None:
    store_times(FAST_AND_SLOW, threads=2)
    client = tmp_path / "client"
    client.mkdir()
    run("slurm", "install", "--client", "--conf", str(client))
    run("slurm", "export", "--table", str(client / "probe.table"))
    (client / "slurm.conf").write_text((slurm.conf / "slurm.conf").read_text() + "\nCliFilterPlugins=lua\n")
    sbatch = SlurmCluster(slurm.folder, client, {**slurm.environment, "SLURM_CONF": str(client / "slurm.conf")})
    assert processors(sbatch, MINE) == ("2", "2")
    assert asked(sbatch, MINE)["TimeLimit"] == "00:25:00"
    for options in (("--constraint=slow",), ("-n2",), ("-w", "n3"), ("-c1",)):
        assert untouched(asked(sbatch, MINE, *options)), options
