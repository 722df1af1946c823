# SPDX-License-Identifier: Apache-2.0
"""A run with nothing of ours inside: how long the program takes by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from checkpoint.process.program import Program, Streams, fork_stopped
from checkpoint.process.waiting import child_signals_blocked

LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class PlainRun:
    """Seconds from execve to exit, and the exit status as waitpid gives it.

    `waited` is time spent ready to run while something else had the processor (the kernel's run delay), by all threads
    of a program whose threads share the work. `kernel`: part of `cpu` spent in the kernel.
    """

    wall: float
    cpu: float
    waited: float
    status: int
    kernel: float = 0.0

    @property
    def blocked(self) -> float:
        """Seconds asleep: input and output, not other load."""
        return max(0.0, self.wall - self.cpu - self.waited)


def run_plain(
    program: Program,
    streams: Streams,
    *,
    environment: Mapping[str, str] | None = None,
    cpu: int | None = None,
    look: Callable[[int], None] | None = None,
    others: bool = False,
) -> PlainRun:
    """Run `program` to its end, untraced. `environment` replaces the one all other runs share.

    `look` is called with the process number every LOOK_SECONDS. `others`: the program starts processes, whose waiting
    for a processor counts as its own.
    """
    tree = _DelayOfThreads(others) if program.threads > 1 else _DelayOfChildren() if others else None
    pid = fork_stopped(program, streams, program.environment() if environment is None else environment, cpu)
    status: int | None = None
    try:
        os.waitpid(pid, os.WUNTRACED)
        start = time.monotonic()
        os.kill(pid, signal.SIGCONT)
        if tree is not None:
            look = tree.look
        if look is not None:
            _look_until_ended(pid, look)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        wall = time.monotonic() - start
        waited = (0.0 if program.threads > 1 else run_delay(pid)) + (0.0 if tree is None else tree.seconds)
        _, status, usage = os.wait4(pid, 0)
    finally:
        if status is None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    computed = usage.ru_utime + usage.ru_stime
    if others:
        # Processes that run by turns wait for each other, too.
        waited = min(waited, max(0.0, wall * program.threads - computed))
    return PlainRun(wall, computed, waited, status, usage.ru_stime)


def _look_until_ended(pid: int, look: Callable[[int], None]) -> None:
    with child_signals_blocked():
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            look(pid)
            signal.sigtimedwait({signal.SIGCHLD}, LOOK_SECONDS)


class _DelayOfChildren:
    """Run delay of all processes below another, as of the last look at each."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}

    @property
    def seconds(self) -> float:
        return sum(self._last.values())

    def look(self, pid: int) -> None:
        for child in children_of(pid):
            # A number given out again begins anew: what its first owner waited is then lost.
            self._last[child] = max(self._last.get(child, 0.0), run_delay(child))
            self.look(child)


class _DelayOfThreads(_DelayOfChildren):
    """Run delay of all threads of a process, and with `others` of those below it, as of the last look at each."""

    def __init__(self, others: bool) -> None:
        super().__init__()
        self._others = others

    def look(self, pid: int) -> None:
        if self._others:
            super().look(pid)
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/task").iterdir():
                number = int(entry.name)
                self._last[number] = max(self._last.get(number, 0.0), run_delay(number))


def children_of(pid: int) -> list[int]:
    """Numbers of the processes that process `pid` has started and not waited for; none where it is gone."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def run_delay(pid: int) -> float:
    """Seconds the process waited for a processor (/proc/PID/schedstat, second field); 0 where it is not kept."""
    return _scheduled(pid, 1) * 1e-9


def running_time(pid: int) -> float:
    """Seconds the process had a processor, up to the last tick or the last time it lost it; 0 where it is not kept."""
    return running_nanoseconds(pid) * 1e-9


def running_nanoseconds(pid: int) -> int:
    """The same in nanoseconds."""
    return _scheduled(pid, 0)


def turns_of(pid: int) -> int:
    """How often the process, or the thread, was given a processor (third field); 0 where it is not kept."""
    return _scheduled(pid, 2)


def _scheduled(pid: int, field: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[field])
    except (OSError, IndexError, ValueError):
        return 0
