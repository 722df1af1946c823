# SPDX-License-Identifier: Apache-2.0
"""Runs the `probe` command as users do, and proves that it leaves nothing behind.

Every process that descends from a command carries a mark in its environment, restored ones included, and all
temporary files go to a folder of their own: both must be empty when the command has ended.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from short_budget import in_short

from checkpoint.criu.tool import find_criu
from checkpoint.paths import HOME_VARIABLE

ROOT = Path(__file__).parents[2]
MARK = "PROBE_TEST_COMMAND"
SECONDS = 120.0
"""No command of a test takes longer than a part of this."""

_AS_NOBODY = """
import ctypes, os, sys
import checkpoint.restore.direct_restore, probe, probe.cli.main, rich.console, rich.progress, rich.table, scipy.special
from pathlib import Path
# What is loaded late would be looked for where that user cannot go.
probe.cli.main.cli.get_command(None, sys.argv[1])
[getattr(probe, name) for name in probe.__all__]
if "CODE_FOR_ANYBODY" in os.environ:
    # Both may lie where that user cannot go.
    sys.executable = os.environ["PYTHON_FOR_ANYBODY"]
    agent = Path(os.environ["CODE_FOR_ANYBODY"]) / "checkpoint" / "restore" / "direct_agent.py"
    checkpoint.restore.direct_restore._AGENT = agent
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
# As after an execve, which need not be possible: the interpreter may lie in a folder of root's.
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
probe.cli.main.main(sys.argv[1:])
"""

_GONE_SECONDS = 10.0
"""After a killed command its children end by themselves, CRIU at its next error."""


class Command:
    """The `probe` command with a temporary folder and a mark of its own.

    `prefix` is put before the interpreter: `in_mounts` makes one that changes what the command sees.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.temporary.chmod(0o1777)
        self.mark = uuid.uuid4().hex
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "CONDOR_"))},
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.temporary),
            "COLUMNS": "200",
            MARK: self.mark,
        }
        # Of this session alone: others may be testing at the same time.
        self._base = str(folder.parents[1])
        self._mounts = _mounts(self._base)

    def start(
        self,
        *arguments: str | Path,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        nobody: bool = False,
        entry: Sequence[str] = ("-m", "probe"),
        **options: Any,
    ) -> subprocess.Popen[str]:
        """The command, running; its output is in pipes. With `nobody` it has no privileges."""
        entry = ["-c", _AS_NOBODY] if nobody else entry
        return subprocess.Popen(
            [*prefix, sys.executable, *entry, *in_short(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.environment, **(environment or {})},
            **options,
        )

    def __call__(self, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        """The command, ended; nothing of it is left."""
        with self.start(*arguments, **options) as process:
            try:
                stdout, stderr = process.communicate(timeout=SECONDS)
            except BaseException:
                process.kill()
                raise
        assert "Traceback" not in stderr, stderr
        self.nothing_left()
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def refused(self, code: int, *arguments: str | Path, **options: Any) -> str:
        """The one-line message of a command that must end with exit status `code` and print nothing else."""
        done = self(*arguments, **options)
        assert done.returncode == code, (done.returncode, done.stderr)
        assert done.stdout == ""
        messages = [line for line in done.stderr.splitlines() if line.startswith("probe: ")]
        assert len(messages) == 1, done.stderr
        return messages[0]

    def json(self, *arguments: str | Path, **options: Any) -> Any:
        done = self(*arguments, "--json", **options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def processes(self) -> dict[int, str]:
        """Processes that descend from this command and are not yet gone: number and command line."""
        wanted, found = f"{MARK}={self.mark}".encode(), {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def nothing_left(self, *, files: bool = True) -> None:
        """Assert that no process, mount or (with `files`) temporary file is left."""
        deadline = time.monotonic() + _GONE_SECONDS
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert found == {}, found
        assert _mounts(self._base) == self._mounts
        if files:
            assert [str(p) for p in self.temporary.rglob("*")] == []

    def kill_all(self) -> None:
        """For teardown: end what a failed test left."""
        for number in self.processes():
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _mounts(base: str) -> list[str]:
    """Mount points in this namespace that tests or the tool can have made."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted(point for point in points if point.startswith(base) or point == "/proc/cpuinfo")


def in_mounts(*steps: str) -> list[str]:
    """A prefix that runs shell `steps`, such as mounts, in a private mount namespace before the command."""
    script = "; ".join(["set -e", *steps, 'exec "$@"'])
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]


def small_disk(folder: Path, kilobytes: int) -> list[str]:
    """A prefix that puts a small file system at `folder`."""
    return in_mounts(f"mount -t tmpfs -o size={kilobytes}k,mode=1777 small '{folder}'")


def criu_script(folder: Path, body: str) -> dict[str, str]:
    """An environment whose CRIU is a shell script; `$REAL` in it starts the real one."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "criu"
    script.write_text(f"#!/bin/sh\nREAL='{' '.join(find_criu().command)}'\n{body}\n")
    script.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", HOME_VARIABLE: str(folder / "home")}


def wait_for(condition: Any, what: str, seconds: float = 60.0) -> Any:
    """The first true value of `condition()`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(0.002)
    return value


def cpu_seconds(argv: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def interrupt(
    command: Command, running: subprocess.Popen[str], stage: str, number: int, times: int = 1, child: str = ""
) -> list[str]:
    """Send signal `number` once `stage`, or a `child` of it, is under way; the lines of standard error. Nothing is left
    of it."""
    seen: list[str] = []

    def read() -> None:
        assert running.stderr is not None
        for line in running.stderr:
            seen.append(line.rstrip("\n"))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        wait_for(lambda: f"{stage} ..." in seen or running.poll() is not None, f"stage {stage}: {seen}")
        if wanted := child or CHILD.get(stage):
            wait_for(lambda: any(wanted in c for c in command.processes().values()), f"a child of {stage}")
        else:
            time.sleep(0.05)
        for _ in range(times):
            running.send_signal(number)
            time.sleep(0.01)
        assert running.wait(30) == STATUS[signal.Signals(number)], seen
    finally:
        running.kill()
        running.wait()
        # What the command started and left would hold its standard error for ever.
        reader.join(30)
        assert not reader.is_alive(), seen
        assert running.stdout is not None and running.stderr is not None
        said = running.stdout.read()
        running.stdout.close()
        running.stderr.close()
    assert said == ""
    assert not any("Traceback" in line for line in seen), seen
    return seen


STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}


# Where a stage has children of its own, the signal comes while they are at work.
CHILD = {"self-check": "direct_agent.py"}
