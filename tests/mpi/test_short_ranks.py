# SPDX-License-Identifier: Apache-2.0
"""Ranks that hardly compute: a program with such a rank is built without a probe of it, one of nothing else is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from mpi_programs import allow_root, built, launched, printed
from published import schema_errors

from checkpoint.errors import ProgramTooShort
from probe.cli.main import cli

pytestmark = [pytest.mark.slow(minutes=2)]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    allow_root(monkeypatch)
    return tmp_path


def test_a_master_that_hands_out_work_needs_no_probe(place: Path) -> None:
    command = launched("openmpi", 2, built("workers", "openmpi", place), "60", "500000")
    found = printed("build", "--capture", "direct", "--runs", "0", "-q", "-o", "app.mpiprobe", "--json", "--", *command)
    assert schema_errors("probe-mpi-build", found) == []
    probes = {one["representative"]: one["probe"] for one in found["clusters"]}
    assert probes == {0: "", 1: "rank-1.probe"}
    ran = printed("run", "-q", "--repeat", "2", "--network", "torus:2", "--json", "app.mpiprobe")
    master, worker = sorted(ran["clusters"], key=lambda one: one["representative"])
    assert {name: master[name] for name in ("ratio", "low", "high")} == pytest.approx(
        {name: worker[name] for name in ("ratio", "low", "high")}
    )


def test_programs_of_which_all_ranks_are_too_short(place: Path) -> None:
    command = launched("openmpi", 2, built("halo", "openmpi", place), "20", "20")
    done = CliRunner().invoke(cli, ["mpi", "build", "-q", "--capture", "direct", "-o", "app.mpiprobe", "--", *command])
    assert isinstance(done.exception, ProgramTooShort) and "at least 5 are needed" in str(done.exception)
    assert not (place / "app.mpiprobe").exists()
