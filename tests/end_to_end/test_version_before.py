# SPDX-License-Identifier: Apache-2.0
"""Results of the version before: its probe, its profile, and the work folder of a build of its that was killed.

`tests/recorded/version_0_1/make` made them, on another node. Nothing that they name has to be here, but for the program
at /mnt where a build resumes.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command import Command, in_mounts

from probe.formats.profile import load_profile

RECORDED = Path(__file__).parents[1] / "recorded" / "version_0_1"
PROBE = RECORDED / "turns.probe"
PHASES = [0, 1, 2]
BUILD = (
    "build", "--json", "--interval", "10ms", "--isa", "x86-64", "--max-phases", "3",
    "--scrub-env", "all", "--scrub-env", "[!P]*", "--scrub-env", "P[!A]*",
)  # fmt: skip
"""As in `make`: a build resumes with the same command line alone."""
STANDARD_PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def test_its_probe_is_shown(command: Command) -> None:
    shown = command.json("show", PROBE)
    assert shown["program"] == ["/mnt/turns"] and [p["id"] for p in shown["phases"]] == PHASES
    assert shown["tracer"] == "native" and shown["coverage"] == pytest.approx(1)
    assert command("show", PROBE).stdout.startswith("program         /mnt/turns\n")


def test_its_probe_is_explained(command: Command) -> None:
    explained = command.json("explain", PROBE)
    assert [p["id"] for p in explained["phases"]] == PHASES
    # Of a stripped program: functions by their addresses.
    assert all(p["functions"][0]["name"].startswith("+0x40") for p in explained["phases"])


@pytest.mark.parametrize("restorer", ["direct", "criu"])
def test_its_probe_runs(command: Command, restorer: str) -> None:
    result = command.json("run", "-q", "--restorer", restorer, PROBE)
    assert [p["status"] for p in result["phases"]] == ["ok"] * 3
    assert {p["restorer"] for p in result["phases"]} == {restorer}
    assert result["prediction"]["low"] < result["prediction"]["seconds"] < result["prediction"]["high"]


def test_its_probe_is_trimmed_and_runs(command: Command, tmp_path: Path) -> None:
    smaller = tmp_path / "smaller.probe"
    command.json("trim", PROBE, "--phases", "2", "-o", smaller)
    assert smaller.stat().st_size < PROBE.stat().st_size
    shown = command.json("show", smaller)
    assert shown["trimmed_from"] == 3
    result = command.json("run", "-q", "--restorer", "direct", "--min-coverage", "0.5", smaller)
    assert [p["status"] for p in result["phases"]] == ["ok"] * 2


def test_its_profile_is_read(command: Command, tmp_path: Path) -> None:
    profile = load_profile(RECORDED / "turns.profile")
    assert [path for path, _ in profile.images] == ["/mnt/turns"]
    command("export", "--simpoint", "--max-phases", "3", "-o", tmp_path / "turns", RECORDED / "turns.profile")
    vectors = (tmp_path / "turns.bb").read_text().splitlines()
    assert sum(line.startswith("T:") for line in vectors) == profile.counts.shape[0]


def left(folder: Path, **changed: Any) -> tuple[list[str | Path], list[str]]:
    """The program and the work folder as the killed build left them, in `folder`: the command that goes on with it, and
    the prefix to run it with. `changed`: of what the work folder says of itself."""
    shutil.copytree(RECORDED, folder)
    work = folder / "work"
    state = json.loads((work / "state.json").read_text())
    assert state["finished"] == ["trace", "reference", "validate", "select"]
    (work / "state.json").write_text(json.dumps({**state, **changed}))
    arguments = (*BUILD, "--work", work, "--resume", "-o", folder / "again.probe", "--", "/mnt/turns")
    return list(arguments), in_mounts(f"mount --bind '{folder}' /mnt", "cd /mnt")


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


def test_its_work_folder_is_gone_on_with(command: Command, tmp_path: Path) -> None:
    place = tmp_path / "place"
    arguments, prefix = left(place)
    profile = (place / "work" / "profile.npz").read_bytes()
    done = command(*arguments, prefix=prefix, environment=STANDARD_PATH)
    assert done.returncode == 0, done.stderr
    stages = [line.split(":")[0] for line in done.stderr.splitlines() if ": done in" in line]
    assert stages == ["capture", "reduce", "flatten", "self-check", "pack"]
    assert (place / "work" / "profile.npz").read_bytes() == profile
    assert [p["status"] for p in json.loads(done.stdout)["phases"]] == ["ok"] * 3


def test_a_work_folder_of_an_unknown_version_is_refused(command: Command, tmp_path: Path) -> None:
    place = tmp_path / "place"
    arguments, prefix = left(place, version=100)
    before = files(place / "work")
    message = command.refused(1, *arguments, prefix=prefix, environment=STANDARD_PATH)
    assert "begun with other parameters (another version)" in message and "build without --resume" in message
    assert files(place / "work") == before
