# SPDX-License-Identifier: Apache-2.0
"""Run a command within bounds of time and disk; end all that it started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpoint.process.program import Program, Streams, fork_stopped

TIME, DISK = "time", "disk"
"""Bounds that end a command."""

_LOOK_SECONDS = 0.05
_DISK_SECONDS = 1.0
_GRACE_SECONDS = 10.0
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_TICK = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Bounds:
    """Seconds by the clock, and bytes on disk in the folder."""

    seconds: float
    bytes: int


@dataclass(frozen=True)
class Ended:
    """wall, cpu: seconds, of children that were waited for, too. status: exit status, or the signal's number below 0.
    stopped: the bound that ended the command, or empty. left: processes that outlived the command, and were ended."""

    wall: float
    cpu: float
    status: int
    stopped: str
    left: int


class Tasks:
    """Threads of a session, looked at while it runs: what each used of the processor, and how many there were."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[int, int], float] = {}
        self.threads = 0

    def look(self, session: int) -> None:
        """Note the CPU time of every thread of the session's processes."""
        for pid in session_processes(session):
            tasks = 0
            with contextlib.suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                    values = _stat(f"/proc/{pid}/task/{task}/stat")
                    tasks += 1
                    if values:
                        self.seconds[pid, int(task)] = (int(values[11]) + int(values[12])) * _TICK
            self.threads = max(self.threads, tasks)

    @property
    def processes(self) -> int:
        return len({pid for pid, _ in self.seconds})

    @property
    def largest(self) -> float:
        """The CPU time of the thread with most of it, seconds."""
        return max(self.seconds.values(), default=0.0)


def _stat(path: str) -> list[str]:
    """The fields behind the name in brackets: state, parent, group, session, ...; empty where it is gone."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return []


def session_processes(session: int) -> list[int]:
    """Processes of a session."""
    return [pid for pid, values in _processes() if int(values[3]) == session]


def bytes_in(folder: Path) -> int:
    """Bytes on disk of all files in the folder, of one with several names once."""
    found = dict[tuple[int, int], int]()
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                status = os.lstat(f"{parent}/{name}")
                found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def run_program(
    argv: Sequence[str],
    *,
    folder: Path,
    stdin: str,
    environment: Mapping[str, str],
    streams: Streams,
    bounds: Bounds,
    watched: Path,
    cpu: int | None = None,
    look: Callable[[int], None] | None = None,
) -> Ended:
    """Run a command in `folder` as a probe's runs start it, scripts too; `watched` is the folder bounded in bytes."""
    executable = shutil.which(argv[0], path=environment.get("PATH"))
    if executable is None:
        raise FileNotFoundError(f"{argv[0]}: program not found")
    program = Program(tuple(argv), executable, str(folder), str((folder / stdin).absolute()))
    with orphans_adopted() as end_rest:
        pid = fork_stopped(program, streams, environment, cpu)
        try:
            os.waitpid(pid, os.WUNTRACED)
            begun = time.monotonic()
            os.kill(pid, signal.SIGCONT)
            stopped = _wait(pid, begun, bounds, watched, look)
            wall = time.monotonic() - begun
            _, status, usage = os.wait4(pid, 0)
        finally:
            left = end_rest()
    return Ended(wall, usage.ru_utime + usage.ru_stime, os.waitstatus_to_exitcode(status), stopped, left)


def _wait(pid: int, begun: float, bounds: Bounds, watched: Path, look: Callable[[int], None] | None) -> str:
    """Wait for the end of a process, not reaping it; end it where a bound is exceeded, and name the bound."""
    descriptor = os.pidfd_open(pid)
    next_disk = begun + _DISK_SECONDS
    try:
        while not select.select([descriptor], [], [], _LOOK_SECONDS if look else _DISK_SECONDS)[0]:
            now = time.monotonic()
            if look is not None:
                look(pid)
            exceeded = TIME if now - begun > bounds.seconds else ""
            if not exceeded and now >= next_disk:
                next_disk = now + _DISK_SECONDS
                exceeded = DISK if bytes_in(watched) > bounds.bytes else ""
            if exceeded:
                _end(pid, descriptor)
                return exceeded
    finally:
        os.close(descriptor)
    return ""


def _end(pid: int, descriptor: int) -> None:
    """Ask a process to end, so that it puts away what it made; then kill its session."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    if not select.select([descriptor], [], [], _GRACE_SECONDS)[0]:
        _kill_session(pid)
        select.select([descriptor], [], [])


def _kill_session(pid: int) -> None:
    for one in {pid, *session_processes(pid)}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


@contextlib.contextmanager
def orphans_adopted() -> Iterator[Callable[[], int]]:
    """While inside, be the parent of every process that a command leaves behind. Yields what ends them.

    Only processes that were no children of ours before are ended."""
    libc, before, own = ctypes.CDLL(None, use_errno=True), ctypes.c_int(), set(_children())
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield lambda: _end_all_but(own)
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def _end_all_but(own: set[int]) -> int:
    """Kill and reap our children that are not `own`, and theirs; how many of them still ran."""
    found = 0
    deadline = time.monotonic() + _GRACE_SECONDS
    while (left := [pid for pid in _children() if pid not in own]) and time.monotonic() < deadline:
        for pid in left:
            found += _stat(f"/proc/{pid}/stat")[:1] not in ([], ["Z"])
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return found


def _children() -> list[int]:
    """Children of this process, those that ended and wait to be reaped, too."""
    return [pid for pid, values in _processes() if int(values[1]) == os.getpid()]


def _processes() -> Iterator[tuple[int, list[str]]]:
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and (values := _stat(f"/proc/{name}/stat")):
            yield int(name), values
