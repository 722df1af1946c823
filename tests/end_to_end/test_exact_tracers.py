# SPDX-License-Identifier: Apache-2.0
"""A probe of an instruction-exact trace: everything after the tracer is the same, and so is the prediction."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from command import Command
from conftest import MakeProgram


@pytest.mark.timed
@pytest.mark.slow
def test_a_probe_of_an_exact_trace_predicts(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    probe, argv = tmp_path / "nbody.probe", [str(program("nbody")), "60"]
    length = ("--tracer", "valgrind", "--interval", "20M")
    done = command("build", "-q", "-o", probe, *length, "--max-phases", "2", "--", *argv)
    assert done.returncode == 0, done.stderr
    shown = command.json("show", probe)
    assert (shown["tracer"], shown["unit"], shown["interval"]) == ("valgrind", "instructions", 20e6)
    assert shown["interval_seconds"] is None
    assert shown["boundaries"]["missing"] == shown["boundaries"]["out_of_order"] == 0
    assert shown["boundaries"]["markers_agreeing"] == shown["boundaries"]["markers_compared"] > 0
    assert shown["intervals"] > 30 and {p["status"] for p in shown["phases"]} == {"ok"}
    assert "20 M instructions" in command("show", probe).stdout
    result = command.json("run", "-q", "--repeat", "2", probe)
    assert 0.75 < result["prediction"]["seconds"] / shown["et_ref_seconds"] < 1.33


@pytest.mark.slow
def test_lengths_are_in_the_unit_of_the_tracer(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    for given, said in (
        (("--interval", "20M"), "lengths of time such as 50ms"),
        (("--tracer", "valgrind", "--interval", "20ms"), "numbers of instructions such as 100M"),
    ):
        done = command("trace", "-o", tmp_path / "x.profile", *given, "--", program("short"))
        assert done.returncode == 2 and said in done.stderr, done.stderr
    assert not (tmp_path / "x.profile").exists()


@pytest.mark.slow
def test_points_chosen_elsewhere(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    """Trace, export, and build from what was exported: the points are those of the files."""
    argv, length = [str(program("sweep")), "1"], ("--tracer", "valgrind", "--interval", "20M")
    profile, prefix, probe = tmp_path / "x.profile", tmp_path / "x", tmp_path / "x.probe"
    assert command("trace", "-q", "-o", profile, *length, "--", *argv).returncode == 0
    done = command("export", "--simpoint", "--max-phases", "2", "-o", prefix, profile)
    assert done.returncode == 0 and f"{prefix}.bb" in done.stdout
    weights = [float(line.split()[0]) for line in Path(f"{prefix}.weights").read_text().splitlines()]
    points = ("--simpoints", f"{prefix}.simpoints", "--weights", f"{prefix}.weights")
    done = command("build", "-q", "-o", probe, *length, *points, "--", *argv)
    assert done.returncode == 0, done.stderr
    shown = command.json("show", probe)
    # The program's last interval is a point of its own here, and cannot be captured.
    instead = dict(re.findall(r"point (\d+) cannot be captured; its nearest interval, (\d+),", str(shown["warnings"])))
    expected: Counter[str] = Counter()
    for weight, line in zip(weights, Path(f"{prefix}.simpoints").read_text().splitlines(), strict=True):
        point = line.split()[0]
        expected[instead.get(point, point)] += weight
    assert sorted(p["weight"] for p in shown["phases"]) == pytest.approx(sorted(expected.values()), abs=1e-8)
    assert {p["status"] for p in shown["phases"]} == {"ok"}
