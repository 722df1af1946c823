# SPDX-License-Identifier: Apache-2.0
"""Artificial load: there while an emulation runs, and nothing of it afterwards, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from candidate_runs import ROOT
from click.testing import CliRunner
from documentation import check_keys
from made_usage import made_usage

import probe
from checkpoint.errors import NodeUnfit, ProbeError, StorageError, ToolMissing
from probe.cli.main import cli
from probe.emulation.load import beside
from probe.emulation.plan import SECONDS, EmulateOptions
from probe.emulation.usage import save_usage


def loading() -> list[str]:
    """Command lines of stress-ng, this machine's."""
    found = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if line.startswith("stress-ng") or "/stress-ng" in line.split(" ")[0]]


def gone() -> bool:
    limit = time.monotonic() + 20
    while loading():
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True


def test_the_load_is_there_and_then_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with beside({"cpu": 1, "disk": 1, "memory": 20 << 20}, Path()):
        said = " ".join(loading())
        assert "-cpu" in said and "-hdd" in said and "-vm" in said
        assert list(tmp_path.iterdir())
    assert gone() and list(tmp_path.iterdir()) == []


def test_an_emulation_under_load(tmp_path: Path) -> None:
    save_usage(made_usage(4), tmp_path / "a.usage")
    place = tmp_path / "place"
    place.mkdir()
    options = EmulateOptions(equal=SECONDS, folder=place, threads=1, load={"cpu": 1})
    said = probe.emulate(tmp_path / "a.usage", options).to_json()
    check_keys(said, "probe emulate --json")
    assert said["load"] == [{"name": "cpu", "value": 1}]
    assert gone() and list(place.iterdir()) == []


_KILLED = """
import sys, time
from pathlib import Path
from probe.emulation.load import beside
with beside({"cpu": 1, "disk": 1}, Path(sys.argv[1])):
    print("loaded", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as going:
        assert going.stdout is not None and going.stdout.readline() == b"loaded\n"
        going.send_signal(number)
        going.wait(20)
    limit = time.monotonic() + 20
    while list(tmp_path.iterdir()):
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert gone()


@pytest.mark.parametrize(
    ("load", "kind", "said"),
    [
        ({"network": 1}, ProbeError, "loads are cpu and disk"),
        ({"cpu": 0}, ProbeError, "load cpu=0"),
        ({"disk": 1025}, ProbeError, "load disk=1025"),
        ({"memory": 5}, ProbeError, "load memory=5"),
        ({"memory": 1 << 49}, NodeUnfit, "MB of memory are available"),
    ],
)
def test_what_is_refused(tmp_path: Path, load: dict[str, int], kind: type[ProbeError], said: str) -> None:
    save_usage(made_usage(3), tmp_path / "a.usage")
    with pytest.raises(kind, match=said):
        probe.emulate(tmp_path / "a.usage", EmulateOptions(equal=SECONDS, folder=tmp_path, load=load))
    assert loading() == []


def test_a_load_that_ends_by_itself_is_no_load(tmp_path: Path) -> None:
    tool = tmp_path / "stress-ng"
    tool.write_text("#!/bin/sh\necho no such thing\n")
    tool.chmod(0o755)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{tmp_path}:{before}"
    try:
        said = "the load ended before the emulation: stress-ng: no such thing"
        with pytest.raises(StorageError, match=said), beside({"cpu": 1}, tmp_path):
            pass
    finally:
        os.environ["PATH"] = before


def test_without_stress_ng(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="no stress-ng on this node"), beside({"cpu": 1}, tmp_path):
        pass


def test_the_option() -> None:
    done = CliRunner().invoke(cli, ["emulate", "none.usage", "--load", "cpu=much"])
    assert done.exit_code == 2 and "is not a size" in done.output
