# SPDX-License-Identifier: Apache-2.0
"""`probe check`: a probe executes on this machine what it executed where it was made, or the difference is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import build
from small_probe import ROOT, command, small_probe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node_probe(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a program that takes another function of the mathematical library on a machine with another name."""
    path = tmp_path_factory.mktemp("node") / "node.probe"
    options = ("--flow", "--capture", "direct", "--interval", "10ms", "--max-phases", "2")
    command("build", "-q", "-o", path, *options, "--", str(build("arrays", builds)), "node", "120")
    return path


def elsewhere(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command on a machine with another name."""
    shell = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]
    return subprocess.run(
        [*shell, sys.executable, "-m", "probe", *arguments], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip


def test_here_every_phase_is_the_same(node_probe: Path) -> None:
    said = json.loads(command("check", "-q", "--json", str(node_probe)).stdout)
    assert said["same"] and said["phases"]
    for phase in said["phases"]:
        assert phase["status"] == "same" and phase["said"] == ""
        assert phase["points"] >= 20 and phase["steps"] >= 20 * 400
        assert phase["executions"] > 100_000 and phase["differing_blocks"] == 0


def test_elsewhere_phase_library_and_point_are_named(node_probe: Path) -> None:
    done = elsewhere("check", "--json", str(node_probe))
    assert done.returncode == 14, done.stderr
    assert "does not execute here what it executed where it was made, first in " in done.stderr
    phases = json.loads(done.stdout)["phases"]
    other = next(phase for phase in phases if phase["status"] == "differs")
    assert any(Path(one["image"]).name == "libm.so.6" for one in other["functions"])
    assert 0.0 <= other["between"]["from"] <= other["between"]["to"] <= 1.0
    plain = elsewhere("check", "-q", str(node_probe))
    assert "blocks of " in plain.stdout and "of the executions, before " in plain.stdout


def test_a_phase_alone_is_checked(node_probe: Path) -> None:
    said = json.loads(command("check", "-q", "--json", str(node_probe)).stdout)
    alone = said["phases"][0]["id"]
    found = json.loads(command("check", "-q", "--json", "--phase", str(alone), str(node_probe)).stdout)
    assert [phase["id"] for phase in found["phases"]] == [alone]
    refused = command("check", "-q", "--phase", "77", str(node_probe), status=1)
    assert "no phase 77 that can be restored; there are " in refused.stderr


def test_a_probe_without_flow_says_so(builds: Path) -> None:
    done = command("check", "-q", small_probe(builds).path, status=1)
    assert "does not say what its phases execute; build it again with --flow" in done.stderr
