# SPDX-License-Identifier: Apache-2.0
"""`--warmup auto`: tried on a real program, reported, and kept for --resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import Command
from conftest import MakeProgram

from probe.pipeline.warmup import TRIED


@pytest.mark.slow
def test_tried_reported_and_resumed(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    work, path = tmp_path / "work", tmp_path / "nbody.probe"
    arguments = ["build", "-o", path, "--json", "--interval", "20ms", "--max-phases", "2", "--work", work, "--resume"]
    program_run = ["--", program("nbody"), "200"]

    def built(warmup: str) -> Any:
        return json.loads(command(*arguments, "--warmup", warmup, *program_run).stdout)

    described = built("auto")
    said = described["warmup"]
    assert [trial["intervals"] for trial in said["trials"]] == list(TRIED)
    assert said["intervals"] in TRIED
    assert all(0.5 < trial["relative"] < 2 and 0.5 < trial["against_run"] < 2 for trial in said["trials"])
    assert all(phase["warmup_intervals"] <= said["intervals"] for phase in described["phases"])
    assert not (work / "warmup").exists(), "the checkpoints tried are still there"
    assert "(regions against 4: 0: " in command("show", path).stdout

    # What was tried is not tried again: the choice that is found is taken.
    choice = json.loads((work / "warmup.json").read_text())
    choice["trials"][0]["relative"] = 1.625
    (work / "warmup.json").write_text(json.dumps(choice))
    again = built("auto")
    assert again["warmup"]["trials"][0]["relative"] == 1.625
    given = built("3")
    assert given["warmup"]["trials"] == [] and given["warmup"]["intervals"] == 3
    assert not (work / "warmup.json").exists()
