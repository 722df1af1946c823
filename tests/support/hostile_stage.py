# SPDX-License-Identifier: Apache-2.0
"""Regions that do harm (tests/programs/hostile.c), restored as root or an ordinary user, and what they might change."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from direct_runs import NOBODY, as_user, flat_job, for_anybody, open_to_anybody, refuse_calls
from programs import build
from regions import captured_regions

from checkpoint.compiled import restorer
from checkpoint.errors import PhaseFailed
from checkpoint.restore import direct_restore
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.direct_restore import DirectAgent

UNSHARE, LANDLOCK, SECCOMP = 272, 444, 317
KINDS = (
    "living", "metadata", "contents", "processes", "parent", "remains", "network", "machine", "calls", "file_calls",
)  # fmt: skip
KEY = "0x70726f62"
"""Of what it makes in System V's tables."""
NODES = {
    "everything": (),
    "no namespaces": (UNSHARE,),
    "no landlock": (LANDLOCK,),
    "neither": (UNSHARE, LANDLOCK),
}
"""What a node refuses."""
OF_FILES = ("metadata", "contents", "remains", "file_calls")
"""Kinds that may succeed in a private view: nothing of the node's is in there."""
USERS = pytest.mark.parametrize("user", [0, NOBODY], ids=["root", "nobody"])


@dataclass
class Stage:
    """Everything that hostile regions need, where anybody may use it."""

    folder: Path
    program: Path
    restorer: Path
    jobs: dict[tuple[str, ...], RestoreJob]

    @property
    def armed(self) -> Path:
        return self.folder / "armed"

    def job(self, *arguments: str) -> RestoreJob:
        """A phase of `hostile ARMED ARGUMENTS...`, captured unarmed."""
        if arguments not in self.jobs:
            folder = self.folder / "-".join(arguments)
            (job,) = captured_regions(self.program, str(self.armed), *arguments, folder=folder)
            flat_job(job, self.folder, watched=False)
            self.jobs[arguments] = job
            open_to_anybody(folder)
        return self.jobs[arguments]


@pytest.fixture(scope="module")
def stage(builds: Path) -> Iterator[Stage]:
    # Not in pytest's own folder, which every session that starts closes to others.
    with tempfile.TemporaryDirectory(prefix="probe-hostile-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        program, own = folder / "hostile", folder / "restorer"
        shutil.copy(build("hostile", builds), program)
        shutil.copy(restorer(), own)
        own.chmod(0o755)
        for_anybody(folder / "code")
        yield Stage(folder, program, own, {})


@dataclass
class Victim:
    """Somebody's process, and somebody's file in a folder of its own."""

    process: subprocess.Popen[bytes]
    file: Path

    def state(self) -> dict[str, Any]:
        """All that a hostile region might have changed."""
        of, pid = Path(f"/proc/{self.process.pid}"), self.process.pid
        status = self.file.stat()
        names = ("st_mode", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_ctime_ns", "st_nlink")
        attributes = subprocess.run(["lsattr", "-d", self.file], capture_output=True, text=True).stdout
        return {
            "stat": [getattr(status, name) for name in names],
            "contents": self.file.read_bytes(),
            "xattr": {name: os.getxattr(self.file, name) for name in os.listxattr(self.file)},
            "attributes": attributes,
            "beside": sorted(path.name for path in self.file.parent.iterdir()),
            "alive": self.process.poll() is None,
            "stopped": (of / "stat").read_text().rsplit(")", 1)[1].split()[0] in "Tt",
            "limits": (of / "limits").read_text(),
            "priority": (os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid), os.sched_getaffinity(pid)),
            "oom": (of / "oom_score_adj").read_text(),
            "ipc": [str(int(KEY, 16)) in Path(f"/proc/sysvipc/{kind}").read_text() for kind in ("shm", "sem", "msg")],
            "keys": str(self.file) in Path("/proc/keys").read_text(),
            "shm": Path("/dev/shm/probe-harm").exists(),
            "name": os.uname().nodename,
        }


@pytest.fixture
def victim(user: int, stage: Stage) -> Iterator[Victim]:
    home = stage.folder / "home"
    home.mkdir(mode=0o700)
    file = home / "precious"
    file.write_text("precious")
    file.chmod(0o600)
    os.setxattr(file, "user.mark", b"1")
    for path in (home, file):
        os.chown(path, user, user)
    process = subprocess.Popen(["sleep", "300"], user=user, group=user, extra_groups=[])
    stage.armed.write_text(f"{process.pid} {file}\n")
    stage.armed.chmod(0o644)
    try:
        yield Victim(process, file)
    finally:
        stage.armed.unlink()
        process.kill()
        process.wait()
        shutil.rmtree(home)
        # Where a guard is missing it would be there for every later test.
        subprocess.run(["ipcrm", "-M", KEY, "-S", KEY, "-Q", KEY], capture_output=True)


def living(stage: Stage) -> list[int]:
    """Processes that are this stage's regions, by their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and f"\0{stage.armed}\0".encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def gone(stage: Stage, seconds: float = 2.0) -> bool:
    """Whether all of them are gone, at the latest after some seconds; they are ended here if not."""
    deadline = time.monotonic() + seconds
    while (left := living(stage)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return not left


def said_of(
    stage: Stage, job: RestoreJob, user: int, refused: tuple[int, ...] = (), *, without: int = 0, **more: Any
) -> str:
    """Restore a phase as `user` where these calls are refused, without these options of the restorer: "ok", or what was
    said of its failure."""
    scratch = stage.folder / f"scratch-{user}"
    scratch.mkdir(exist_ok=True)
    os.chown(scratch, user, user)
    program = stage.restorer
    options = direct_restore._options

    def restored() -> str:
        direct_restore._AGENT = stage.folder / "code" / "checkpoint" / "restore" / "direct_agent.py"
        direct_restore._options = lambda *a: options(*a) & ~without
        try:
            with DirectAgent(job, program, scratch=scratch, **more) as agent:
                agent.repeat()
                warned = agent.warnings
        except PhaseFailed as error:
            return str(error)
        return "ok" + "".join(f"; {w}" for w in warned)

    said: str = as_user(user, restored, (lambda: refuse_calls(*refused)) if refused else None)
    assert list(scratch.iterdir()) == []
    return said


def names(stage: Stage, kind: str) -> list[str]:
    return subprocess.run([stage.program, "-", kind], capture_output=True, text=True, check=True).stdout.split()


def verdict(stage: Stage, kind: str, said: str) -> str:
    """What `said_of` said, with the attempt that succeeded by its name."""
    found = re.search(r"exited with status (\d+)", said)
    return names(stage, kind)[int(found[1]) - 100] + " succeeded" if found and int(found[1]) >= 100 else said
