# SPDX-License-Identifier: Apache-2.0
"""The exit status of a run: taken, compared with other runs', and said in words."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from checkpoint.errors import Diverged, ProgramFailed
from checkpoint.memory_shortage import killed_for_memory
from checkpoint.process.program import Program, Streams


def exit_status(program: Program, status: int, streams: Streams, expected: int | None = None) -> int:
    """The status that a run exited with, from `status` as waitpid gives it.

    Raises ProgramFailed where a signal ended the run; Diverged where it exited with another status than `expected`,
    that of the traced run. Both quote the end of its standard error.
    """
    name, said = program.argv[0], _tail(streams.stderr)
    refuse_killed(program, status)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        raise ProgramFailed(
            f"{name} was killed by signal {number} ({signal_name(number)}); a probe needs a run that ends by "
            f"itself.{said}"
        )
    code = os.WEXITSTATUS(status)
    if expected not in (None, code):
        raise Diverged(
            f"{name} exited with status {code}, the traced run with status {expected}: it notices that it is traced "
            f"(it checks its own code?), or it does not repeat itself.{said}"
        )
    return code


def refuse_killed(program: Program, status: int) -> None:
    """Raise ProgramFailed where the kernel has ended the run, with this wait status, for want of memory."""
    if killed_for_memory(status):
        raise ProgramFailed(
            f"{program.argv[0]} was killed by the kernel for want of memory, of its control group or the machine: give "
            "the build more memory than the program needs by itself"
        )


def refuse_failed(program: Program, code: int, streams: Streams) -> None:
    """Raise ProgramFailed unless `code`, the exit status of a run too short for a probe, is 0."""
    if code:
        raise ProgramFailed(
            f"{program.argv[0]} exited with status {code} before there was enough to trace.{_tail(streams.stderr)}"
        )


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(path: Path) -> str:
    try:
        said = path.read_bytes()[-300:].decode(errors="replace").strip().replace("\n", " | ")
    except OSError:
        return ""
    return f" It said: {said}" if said else ""
