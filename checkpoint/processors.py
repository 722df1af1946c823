# SPDX-License-Identifier: Apache-2.0
"""Choose the processors that measured processes get. Python 3.8, standard library."""

from __future__ import annotations

import contextlib
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


_PROCESSOR = 36
"""Place of a thread's last processor in /proc/PID/task/TID/stat, behind its name (proc(5), field 39)."""


def visit_processors_of(pid: int) -> None:
    """Run for a moment on each processor that a thread of the stopped process was on last, where we may.

    Code that was written from another processor runs slower, by a quarter and for seconds, until a processor that had
    nothing else to do meanwhile has switched to another process and back: seen on a virtual machine (AMD EPYC, Linux
    6.18), with jumps in a loop. Plain runs have no such code.
    """
    before, last = os.sched_getaffinity(0), set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"{entry.path}/stat") as file:
                last.add(int(file.read().rpartition(")")[2].split()[_PROCESSOR]))
    try:
        for cpu in last:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, {cpu})
    finally:
        os.sched_setaffinity(0, before)
