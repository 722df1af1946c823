# SPDX-License-Identifier: Apache-2.0
"""The short form of `scripts/bench accuracy`: two programs of a second, against bounds that are ratios."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from benchmarks.bounds import SHORT_FORM
from command import Command, cpu_seconds
from conftest import MakeProgram

pytestmark = [pytest.mark.alone("compares processor times of runs that follow each other"), pytest.mark.timed]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "argument"), [("nbody", "200"), ("sorter", "1")])
def test_predictions_are_within_their_bounds(
    name: str, argument: str, tmp_path: Path, program: MakeProgram, command: Command
) -> None:
    """The probe is run between two full runs; errors are relative to their mean."""
    argv, path = [str(program(name)), argument], tmp_path / "short.probe"
    options = ["-q", "--json", "--interval", "20ms", "--max-phases", "6"]
    done = command("build", *options, "-o", path, "--", *argv)
    assert done.returncode == 0, done.stderr
    built = json.loads(done.stdout)
    assert built["clock"] == "cpu", "cpu_seconds() would not be what is predicted"
    full = [cpu_seconds(argv)]
    said = command.json("run", "-q", path)
    full.append(cpu_seconds(argv))
    native = statistics.fmean(full)
    told = {name: seconds for name, seconds in said["estimators"].items() if seconds is not None}
    # Where too little of the instructions could be counted there is no direct estimate, and the probe says so.
    assert "direct" in told or any("there is no direct estimate" in note for note in built["notes"])
    errors = {name: told[name] / native - 1 for name in ("calibrated", "direct") if name in told}
    # Where full runs of the build differ by more than the bound nobody can be nearer, and the interval says so. Twice
    # the bound is no noise of theirs.
    wide = said["prediction"]["high"] / said["prediction"]["seconds"] - 1
    bounds = {name: max(bound, min(wide, 2 * bound)) for name, bound in SHORT_FORM.items()}
    errors["selection"], bounds["selection"] = built["errors"]["selection"], SHORT_FORM["selection"]
    outside = {what: error for what, error in errors.items() if abs(error) > bounds[what]}
    assert outside == {}, (errors, full, said["prediction"])
    # Where full runs agree by luck the interval is narrow: as near as the bound will do.
    near = 1 + SHORT_FORM["calibrated"]
    assert said["prediction"]["low"] / near <= native <= said["prediction"]["high"] * near
