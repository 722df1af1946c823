# SPDX-License-Identifier: Apache-2.0
"""Probes of programs that start processes, and of wrappers' workers: built, shown and predicted."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from conftest import MakeProgram

from checkpoint.process.plain_run import run_plain
from checkpoint.process.program import Streams, resolve_program
from probe import BuildOptions, SelectionOptions, build, run, show
from probe.formats.manifest import Manifest

pytestmark = [pytest.mark.slow, pytest.mark.timed]

QUICK = BuildOptions(interval=0.02, runs=1, repeats=2, selection=SelectionOptions(max_phases=4))
MARGIN = 0.2
"""Of a prediction on a busy machine: a child's time counted twice, or not at all, is more."""


def predicted_and_measured(argv: list[str], folder: Path, made: Manifest, probe: Path) -> tuple[float, float]:
    """Seconds of CPU time, or on the wall where the program is timed by it."""
    prediction = run(probe).prediction
    plain = run_plain(
        resolve_program(argv, cwd=str(folder)), Streams(folder / "stdout", folder / "stderr"), others=True
    )
    return prediction.seconds, plain.cpu if made.reference.clock == "cpu" else plain.wall


@pytest.mark.parametrize(("mode", "least", "most"), [("system", 0.0, 0.1), ("fork", 0.1, 0.35)])
def test_a_program_with_children(mode: str, least: float, most: float, tmp_path: Path, program: MakeProgram) -> None:
    argv = [str(program("helpers")), "800", mode, "200"]
    built = build(argv, tmp_path / "a.probe", options=QUICK, cwd=str(tmp_path))
    outside = built.manifest.outside
    assert outside is not None and least < outside.share < most
    assert show(tmp_path / "a.probe")["outside"]["processes"] == (6 if mode == "system" else 3)
    assert any("other processes" in note for note in built.manifest.notes)
    predicted, measured = predicted_and_measured(argv, tmp_path, built.manifest, tmp_path / "a.probe")
    assert abs(math.log(predicted / measured)) < MARGIN


def test_a_child_that_has_ended_is_no_hindrance(tmp_path: Path, program: MakeProgram) -> None:
    """It is waited for at the third quarter, and no phase lies there."""
    argv = [str(program("helpers")), "800", "later"]
    built = build(argv, tmp_path / "a.probe", options=QUICK, cwd=str(tmp_path))
    assert show(tmp_path / "a.probe")["outside"]["processes"] == 1
    predicted, measured = predicted_and_measured(argv, tmp_path, built.manifest, tmp_path / "a.probe")
    assert abs(math.log(predicted / measured)) < MARGIN


def test_a_wrapper_that_makes_and_removes_its_input(tmp_path: Path, program: MakeProgram) -> None:
    """It fails where an earlier run has left its folder; its worker has the input open in every phase."""
    script = tmp_path / "run.sh"
    script.write_text(
        "#!/bin/bash\nset -e\nmkdir scratch\nseq 1 200000 > scratch/input\nsort -rn < scratch/input > scratch/sorted\n"
        f'{program("helpers")} "$1" start < scratch/sorted > scratch/out\ncat scratch/out\nrm -r scratch\n'
    )
    script.chmod(0o755)
    built = build([str(script), "800"], tmp_path / "a.probe", options=QUICK, cwd=str(tmp_path))
    manifest = built.manifest
    assert not (tmp_path / "scratch").exists()
    assert manifest.program.argv == (str(script), "800") and manifest.program.executable == str(program("helpers"))
    assert {file.path for file in manifest.files.private} >= {str(tmp_path / "scratch/sorted")}
    assert manifest.outside is not None and manifest.outside.share > 0.01
    predicted, measured = predicted_and_measured([str(script), "800"], tmp_path, manifest, tmp_path / "a.probe")
    assert abs(math.log(predicted / measured)) < MARGIN
