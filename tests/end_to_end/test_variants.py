# SPDX-License-Identifier: Apache-2.0
"""Every kind of executable, built and run: the prediction is near a full run's time."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from command import Command, cpu_seconds
from conftest import MakeProgram, Sample
from programs import VARIANTS

from checkpoint.errors import ProbeError
from probe import BuildOptions, SelectionOptions, build, run, show

QUICK = BuildOptions(interval=0.02, runs=1, repeats=2, selection=SelectionOptions(max_phases=2))


@pytest.mark.slow
@pytest.mark.alone("compares processor times of runs that follow each other")
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_executable(variant: str, tmp_path: Path, program: MakeProgram) -> None:
    argv = [str(program("nbody", variant)), "100"]
    path = tmp_path / "nbody.probe"
    # A machine may change its speed between one reference run and these: what is wrong is wrong each time.
    for _ in range(3):
        path.unlink(missing_ok=True)
        build(argv, path, options=QUICK, cwd=str(tmp_path))
        prediction = run(path, repeats=2).prediction
        full = sorted(cpu_seconds(argv) for _ in range(3))[1]
        ratios = prediction.seconds / full, prediction.estimators["direct"] / full
        if min(ratios) > 0.7 and max(ratios) < 1.4:
            break
    assert min(ratios) > 0.7 and max(ratios) < 1.4
    purposes = {f["purpose"] for f in show(path)["files"]}
    assert ("library" in purposes) == ("static" not in variant)


@pytest.mark.slow
def test_a_program_that_replaces_itself(tmp_path: Path, program: MakeProgram) -> None:
    path = tmp_path / "execer.probe"
    built = build([str(program("execer")), "200"], path, options=QUICK, cwd=str(tmp_path))
    assert built.manifest.timing.intervals >= 4
    assert run(path, repeats=1).prediction.seconds > 0.05


@pytest.mark.slow
def test_a_wanted_width(sample: Sample, command: Command) -> None:
    """Real repeats are added, or what limits is said."""
    easy = command.json("run", sample.path, "--repeat", "3", "--target-error", "90%")
    assert easy["target_error"]["limit"] == "" and easy["target_error"]["rounds"] == 0
    hard = command.json("run", sample.path, "--repeat", "2", "--target-error", "0.1%")
    said = hard["target_error"]
    assert said["limit"] in hard["variances"] and said["reached"] > said["wanted"] == 0.001
    # Where other work disturbs them more are made.
    assert min(len(p["repeats"]) for p in hard["phases"]) >= 2 + said["rounds"]
    assert any("--target-error 0.1% is not reached" in warning for warning in hard["warnings"])
    printed = command("run", sample.path, "--repeat", "3", "--target-error", "90%").stdout
    assert "target error: the interval is within" in printed


@pytest.mark.slow
def test_a_build_that_cannot_be_as_narrow_as_wanted_says_why(tmp_path: Path, program: MakeProgram) -> None:
    argv = [str(program("nbody")), "100"]
    hard = build(argv, tmp_path / "hard.probe", options=replace(QUICK, repeats=3, target_error=0.001, capture="criu"))
    said = [w for w in show(hard.path)["warnings"] if "--target-error 0.1% is not reached" in w]
    assert len(said) == 1
    # The width is judged by direct restoring: only that is repeated for it, where more full runs are not worth more.
    rounds = sum(int(number) for number in re.findall(r"(\d+) more rounds", said[0]))
    repeats = {(len(phase.criu.wall), len(phase.direct.wall)) for phase in hard.manifest.phases}
    assert repeats == {(3, 3 + rounds)}
    easy = build(argv, tmp_path / "easy.probe", options=replace(QUICK, repeats=3, target_error=0.9))
    assert not any("--target-error" in w for w in show(easy.path)["warnings"])
    with pytest.raises(ProbeError, match="between 0 and 1"):
        build(argv, tmp_path / "none.probe", options=replace(QUICK, target_error=2.0))
    assert not (tmp_path / "none.probe").exists()
