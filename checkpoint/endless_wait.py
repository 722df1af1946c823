# SPDX-License-Identifier: Apache-2.0
"""Tell a restored phase that nobody can wake: its only thread waits for another, which was not restored.

A thread that sleeps while others compute is left out of a checkpoint. Where the first one hands over to it all the
same, and waits, the phase would be given up minutes later. Python 3.8, standard library.
"""

from __future__ import annotations

import time
from pathlib import Path

from checkpoint.binary.syscall_names import call_number

FOUND = "it waits for a thread that is not restored with it"

_PATIENCE_SECONDS, _LOOK_SECONDS = 1.0, 0.2
_FUTEX = str(call_number("futex"))
_COMMANDS, _WAIT, _WAIT_BITSET = 0x7F, 0, 9
"""FUTEX_CMD_MASK, FUTEX_WAIT, FUTEX_WAIT_BITSET of futex(2)."""


class EndlessWait:
    """Looks at process `pid`, now and then, however often it is asked."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._next_look = 0.0
        self._said, self._since = "", 0.0

    def is_found(self) -> bool:
        """Whether it has been in the same wait without an end for a second, and has no other thread."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_SECONDS
        said = _endless_wait(self._pid)
        if said is None:
            self._said = ""
            return False
        if said != self._said:
            self._said, self._since = said, now
        return now - self._since >= _PATIENCE_SECONDS


def _endless_wait(pid: int) -> str | None:
    """The only thread's futex(2) without a time limit, as /proc/PID/syscall shows it; None for all else.

    A thread that a signal wakes shows other registers, or is elsewhere, at the next look.
    """
    try:
        if len(list(Path(f"/proc/{pid}/task").iterdir())) != 1:
            return None
        said = Path(f"/proc/{pid}/syscall").read_text()
    except OSError:
        # It is gone, or this user may not look.
        return None
    call = said.split()
    if len(call) < 5 or call[0] != _FUTEX or int(call[2], 16) & _COMMANDS not in (_WAIT, _WAIT_BITSET):
        return None
    return said if int(call[4], 16) == 0 else None
