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
from probe.candidates.agent_file import agent_file
from probe.candidates.remote import CandidateResult, run_on
from probe.node.facts import cpu_flags
from probe.ssh.interface import SshOptions

NODE = ROOT / "scripts" / "testnode"
FILES = ROOT / "build" / "testnode"
ADDRESS = f"127.0.0.1:{os.environ.get('TESTNODE_PORT', '22622')}"
MINUTES = 15
FRONT_BYTES = 100_000
"""More than what says what is in the probe; all else is there already the second time."""

CLOSE = 0.1
"""Relative error that a probe of one second's work may have there: its intervals are few."""

pytestmark = pytest.mark.slow(minutes=3)


def emulator(*arguments: str, user: str = "guest") -> str:
    # Time there goes by instructions, so that other work here does not show.
    environment = {**os.environ, "CLOCK": "instructions", "LOGIN": user, "OWNER": str(os.getpid()), "PROGRAMS": ""}
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


@pytest.mark.timed
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


_TAKES_MEMORY = """
import os, sys
sys.path.insert(0, "/tmp/agent.zip")
from checkpoint.restore.memory_group import joining, memory_group
def take():
    os.write(joining(group), b"0")
    try:
        os.fork()
        os._exit(1)
    except BlockingIOError:
        held = [b"x" * (1 << 20) for _ in range(40)]
        os.write(1, b".")
        os.read(to_wait, 1)
        os._exit(0)
def child():
    pid = os.fork()
    if not pid:
        take()
    return pid
with memory_group(64 << 20) as group:
    print("group" if group else "none", flush=True)
    if group:
        to_wait, _ = os.pipe()
        pids = [child(), child()]
        print(*[os.waitpid(pid, 0)[1] for pid in pids], os.path.isdir(group))
print(os.path.isdir(group), *[n for n in os.listdir("/sys/fs/cgroup/system.slice") if n.startswith("probe-phase-")])
"""
_DELEGATED = """
set -e; cd /sys/fs/cgroup; echo +memory +pids > cgroup.subtree_control; mkdir -p own/inside
echo +memory +pids > own/cgroup.subtree_control; chown guest own own/cgroup.procs own/inside/cgroup.procs
echo $$ > own/inside/cgroup.procs; exec setpriv --reuid guest --regid guest --clear-groups python3 -
"""


@pytest.fixture
def agent_there() -> None:
    command = [NODE, "ssh", "cat > /tmp/agent.zip; chmod 644 /tmp/agent.zip"]
    environment = {**os.environ, "LOGIN": "root"}
    subprocess.run(command, input=agent_file().data, check=True, timeout=60, env=environment)


def said_there(command: str, script: str, user: str) -> list[str]:
    done = subprocess.run(
        [NODE, "ssh", command], input=script, capture_output=True, text=True, timeout=60 * MINUTES,
        env={**os.environ, "LOGIN": user},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("user", ["root", "delegated"])
def test_all_processes_of_a_phase_share_a_limit(user: str, agent_there: None) -> None:
    """Two that take 40 MB each are too much for 64: the kernel ends both. Neither may start a third."""
    command = "python3 -" if user == "root" else f"bash -c '{_DELEGATED}'"
    first, status, left = said_there(command, _TAKES_MEMORY, "root")
    assert first == "group" and status.lstrip(".") == "9 9 True" and left == "False"


def test_who_may_make_no_group_goes_without(agent_there: None) -> None:
    assert said_there("python3 -", _TAKES_MEMORY, "guest") == ["none", "False"]


_LOOKS = """
import glob, os, time
until = time.monotonic() + 600
while time.monotonic() < until:
    for group in glob.glob("/sys/fs/cgroup/system.slice/probe-phase-*"):
        try:
            pids = open(group + "/cgroup.procs").read().split()
            if pids:
                limit = open(group + "/memory.max").read().strip()
                print(len(pids), limit.isdigit(), os.path.basename(os.readlink("/proc/%s/exe" % pids[0])), flush=True)
                until = 0
        except OSError:
            pass
    time.sleep(0.002)
"""


def test_phases_of_root_are_in_a_group(probe: Path) -> None:
    with subprocess.Popen(
        [NODE, "ssh", "python3 -"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "LOGIN": "root"},
    ) as looking:  # fmt: skip
        assert looking.stdin and looking.stdout
        looking.stdin.write(_LOOKS)
        looking.stdin.close()
        found = run_there(probe, "root", restorer="direct", repeats=3)
        said = looking.stdout.read().split()
    assert found.result is not None, found.error
    assert said[:2] == ["1", "True"]
    assert emulator("ssh", "ls -d /sys/fs/cgroup/system.slice/probe-phase-* 2>/dev/null || true", user="root") == ""
