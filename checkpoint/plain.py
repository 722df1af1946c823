# SPDX-License-Identifier: Apache-2.0
"""A run with nothing of ours inside: how long the program takes by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

from checkpoint.program import Program, Streams, fork_stopped


@dataclass(frozen=True)
class PlainRun:
    """Wall and CPU seconds from execve to exit, and the exit status as waitpid gives it."""

    wall: float
    cpu: float
    status: int


def run_plain(
    program: Program, streams: Streams, *, environment: Mapping[str, str] | None = None, cpu: int | None = None
) -> PlainRun:
    """Run `program` to its end, untraced. `environment` replaces the one all other runs share."""
    pid = fork_stopped(program, streams, program.environment() if environment is None else environment, cpu)
    status: int | None = None
    try:
        os.waitpid(pid, os.WUNTRACED)
        start = time.monotonic()
        os.kill(pid, signal.SIGCONT)
        _, status, usage = os.wait4(pid, 0)
        wall = time.monotonic() - start
    finally:
        if status is None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return PlainRun(wall, usage.ru_utime + usage.ru_stime, status)
