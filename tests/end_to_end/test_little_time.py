# SPDX-License-Identifier: Apache-2.0
"""Machines that grant less than there is: half the time of a processor by a control group, or one processor only."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from command import Command
from conftest import MakeProgram, Sample
from control_group import group_with_processors, joining

from probe.node.facts import granted_processors

ONE = ["taskset", "-c", str(max(os.sched_getaffinity(0)))]


def own_seconds(argv: list[str]) -> float:
    """How long a program takes by itself, at its best."""
    found = []
    for _ in range(3):
        begun = time.monotonic()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        found.append(time.monotonic() - begun)
    return min(found)


def ran(command: Command, probe: Path, **options: Any) -> dict[str, Any]:
    """What a run of the probe says."""
    done = command("run", "--json", probe, **options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.timed
@pytest.mark.slow
def test_a_group_with_half_the_time_of_a_processor_is_named(command: Command, sample: Sample) -> None:
    """Predicted is what it needs of a processor; by the wall clock it takes twice as long there, and that is said."""
    if granted_processors() < (os.cpu_count() or 1):
        pytest.skip("this machine grants less than there is to the tests themselves")
    without = ran(command, sample.path)
    with group_with_processors(0.5) as group:
        found = ran(command, sample.path, prefix=joining(group))
    assert found["node"]["granted"] == 0.5 and "granted" not in without["node"]
    said = "grants the time of 0.5 processors: by the wall clock the program takes up to 2 times as long there"
    assert [said in warning for warning in found["warnings"]].count(True) == 1
    assert not any("control group" in warning for warning in without["warnings"])
    assert found["prediction"]["seconds"] < 1.6 * without["prediction"]["seconds"]


@pytest.mark.timed
@pytest.mark.slow
def test_a_build_with_half_the_time_of_a_processor(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    """The builder waits for its processor as the program does. Waiting is not in the prediction, and it is told."""
    probe, argv = tmp_path / "nbody.probe", [str(program("nbody")), "200"]
    with group_with_processors(0.5) as group:
        built = command("build", "--max-phases", "3", "-o", probe, "--", *argv, prefix=joining(group))
    assert built.returncode == 0, built.stderr
    found = ran(command, probe)
    assert 0.6 < found["prediction"]["seconds"] / own_seconds(argv) < 1.6
    assert any("something else had the processor for" in warning for warning in found["warnings"])


@pytest.mark.timed
@pytest.mark.slow
def test_build_and_run_on_one_processor(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    """Nothing is left to look at the program from: the tracer shares its processor."""
    probe, argv = tmp_path / "nbody.probe", [str(program("nbody")), "200"]
    built = command("build", "--max-phases", "3", "-o", probe, "--", *argv, prefix=ONE)
    assert built.returncode == 0, built.stderr
    found = ran(command, probe, prefix=ONE)
    assert 0.6 < found["prediction"]["seconds"] / own_seconds(argv) < 1.6
