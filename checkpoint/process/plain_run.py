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

LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class PlainRun:
    """Seconds from execve to exit, and the exit status as waitpid gives it.

    `waited` is time spent ready to run while something else had the processor (the kernel's run delay). `kernel`: part
    of `cpu` spent in the kernel.
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
) -> PlainRun:
    """Run `program` to its end, untraced. `environment` replaces the one all other runs share.

    `look` is called with the process number every LOOK_SECONDS; it costs as much in exactness of the wall time.
    """
    pid = fork_stopped(program, streams, program.environment() if environment is None else environment, cpu)
    status: int | None = None
    try:
        os.waitpid(pid, os.WUNTRACED)
        start = time.monotonic()
        os.kill(pid, signal.SIGCONT)
        if look is not None:
            while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                look(pid)
                time.sleep(LOOK_SECONDS)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        wall = time.monotonic() - start
        waited = run_delay(pid)
        _, status, usage = os.wait4(pid, 0)
    finally:
        if status is None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return PlainRun(wall, usage.ru_utime + usage.ru_stime, waited, status, usage.ru_stime)


def run_delay(pid: int) -> float:
    """Seconds the process waited for a processor (/proc/PID/schedstat, second field); 0 where it is not kept."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return 0.0
