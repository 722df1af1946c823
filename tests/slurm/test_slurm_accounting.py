# SPDX-License-Identifier: Apache-2.0
"""Run times from a real slurmdbd, with the prediction that a job's comment or admin comment names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster, cluster
from slurm_submissions import run, store_times

from probe.slurm.installing import install
from probe.store.observing import observed
from probe.store.opening import open_store

pytestmark = pytest.mark.alone("run times of jobs on four nodes of Slurm, on its ports")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    folder = tmp_path_factory.mktemp("accounting")
    (folder / "hooks").mkdir()
    install(folder / "hooks", folder / "hooks" / "probe.table")
    files = {"job_submit.lua": (folder / "hooks" / "job_submit.lua").read_text()}
    with cluster(folder, "JobSubmitPlugins=lua", files, accounting=True) as running:
        yield running


def test_run_times_come_back_from_accounting(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the admin comment that the hook wrote, and by a comment; failed and foreign jobs are not counted."""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    monkeypatch.setenv("PROBE_STORE", str(tmp_path / "store.db"))
    monkeypatch.setenv("PATH", slurm.environment["PATH"])
    store_times({"n1": 2.0, "n2": 3.0, "n3": 4.0, "n4": 4.0})
    run("slurm", "export", "--table", str(slurm.folder / "hooks" / "probe.table"))
    marked, _ = slurm.submit("-w", "n1", "--comment=probe=solver", script="sleep 2\n")
    noted, _ = slurm.submit("-w", "n2", "--comment=probe=off prediction=2", script="sleep 2\n")
    slurm.submit("-w", "n3", "--comment=probe=solver", script="sleep 1; false\n")
    slurm.submit("-w", "n4", "--comment=probe=off prediction=77", script="sleep 1\n")
    slurm.submit("-w", "n4", "-J", "solver", script="sleep 1\n")
    slurm.submit("-N2", "--comment=prediction=1", script="sleep 1\n")
    slurm.wait_for(lambda: not slurm.run("squeue", "-h").stdout, "the jobs")
    since = ("--since", "now-1hours")
    ended = ("sacct", "-X", "-n", "-S", "now-1hours", "-o", "State")
    slurm.wait_for(lambda: slurm.run(*ended).stdout.count("COMPLETED") == 5, "sacct to know them")
    said = run("slurm", "observe", *since)
    assert "2 run times stored, 0 were there already" in said
    assert "1 jobs without a prediction" in said and "1 jobs names a prediction that the store has not" in said
    assert "1 jobs on several nodes" in said
    assert "1 run times stored, 2 were there already" in run("slurm", "observe", *since, "--by-name")
    with open_store() as store:
        seen = {item.source.split(":")[2]: item for item in observed(store)}
    assert (seen[str(marked)].node, seen[str(marked)].predicted) == ("n1", 2.0)
    assert (seen[str(noted)].node, seen[str(noted)].predicted) == ("n2", 3.0)
    assert all(item.source.startswith("slurm:probetest:") and 1 <= item.seconds <= 30 for item in seen.values())
