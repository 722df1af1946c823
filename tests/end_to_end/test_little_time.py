# SPDX-License-Identifier: Apache-2.0
"""Machines that grant less than there is: half the time of a processor by a control group, or one processor only."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command import Command
from conftest import MakeProgram, Sample
from control_group import group_with_processors, joining

ONE = ["taskset", "-c", str(max(os.sched_getaffinity(0)))]


@pytest.mark.timed
@pytest.mark.slow
def test_a_group_with_half_the_time_of_a_processor_is_named(command: Command, sample: Sample) -> None:
    """Predicted is what it needs of a processor; by the wall clock it takes twice as long there, and that is said."""
    plain = command("run", "--json", sample.path)
    assert plain.returncode == 0, plain.stderr
    with group_with_processors(0.5) as group:
        done = command("run", "--json", sample.path, prefix=joining(group))
    assert done.returncode == 0, done.stderr
    without, found = json.loads(plain.stdout), json.loads(done.stdout)
    assert found["node"]["granted"] == 0.5 and "granted" not in without["node"]
    said = "grants the time of 0.5 processors: by the wall clock the program takes up to 2 times as long there"
    assert [said in warning for warning in found["warnings"]].count(True) == 1
    assert not any("control group" in warning for warning in without["warnings"])
    assert found["prediction"]["seconds"] < 1.6 * without["prediction"]["seconds"]


@pytest.mark.timed
@pytest.mark.slow
def test_a_build_with_half_the_time_of_a_processor(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    """The builder waits for its processor as the program does; the probe says so, and predicts."""
    probe, argv = tmp_path / "nbody.probe", [str(program("nbody")), "200"]
    with group_with_processors(0.5) as group:
        built = command("build", "--max-phases", "3", "-o", probe, "--", *argv, prefix=joining(group))
    assert built.returncode == 0, built.stderr
    done = command("run", "--json", probe)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["prediction"]
    assert found["low"] < found["seconds"] < found["high"]


@pytest.mark.timed
@pytest.mark.slow
def test_build_and_run_on_one_processor(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    """Nothing is left to look at the program from: the tracer shares its processor."""
    probe, argv = tmp_path / "nbody.probe", [str(program("nbody")), "200"]
    built = command("build", "--max-phases", "3", "-o", probe, "--", *argv, prefix=ONE)
    assert built.returncode == 0, built.stderr
    done = command("run", "--json", probe, prefix=ONE)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["prediction"]
    assert found["low"] < found["seconds"] < found["high"]
