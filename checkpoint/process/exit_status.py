# SPDX-License-Identifier: Apache-2.0
"""What an exit status means, in words."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from checkpoint.errors import ProgramFailed
from checkpoint.process.program import Program, Streams


def check_exit(program: Program, status: int, streams: Streams) -> None:
    """Raise ProgramFailed unless the run ended with exit status 0; quotes the end of its standard error."""
    if status == 0:
        return
    said = _tail(streams.stderr)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        reason = f"was killed by signal {number} ({signal_name(number)})"
    else:
        reason = f"exited with status {os.WEXITSTATUS(status)}"
    raise ProgramFailed(
        f"{program.argv[0]} {reason}; a probe needs a run that succeeds." + (f" It said: {said}" if said else "")
    )


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(path: Path) -> str:
    try:
        return path.read_bytes()[-300:].decode(errors="replace").strip().replace("\n", " | ")
    except OSError:
        return ""
