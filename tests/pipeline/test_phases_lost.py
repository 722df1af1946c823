# SPDX-License-Identifier: Apache-2.0
"""Phases that nothing can restore: left out with a warning where they are few, and named where they are many."""

from __future__ import annotations

import json
from pathlib import Path

from programs import build
from small_probe import command

OPTIONS = ("--interval", "10ms", "--max-phases", "4", "--runs", "1", "--budget", "0", "--capture", "direct")


def test_few_are_left_out(builds: Path, tmp_path: Path) -> None:
    program = str(build("scratch", builds))
    made = command("build", "-q", "-o", "it.probe", *OPTIONS, "--json", "--", program, "600", "30", cwd=tmp_path)
    shown = json.loads(made.stdout)
    warnings = [said for said in shown["warnings"] if "is left out" in said]
    assert warnings and all("it ended before its region did" in warning for warning in warnings)
    assert shown["phases"] and not any(phase["only_criu"] for phase in shown["phases"])
    lost = {int(warning.split()[1].rstrip(",")) for warning in warnings}
    assert not lost & {phase["id"] for phase in shown["phases"]}
    ran = json.loads(command("run", "it.probe", "--json", cwd=tmp_path).stdout)
    assert ran["prediction"]["seconds"] > 0


def test_many_are_refused_by_name(builds: Path, tmp_path: Path) -> None:
    program = str(build("scratch", builds))
    # The captured run ends at its last checkpoint: with a warm-up that may be before it removes its file.
    cold = (*OPTIONS, "--warmup", "0")
    refused = command("build", "-q", "-o", "it.probe", *cold, "--", program, "200", "200", cwd=tmp_path, status=4)
    assert "it ended before its region did" in refused.stderr and not (tmp_path / "it.probe").exists()
