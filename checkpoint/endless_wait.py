# SPDX-License-Identifier: Apache-2.0
"""Tell a restored phase that nobody can wake: its only thread waits for another, which was not restored.

A thread that sleeps while others compute is left out of a checkpoint. Where the first one hands over to it all the
same, and waits, the phase would be given up minutes later. Python 3.8, standard library.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

from checkpoint.binary.syscall_names import call_number

FOUND = "it waits for a thread that is not restored with it"

_PATIENCE_SECONDS, _LOOK_SECONDS, _LATE_SECONDS = 1.0, 0.2, 0.5
_FUTEX = str(call_number("futex"))
_COMMANDS, _WAIT, _WAIT_BITSET = 0x7F, 0, 9
"""FUTEX_CMD_MASK, FUTEX_WAIT, FUTEX_WAIT_BITSET of futex(2)."""
_OF_TIMERS = sum(1 << one - 1 for one in (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF))
_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.M)


class EndlessWait:
    """Looks at process `pid`, now and then, however often it is asked."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looked = 0.0
        self._said, self._since = "", 0.0

    def is_found(self) -> bool:
        """Whether it has been in the same wait without an end for a second, and has no other thread."""
        now = time.monotonic()
        if now < self._looked + _LOOK_SECONDS:
            return False
        said = _endless_wait(self._pid)
        # Whoever has not asked for long had other things to do: with the process itself, that went on.
        if not said or said != self._said or now > self._looked + _LATE_SECONDS:
            self._said, self._since = said, now
        self._looked = now
        return bool(said) and now - self._since >= _PATIENCE_SECONDS


def _endless_wait(pid: int) -> str:
    """The only thread's futex(2) without a time limit, as /proc/PID/syscall shows it; "" for all else.

    A handler may wake the thread, and then it waits on as if nothing had been: one for a timer's signal counts as all
    else. Nobody but the program itself sends it others.
    """
    try:
        said = Path(f"/proc/{pid}/syscall").read_text()
        call = said.split()
        if len(call) < 5 or call[0] != _FUTEX or int(call[2], 16) & _COMMANDS not in (_WAIT, _WAIT_BITSET):
            return ""
        # In a process namespace whose own /proc could not be mounted the number is somebody else's.
        if int(call[4], 16) or os.readlink("/proc/self") != str(os.getpid()):  # noqa: PTH115 (Python 3.8 has no other)
            return ""
        if len(list(Path(f"/proc/{pid}/task").iterdir())) != 1:
            return ""
        caught = _CAUGHT.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        # It is gone, or this user may not look.
        return ""
    return "" if caught is None or int(caught[1], 16) & _OF_TIMERS else said
