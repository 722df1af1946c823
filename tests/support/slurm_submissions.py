# SPDX-License-Identifier: Apache-2.0
"""A Slurm with our hooks, a store of its own for each test, and what becomes of submissions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from results import result
from slurm_cluster import SlurmCluster, cluster

from probe.cli.main import cli
from probe.slurm.installing import install
from probe.store.importing import import_results
from probe.store.opening import open_store

KERNEL = os.uname().release
UNTOUCHED = {"TimeLimit": "00:30:00", "Prefer": None, "AdminComment": None}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    folder = tmp_path_factory.mktemp("slurm")
    conf = folder / "conf"
    (folder / "prepared").mkdir()
    install(folder / "prepared", conf / "probe.table")
    hook = (folder / "prepared" / "probe_hook.lua").read_text()
    script = (folder / "prepared" / "job_submit.lua").read_text().replace(str(folder / "prepared"), str(conf))
    files = {"probe_hook.lua": hook, "job_submit.lua": script}
    with cluster(folder, "JobSubmitPlugins=lua", files) as running:
        yield running


@pytest.fixture(autouse=True)
def here(slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This Slurm for our commands, a store of the test's own, and no jobs or table afterwards."""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    monkeypatch.setenv("PATH", slurm.environment["PATH"])
    monkeypatch.setenv("PROBE_STORE", str(tmp_path / "store.db"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    if slurm.run("squeue", "-h").stdout.strip():
        slurm.cancel_all()
    table = slurm.conf / "probe.table"
    table.rmdir() if table.is_dir() else table.unlink(missing_ok=True)


def run(*arguments: str, given: str = "") -> str:
    done = CliRunner().invoke(cli, list(arguments), input=given)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def store_times(times: dict[str, float], probe: str = "solver", **more: Any) -> None:
    with open_store() as store:
        given = [result(seconds, node=node, probe=probe, kernel=KERNEL, **more) for node, seconds in times.items()]
        import_results(store, given)


FAST_AND_SLOW = {"n1": 500.0, "n2": 510.0, "n3": 1000.0, "n4": 1100.0}


def asked(slurm: SlurmCluster, *options: str, script: str = "true\n") -> dict[str, str | None]:
    """What Slurm made of a submission: limit, preference, admin comment; and the message to the user."""
    number, said = slurm.submit("--hold", *options, script=script)
    job = slurm.job(number)
    comment = slurm.run("scontrol", "show", "job", str(number)).stdout
    admin = re.search(r"AdminComment=(.*)", comment)
    slurm.run("scancel", str(number))
    found = {"TimeLimit": job["TimeLimit"], "Prefer": job.get("Prefer")}
    return {**found, "AdminComment": admin[1].strip() if admin else None, "said": said}


def untouched(found: dict[str, str | None]) -> bool:
    return {key: found[key] for key in UNTOUCHED} == UNTOUCHED and "probe" not in str(found["said"])
