# SPDX-License-Identifier: Apache-2.0
"""A program that keeps its entries in /proc from its own user, opened to us while it is stopped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from checkpoint.binary.syscall_names import call_number
from checkpoint.linux import PR_GET_DUMPABLE, PR_SET_DUMPABLE
from checkpoint.process.tracee import Tracee


@contextmanager
def readable(tracee: Tracee) -> Iterator[None]:
    """See all of /proc/PID meanwhile, whatever the program said with PR_SET_DUMPABLE. Afterwards it is as before."""
    try:
        os.close(os.open(f"/proc/{tracee.pid}/fd", os.O_RDONLY | os.O_DIRECTORY))
        before = None
    except PermissionError:
        before = tracee.system_call(call_number("prctl"), PR_GET_DUMPABLE, 0, 0, 0, 0)
        tracee.system_call(call_number("prctl"), PR_SET_DUMPABLE, 1, 0, 0, 0)
    try:
        yield
    finally:
        if before is not None and tracee.is_stopped:
            tracee.system_call(call_number("prctl"), PR_SET_DUMPABLE, before, 0, 0, 0)
