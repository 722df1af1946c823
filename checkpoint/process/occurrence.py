# SPDX-License-Identifier: Apache-2.0
"""Events of a traced process, and the end of its run."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class What(enum.Enum):
    """Why `Tracee.wait` returned."""

    TIMEOUT = "timeout"
    STOPPED = "stopped itself"
    PAUSED = "paused"
    BREAKPOINT = "breakpoint"
    EXECUTED = "another program by execve"
    EXITING = "about to exit"
    ENDED = "ended"


@dataclass(frozen=True)
class Occurrence:
    """One event: `status` is the exit status (EXITING, ENDED) as waitpid gives it."""

    what: What
    status: int = 0


@dataclass(frozen=True)
class Ending:
    """Of a whole run: its exit status as waitpid gives it, CPU seconds of all of it, and seconds of the monotonic clock
    before the traced program began and after it ended."""

    status: int
    cpu: float
    around: float
