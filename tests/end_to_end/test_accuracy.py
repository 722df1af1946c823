# SPDX-License-Identifier: Apache-2.0
"""The short form of `scripts/bench accuracy`: two programs of a second, against bounds that are ratios."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest
from command import ROOT, Command
from conftest import MakeProgram
from test_variants import cpu_seconds

sys.path.insert(0, str(ROOT / "scripts" / "benchmarks"))

from bounds import SHORT_FORM


@pytest.mark.slow
@pytest.mark.parametrize(("name", "argument"), [("nbody", "400"), ("phases", "1")])
def test_predictions_are_within_their_bounds(
    name: str, argument: str, tmp_path: Path, program: MakeProgram, command: Command
) -> None:
    """Full runs and runs of the probe take turns; the errors are those of the median full run."""
    argv, path = [str(program(name)), argument], tmp_path / "short.probe"
    options = ["-q", "--json", "--interval", "20ms", "--max-phases", "8"]
    done = command("build", *options, "-o", path, "--", *argv)
    assert done.returncode == 0, done.stderr
    built = json.loads(done.stdout)
    assert built["clock"] == "cpu", "cpu_seconds() would not be what is predicted"
    full = [cpu_seconds(argv)]
    said = []
    for _ in range(2):
        said.append(command.json("run", "-q", path))
        full.append(cpu_seconds(argv))
    native = statistics.median(full)
    errors = {
        estimator: statistics.fmean(one["estimators"][estimator] for one in said) / native - 1
        for estimator in ("calibrated", "direct")
    }
    errors["selection"] = built["errors"]["selection"]
    outside = {what: error for what, error in errors.items() if abs(error) > SHORT_FORM[what]}
    assert outside == {}, (errors, full, [one["prediction"] for one in said])
    # An interval is narrow after two runs that agree by luck: as near as the bound will do.
    low, high = min(one["prediction"]["low"] for one in said), max(one["prediction"]["high"] for one in said)
    bound = SHORT_FORM["calibrated"]
    assert low / (1 + bound) <= native <= high * (1 + bound)
