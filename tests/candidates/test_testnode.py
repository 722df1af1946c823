# SPDX-License-Identifier: Apache-2.0
"""A candidate that is really another machine: emulated, an older kernel, other instruction costs (scripts/testnode)."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import build
from small_probe import ROOT, command, small_probe

from checkpoint.errors import NodeUnfit
from probe.candidates.agent_client import Orders
from probe.candidates.remote import CandidateResult, run_on
from probe.node.facts import cpu_flags
from probe.ssh.interface import SshOptions

NODE = ROOT / "scripts" / "testnode"
FILES = ROOT / "build" / "testnode"
ADDRESS = "127.0.0.1:22622"
MINUTES = 15
FRONT_BYTES = 100_000
"""More than what says what is in the probe; all else is there already the second time."""

CLOSE = 0.1
"""Relative error that a probe of one second's work may have there: its intervals are few."""

pytestmark = pytest.mark.slow(minutes=3)


def emulator(*arguments: str, user: str = "guest") -> str:
    # Time there goes by instructions, so that other work here does not show.
    environment = {**os.environ, "CLOCK": "instructions", "LOGIN": user}
    done = subprocess.run(
        [NODE, *arguments], env=environment, capture_output=True, text=True, timeout=60 * MINUTES,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def node() -> Iterator[None]:
    """Booted once for all tests here; made first where it is not there yet."""
    emulator("start")
    yield
    emulator("stop")


def run_there(probe: Path, user: str = "guest", **orders: object) -> CandidateResult:
    ssh = SshOptions(config=Path("/dev/null"), known_hosts=FILES / "known_hosts", identity=FILES / "key")
    return run_on(probe, [f"{user}@{ADDRESS}"], ssh=ssh, orders=Orders(**{"repeats": 1, **orders}))[0]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def probe(builds: Path) -> Path:
    """The small probe, with CRIU in it."""
    path = builds / "with-criu.probe"
    small_probe(builds).again(path, "--with-criu")
    return path


def full_run(builds: Path) -> float:
    """CPU seconds of the small probe's program there."""
    program = build("sorter", builds)
    with program.open("rb") as file:
        command = [NODE, "ssh", "cat > sorter && chmod +x sorter"]
        subprocess.run(command, stdin=file, check=True, timeout=60, env={**os.environ, "LOGIN": "guest"})
    script = "import os,subprocess; subprocess.run(['./sorter','1'],check=True,stdout=subprocess.DEVNULL); t=os.times()"
    return float(emulator("ssh", f'python3 -c "{script}; print(t.children_user+t.children_system)"'))


def test_predicts_for_another_machine_as_an_ordinary_user(probe: Path, builds: Path) -> None:
    first = run_there(probe)
    assert first.error is None and first.result is not None, first.error
    assert first.result.node["kernel"] != os.uname().release and first.result.node["user"] != 0
    assert not any(phase.failure for phase in first.result.phases)
    assert {phase.restorer for phase in first.result.phases} == {"direct"}
    took = full_run(builds)
    assert abs(first.result.prediction.seconds / took - 1) < CLOSE
    # Far from what it takes here, so that nothing but a measurement there can have said so.
    assert first.relative_speed is not None and not 1 - CLOSE < first.relative_speed < 1 + CLOSE
    again = run_there(probe)
    assert again.result is not None and again.sent < FRONT_BYTES
    assert emulator("ssh", "ls .cache/probe-node/runs; pgrep -f py[z] || true") == ""


def test_criu_out_of_the_probe_as_root(probe: Path) -> None:
    found = run_there(probe, "root", restorer="criu")
    assert found.result is not None, found.error
    assert {phase.restorer for phase in found.result.phases} == {"criu"}
    assert re.search(r"status 1$", emulator("ssh", "which criu; echo status $?", user="root").strip())


def test_instructions_that_it_lacks(builds: Path, tmp_path: Path) -> None:
    """Its processor has no AVX-512, and is refused by name where the program picks that for itself."""
    if "avx512f" not in cpu_flags():
        assert "avx512f" not in emulator("ssh", "cat /proc/cpuinfo").split()
        return
    path = tmp_path / "ifunc.probe"
    command("build", "-q", "-o", path, "--interval", "10ms", "--max-phases", "2", "--", build("ifunc", builds), "3000")
    found = run_there(path)
    assert isinstance(found.error, NodeUnfit) and "lacks avx512f" in str(found.error)
