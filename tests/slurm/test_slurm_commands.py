# SPDX-License-Identifier: Apache-2.0
"""Commands around a real Slurm: table, wrapper, finished jobs, and probes as jobs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from documentation import check_keys
from results import result
from slurm_cluster import SlurmCluster
from slurm_submissions import FAST_AND_SLOW, KERNEL, asked, here, run, slurm, store_times
from small_probe import small_probe

from checkpoint.errors import NoPrediction, NotInStore, ProbeError, SlurmError, StorageError
from probe.cli.main import cli
from probe.store.importing import import_results
from probe.store.observing import observed
from probe.store.opening import open_store
from probe.store.reading import all_nodes, candidates, find_probe, history

pytestmark = pytest.mark.alone("probes as jobs on four nodes of Slurm, on its ports")

__all__ = ["here", "slurm"]


def as_json(words: str, *arguments: str) -> dict[str, Any]:
    """What a command prints with --json: the keys that are documented, and as its schema wants them."""
    said: dict[str, Any] = json.loads(run(*words.split(), "--json", *arguments))
    check_keys(said, f"probe {words} --json")
    return said


# -- installing and exporting


def test_a_sites_own_script_stays(tmp_path: Path) -> None:
    own = tmp_path / "job_submit.lua"
    own.write_text("-- ours since 2009\n")
    said = run("slurm", "install", "--conf", str(tmp_path))
    assert own.read_text() == "-- ours since 2009\n" and (tmp_path / "probe_hook.lua").exists()
    assert "stays as it is; add to it" in said and "dofile" in said
    own.unlink()
    assert f"written: {own}" in run("slurm", "install", "--conf", str(tmp_path))
    before = own.read_text()
    assert f"written: {own}" in run("slurm", "install", "--conf", str(tmp_path)), "its own script is written again"
    assert own.read_text() == before
    assert str(own) in as_json("slurm install", "--conf", str(tmp_path))["written"]
    with pytest.raises(StorageError, match="no such folder"):
        run("slurm", "install", "--conf", str(tmp_path / "nowhere"))


def test_no_limit_where_a_node_is_unknown(slurm: SlurmCluster) -> None:
    """n4 is of n3's kind, so n3's prediction counts for it; without both, nothing can be said of `main`."""
    store_times({name: FAST_AND_SLOW[name] for name in ("n1", "n3")})
    assert "no time limit" not in run("slurm", "export")
    assert asked(slurm, "--comment=probe=solver")["TimeLimit"] == "00:25:00"
    assert as_json("slurm export")["probes"] == 1
    store_times({"n2": 100.0}, probe="short-one")
    said = run("slurm", "export", "short-one")
    assert "short-one: no time limit in main: no prediction for n3, n4" in said
    found = asked(slurm, "--comment=probe=short-one")
    assert (found["TimeLimit"], found["Prefer"]) == ("00:30:00", None)
    assert asked(slurm, "--comment=probe=short-one", "-p", "short")["TimeLimit"] == "00:05:00"


def test_another_kernel_in_slurm_makes_predictions_stale(slurm: SlurmCluster) -> None:
    with open_store() as store:
        import_results(store, [result(10.0, node="n1", kernel="5.10.0"), result(20.0, node="n2", kernel=KERNEL)])
    said = run("slurm", "export")
    assert "n1 has another kernel now" in said and "n2 has" not in said
    with open_store() as store:
        assert [c.node for c in candidates(store, find_probe(store, "solver")) if c.stale] == ["n1"]
        assert {n.name: n.features for n in all_nodes(store)} == {"n1": ("amd", "fast"), "n2": ("amd", "fast")}
    assert "seconds=20.000" in str(asked(slurm, "--comment=probe=solver")["AdminComment"])


# -- the wrapper


def submit(*arguments: str, given: str = "") -> int:
    said = run("slurm", "submit", "--probe", "solver", *arguments, given=given)
    found = re.search(r"Submitted batch job (\d+)", said)
    assert found, said
    return int(found[1])


def test_submit_goes_where_the_job_ends_soonest(slurm: SlurmCluster, tmp_path: Path) -> None:
    store_times(FAST_AND_SLOW)
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    (tmp_path / "out").mkdir()
    words = ("--", "-o", "/dev/null", "--hold", str(script))
    free = slurm.job(submit(*words))
    assert (free["Features"], free["TimeLimit"]) == ("amd", "00:15:00")
    slurm.cancel_all()
    # The fast nodes are busy for three hours: the slow ones, twice as slow, are done long before.
    busy = [
        slurm.submit("-w", node, "--exclusive", "--time=3:00:00", script="sleep 1000\n")[0] for node in ("n1", "n2")
    ]
    slurm.wait_for(lambda: all(slurm.job(n)["JobState"] == "RUNNING" for n in busy), "the fast nodes to be busy")
    waiting = slurm.job(submit(*words))
    assert waiting["Features"] == "intel"
    by_node = slurm.job(submit("--by-node", *words))
    assert by_node["ReqNodeList"] == "n3"
    assert "Comment=probe=solver prediction=" in slurm.run("scontrol", "show", "job", by_node["JobId"]).stdout
    listed = run("slurm", "submit", "--probe", "solver", "--dry-run", *words).splitlines()
    assert [line.split()[0] for line in listed[1:3]] == ["intel", "slow"]
    said = as_json("slurm submit", "--probe", "solver", "--dry-run", *words)
    assert [choice["name"] for choice in said["choices"]][:2] == ["intel", "slow"] and said["said"] == ""
    assert len(slurm.run("squeue", "-h").stdout.splitlines()) == 4, "a dry run submits nothing"


def test_submit_keeps_what_the_user_and_the_script_ask_for(slurm: SlurmCluster, tmp_path: Path) -> None:
    store_times(FAST_AND_SLOW)
    (tmp_path / "job.sh").write_text(
        "#!/bin/sh\n# a job\n#SBATCH --time=2:00:00 --job-name x # two hours\ntrue\n#SBATCH -t 1\n"
    )
    common = ("--", "-o/dev/null", "--hold")
    assert slurm.job(submit(*common, "job.sh", "-t", "5"))["TimeLimit"] == "02:00:00"
    assert slurm.job(submit(*common, "-t", "7", "job.sh"))["TimeLimit"] == "00:07:00"
    assert slurm.job(submit(*common, "--time=8", "--wrap", "true"))["TimeLimit"] == "00:08:00"
    assert slurm.job(submit(*common, "--wrap=true"))["TimeLimit"] == "00:15:00"
    piped = slurm.job(submit(*common, given="#!/bin/sh\n#SBATCH -C slow\ntrue\n"))
    assert (piped["Features"], piped["TimeLimit"]) == ("slow", "00:25:00")
    assert slurm.job(submit(*common, "-w", "n4", "job.sh"))["ReqNodeList"] == "n4"


def test_submit_reads_standard_input_only_for_a_script(slurm: SlurmCluster, tmp_path: Path) -> None:
    """As from cron or ssh, where standard input may be a pipe that nobody ever closes."""
    store_times(FAST_AND_SLOW)
    (tmp_path / "job.sh").write_text("#!/bin/sh\ntrue\n")
    words = [sys.executable, "-m", "probe", "slurm", "submit", "--probe", "solver", "--dry-run", "--", "job.sh"]
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            words, stdin=reading, capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
    finally:
        os.close(reading)
        os.close(writing)
    assert done.returncode == 0 and "any node" in done.stdout, done.stderr


def test_submit_says_why_not(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\ntrue\n")
    store_times({"elsewhere": 3.0})
    with pytest.raises(NoPrediction, match="no prediction for any node of partition main"):
        submit("--", "job.sh")
    store_times(FAST_AND_SLOW)
    with pytest.raises(SlurmError, match=r"sbatch refused: .*configuration is not available"):
        submit("--", "--mem=9000000", "job.sh")
    with pytest.raises(StorageError, match=r"missing\.sh"):
        submit("--", "missing.sh")
    with pytest.raises(ProbeError, match="nothing to submit"):
        submit("--", "--hold")
    with pytest.raises(NotInStore):
        run("slurm", "submit", "--probe", "nobody", "--", "job.sh")


# -- finished jobs


def test_run_times_come_back_from_the_completion_log(slurm: SlurmCluster) -> None:
    store_times({"n1": 2.0, "n2": 3.0})
    number, _ = slurm.submit("-J", "solver", "-w", "n1", script="sleep 2\n")
    others = [
        slurm.submit("-J", name, "-w", "n1", script=s)[0]
        for name, s in (("solver", "sleep 1; false\n"), ("x", "true\n"))
    ]
    for job in (number, *others):
        slurm.wait_for(lambda job=job: slurm.job(job)["JobState"] in ("COMPLETED", "FAILED"), "the jobs")  # type: ignore[misc]
    log = ("--completion-log", "--by-name", "--since", "now-1hours")
    slurm.wait_for(lambda: "1 run times stored" in run("slurm", "observe", *log), "the completion log")
    assert "0 run times stored, 1 were there already" in run("slurm", "observe", *log)
    said = as_json("slurm observe", *log)
    assert (said["stored"], said["known"]) == (0, 1) and said["skipped"]
    with open_store() as store:
        (seen,) = observed(store)
    assert (seen.node, seen.predicted) == ("n1", 2.0) and 1 <= seen.seconds <= 30
    assert re.fullmatch(rf"slurm:[^:]+:{number}:\d+", seen.source)


# -- probes as jobs


@pytest.mark.slow
def test_probes_run_as_jobs_on_one_node_of_each_kind(slurm: SlurmCluster, builds: Path, tmp_path: Path) -> None:
    """n1 to n4 share this machine's processors: that the times are right is not tested here."""
    path = tmp_path / "small.probe"
    path.write_bytes(small_probe(builds).path.read_bytes())
    said = json.loads(run("run", str(path), "--slurm", "--per-node-type", "--repeat", "1", "--json", "-q"))
    check_keys(said, "probe run --slurm --json")
    assert len(said["results"]) == 2 and said["failures"] == []
    # One repeat, and two more where other work disturbs it; without the option there are five.
    assert all(len(r["phases"][0]["repeats"]) <= 3 for r in said["results"]), "options reach the nodes"
    with open_store() as store:
        found = {p.node: p for p in history(store)}
        features = {node.name: node.features for node in all_nodes(store)}
    assert found.keys() == {"n1", "n3"} and features["n3"] == ("intel", "slow")
    assert {p.kernel for p in found.values()} == {KERNEL}
    assert slurm.run("squeue", "-h").stdout == ""
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".probe")] == [], "nothing is left beside the probe"


@pytest.mark.slow
def test_a_node_that_fails_is_named_and_the_others_count(
    slurm: SlurmCluster, builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "small.probe"
    path.write_bytes(small_probe(builds).path.read_bytes())
    slurm.run("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    try:
        said = run("run", str(path), "--slurm", "--partition", "short", "--repeat", "1")
    finally:
        slurm.run("scontrol", "update", "nodename=n2", "state=resume")
    assert "1 predictions stored" in said and "n1" in said and "n2" not in said
    without = tmp_path / "python-without-probe"
    without.write_text("#!/bin/sh\necho 'No module named probe' >&2\nexit 1\n")
    without.chmod(0o755)
    monkeypatch.setattr("probe.slurm.engine.sys.executable", str(without))
    with pytest.raises(SlurmError, match=r"no node gave a result: job \d+: No module named probe"):
        run("run", str(path), "--slurm", "--partition", "short")
    with pytest.raises(SlurmError, match="no partition 'none'; there are: main, short"):
        run("run", str(path), "--slurm", "--partition", "none")
    assert CliRunner().invoke(cli, ["run", str(path), "--partition", "short"]).exit_code == 2
