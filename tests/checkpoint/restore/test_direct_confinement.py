# SPDX-License-Identifier: Apache-2.0
"""Confinement of phases restored directly: recorded calls, no network, nothing outside the folder, no survivor."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest
from direct_runs import as_nobody, flat_job, for_anybody, mount, open_to_anybody, python_for_anybody
from direct_state import flat_state, moved, no_namespaces, places, state, timed
from programs import build
from regions import captured_regions

from checkpoint.binary.syscall_names import call_number
from checkpoint.compiled import restorer
from checkpoint.errors import PhaseFailed
from checkpoint.flat.image import NAME, decode, encode
from checkpoint.linux import CLONE_NEWNS
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.direct_agent import limit
from checkpoint.restore.direct_restore import DirectAgent, landlock_version

__all__ = ["flat_state", "places", "state"]


def test_only_recorded_calls(flat_state: RestoreJob, tmp_path: Path) -> None:
    assert timed(flat_state, tmp_path, only_recorded_calls=True).wall > 0
    job = moved(flat_state, tmp_path / "images")
    flat = decode(job.images / NAME)
    flat.calls.remove(call_number("umask"))
    (job.images / NAME).write_bytes(encode(flat))
    with pytest.raises(PhaseFailed, match="SIGSYS"):
        timed(job, tmp_path, only_recorded_calls=True)


def test_the_network_is_out_of_reach(builds: Path, tmp_path: Path) -> None:
    (job,) = captured_regions(build("paths", builds), "/etc/hostname", "socket", folder=tmp_path / "socket")
    flat_job(job, tmp_path, watched=False)
    assert timed(job, tmp_path).wall > 0


def test_nothing_is_written_outside_its_folder(builds: Path, tmp_path: Path) -> None:
    """Landlock: a phase that was not known to write by paths, and does, is refused by the kernel."""
    if not landlock_version():
        pytest.skip("this kernel has no landlock")
    folder = tmp_path / "paths"
    folder.mkdir()
    (folder / "input").write_text("hello")
    (job,) = captured_regions(
        build("paths", builds), f"{folder}/../paths//input", str(folder / "made"), folder=folder
    )  # fmt: skip
    (folder / "made.moved").unlink(missing_ok=True)
    flat_job(job, tmp_path, watched=False)
    with pytest.raises(PhaseFailed, match="exited with status 4"):
        timed(job, tmp_path)
    assert not (folder / "made").exists()


@pytest.mark.parametrize("view", [False, True])
def test_nothing_outlives_whoever_asked(
    view: bool, flat_state: RestoreJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is killed at many moments; the phase, its child, goes with it every time, with no namespace to help."""
    import checkpoint.restore.direct_restore

    monkeypatch.setattr(checkpoint.restore.direct_restore, "possible_namespaces", lambda: CLONE_NEWNS * view)
    job = moved(flat_state, tmp_path / "images")
    flat = decode(job.images / NAME)
    flat.header.changes_paths = view
    (job.images / NAME).write_bytes(encode(flat))
    seen = 0
    for number in range(16):
        agent = DirectAgent(job, restorer(), scratch=tmp_path)
        pid = agent._agent._process.pid
        agent._agent.order()
        deadline = time.monotonic() + 5
        while not (family := _descendants(pid)) and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(0.002 * number)
        family |= _descendants(pid)
        seen += len(family)
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while any(_alive(p) for p in family) and time.monotonic() < deadline:
            time.sleep(0.005)
        left = [p for p in family if _alive(p)]
        agent.close()
        assert not left
    assert seen >= 16


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def _descendants(pid: int) -> set[int]:
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(folder.name)] = _parent_of(int(folder.name))
    found: set[int] = set()
    while more := {p for p, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_container_of_sorts(flat_state: RestoreJob, builds: Path, places: Path, tmp_path: Path) -> None:
    """No capabilities, no new privileges, no namespaces, a read-only root, 64 MB of tmpfs to write to."""
    code = for_anybody(tmp_path / "code")
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    shutil.copy(restorer(), tmp_path / "restorer")
    (tmp_path / "restorer").chmod(0o755)
    for folder in (places, builds, tmp_path):
        open_to_anybody(folder)

    def contained() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.unshare(CLONE_NEWNS) == 0
        mount(None, "/", None, 0x44000)
        mount("tmpfs", str(scratch), "tmpfs", 6, "size=64m,mode=1777")  # nosuid, nodev
        mount(None, "/", None, 0x1000 | 0x20 | 1)  # bind, remount, read-only
        tempfile.tempdir = str(scratch)
        no_namespaces()

    def restored() -> float:
        import checkpoint.restore.direct_restore

        with pytest.raises(OSError) as refused:
            os.open("/dev/../tmp", os.O_TMPFILE | os.O_WRONLY)
        assert refused.value.errno == errno.EROFS
        checkpoint.restore.direct_restore._AGENT = code / "checkpoint" / "restore" / "direct_agent.py"
        with DirectAgent(flat_state, tmp_path / "restorer", scratch=scratch) as agent:
            return agent.repeat().wall

    assert python_for_anybody()
    assert 0 < as_nobody(restored, contained) < 5


def test_limits_are_only_lowered() -> None:
    import resource

    pid = os.fork()
    if not pid:
        wrong = 1
        try:
            limit(resource.RLIMIT_CORE, 1 << 40)
            limit(resource.RLIMIT_CORE, 0)
            limit(resource.RLIMIT_CORE, 1 << 40)
            wrong = int(resource.getrlimit(resource.RLIMIT_CORE)[1] != 0)
        finally:
            os._exit(wrong)
    assert os.waitpid(pid, 0)[1] == 0
