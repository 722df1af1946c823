# SPDX-License-Identifier: Apache-2.0
"""Choose the processors that measured processes get. Python 3.8, standard library."""

from __future__ import annotations

import os
from pathlib import Path


def processors(cpu: int, threads: int) -> list[int]:
    """Those that `threads` threads get: `cpu`, then those nearest below it, then above it, of all that this process may
    use, `cpu` among them; fewer where there are not as many. A core's second processor comes last: it has the speed of
    half a core beside the first."""
    allowed = sorted(os.sched_getaffinity(0) | {cpu})
    at = allowed.index(cpu)
    nearest = allowed[at::-1] + allowed[at + 1 :]
    first_of = {core(one): one for one in reversed(nearest)}
    return sorted(nearest, key=lambda one: first_of[core(one)] != one)[:threads]


def core(cpu: int) -> str:
    """What is the same for all processors of one core (sysfs, thread_siblings_list); each its own where that is not
    told."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return f"{cpu}\n"
