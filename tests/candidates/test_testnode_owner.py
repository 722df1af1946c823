# SPDX-License-Identifier: Apache-2.0
"""The emulated node ends with the process that it was started for, killed or not. The emulator is a sleep here: booting
the real one is tests/candidates/test_testnode.py."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import wait_for
from small_probe import ROOT

EMULATOR = """#!/bin/bash
while [[ $1 != -pidfile ]]; do shift; done
sleep 300 >/dev/null 2>&1 &
echo $! >"$2"
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """A copy of the script, with a disk that is there already and an emulator that sleeps."""
    script = tmp_path / "scripts" / "testnode"
    script.parent.mkdir()
    shutil.copy(ROOT / "scripts" / "testnode", script)
    files, bin_folder = tmp_path / "build" / "testnode", tmp_path / "bin"
    files.mkdir(parents=True)
    bin_folder.mkdir()
    for name in ("disk.img", "vmlinuz"):
        (files / name).touch()
    (files / "packages").write_text(",".join(re.findall(r"^packages\+?=,?(.*)$", script.read_text(), re.M)))
    for name, text in (("qemu-system-x86_64", EMULATOR), ("ssh", "#!/bin/sh\n")):
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    yield script
    order(script, "stop")


def order(script: Path, word: str, owner: str = "") -> None:
    path = f"{script.parents[1] / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OWNER": owner, "PROGRAMS": ""}
    subprocess.run([script, word], env=environment, check=True, timeout=30, capture_output=True)


def emulator(script: Path) -> int:
    return int((script.parents[1] / "build" / "testnode" / "pid").read_text())


def lives(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_ends_with_its_owner(node: Path, by: signal.Signals) -> None:
    with subprocess.Popen(["sleep", "300"]) as owner:
        try:
            order(node, "start", str(owner.pid))
            pid = emulator(node)
            assert lives(pid)
            owner.send_signal(by)
            owner.wait(10)
        finally:
            owner.kill()
    wait_for(lambda: not lives(pid), "the emulator to end", 10.0)


def test_lives_on_without(node: Path) -> None:
    order(node, "start")
    assert lives(emulator(node))
    order(node, "stop")
    assert not (node.parents[1] / "build" / "testnode" / "pid").exists()
