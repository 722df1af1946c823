# SPDX-License-Identifier: Apache-2.0
"""`probe build --estimate`: one plain run, what a build takes, and nothing left behind."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from programs import build as compiled
from small_probe import command

from probe.cli.main import cli
from probe.formats.choices import SelectionOptions
from probe.inspection.build_estimate import estimate_build
from probe.pipeline.build import full_runs
from probe.pipeline.options import BuildOptions
from probe.pipeline.runs import plan
from probe.pipeline.runs.plan import full_runs_for


def test_runs_by_stage() -> None:
    runs = {"trace": 1, "reference": 3, "validate": 1, "capture": 1, "self-check": 3}
    assert full_runs(BuildOptions(), full_runs_for(10.0)) == runs
    few = {"trace": 1, "validate": 1, "self-check": 1}
    assert full_runs(BuildOptions(), full_runs_for(1200.0)) == few
    assert full_runs(BuildOptions(), full_runs_for(1200.0, apart=True)) == {**few, "capture": 1}
    tried = full_runs(BuildOptions(warmup="auto"), full_runs_for(1200.0, 5, apart=True))
    assert tried == {**few, "warm-up": 1, "capture": 1, "self-check": 5}
    assert "self-check" not in full_runs(BuildOptions(), full_runs_for(1200.0, 0))


@pytest.mark.parametrize(("seconds", "timed"), [(0.0, 3), (3.0, 3), (4.1, 2), (8.1, 1)])
def test_a_short_program_is_timed_more_often(seconds: float, timed: int) -> None:
    assert full_runs(BuildOptions(), full_runs_for(seconds))["validate"] == timed


@pytest.mark.parametrize("capture", ["direct", "criu"])
def test_what_a_build_takes(capture: str, builds: Path, tmp_path: Path) -> None:
    done = command(
        "build", "--estimate", "-o", "x.probe", "--capture", capture, "--max-phases", "3", "--runs", "1",
        "--work", "not/yet",
        "--", str(compiled("sorter", builds)), "1", cwd=tmp_path,
    )  # fmt: skip
    said = done.stdout.replace("\u00a0", " ")
    one = re.search(r"^one run +(\S+ m?s) \(CPU (\S+ m?s)\), (\S+) MB of memory$", said, re.MULTILINE)
    room = re.search(rf"^work folder +at most (\S+) MB in {tmp_path}, with 3 phases; ", said, re.MULTILINE)
    assert one and room, said
    assert "full runs    9: trace 1, validate 3, reference 3, capture 1, self-check 1\n" in said
    assert float(room[1]) == pytest.approx(4 * float(one[3]), rel=0.1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("warmup", "copies", "runs"), [(1, 7, 3), ("auto", 5, 5)])
def test_more_is_captured_where_the_timing_run_does_it(
    warmup: Any, copies: int, runs: int, builds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "FEW_SECONDS", 1e-3)
    monkeypatch.setattr(plan, "LONG_SECONDS", 1e-3)
    options = BuildOptions(warmup=warmup, capture="direct", selection=SelectionOptions(max_phases=4))
    said = estimate_build([str(compiled("sorter", builds)), "1"], options)
    assert said.room == copies * said.resident and sum(said.runs.values()) == runs


@pytest.mark.parametrize("free", [1 << 20, 1 << 40])
def test_a_build_that_does_not_fit_is_said(free: int, builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    arguments = [
        "build",
        "--estimate",
        "-o",
        "x.probe",
        "--capture",
        "direct",
        "--",
        str(compiled("sorter", builds)),
        "1",
    ]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert ("warning: that may not fit: give --work on a larger disk" in done.output) == (free == 1 << 20)


def test_it_writes_no_json_and_goes_on_with_nothing(tmp_path: Path) -> None:
    refused = command("build", "--estimate", "--json", "-o", "x", "--", "true", status=2, cwd=tmp_path)
    assert "--estimate is for people, before a build: leave out --json and --resume" in refused.stderr
    failed = command("build", "--estimate", "-o", "x", "--", "sh", "-c", "kill -9 $$", status=6, cwd=tmp_path)
    assert "was killed by signal 9" in failed.stderr
