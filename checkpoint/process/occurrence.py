# SPDX-License-Identifier: Apache-2.0
"""Events of a traced process, and the end of its run."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from checkpoint.errors import ProgramFailed

ENDED_MEANWHILE = (
    " was killed from outside while it was stopped: by the kernel for want of memory, a time limit, or somebody's kill"
)
"""Behind the number of a process."""


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

    def instead_of_breakpoint(self, pid: int) -> ProgramFailed:
        """The error where code put into process `pid` came to this, and not to its breakpoint."""
        if self.what in (What.EXITING, What.ENDED):
            return ProgramFailed(f"process {pid}{ENDED_MEANWHILE}")
        return ProgramFailed(f"process {pid}: {self.what.value} in code put into it")


@dataclass(frozen=True)
class Ending:
    """Of a whole run: its exit status as waitpid gives it, CPU seconds of all of it, and seconds of the monotonic clock
    before the traced program began and after it ended."""

    status: int
    cpu: float
    around: float
