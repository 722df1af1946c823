# SPDX-License-Identifier: Apache-2.0
"""A real control group with little memory or time, in either version, and commands in it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_V2 = Path("/sys/fs/cgroup")
_GONE_SECONDS = 10.0


@contextlib.contextmanager
def group_with_memory(most: int) -> Iterator[Path]:
    """A group, made and removed here, whose processes may take so many bytes together, and swap none of them."""
    with _group("memory") as (group, second):
        (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(most))
        with contextlib.suppress(OSError):
            (group / ("memory.swap.max" if second else "memory.swappiness")).write_text("0")
        yield group


@contextlib.contextmanager
def group_with_processors(processors: float) -> Iterator[Path]:
    """A group, made and removed here, whose processes together get the time of so many processors."""
    quota = str(int(processors * 100000))
    with _group("cpu") as (group, second):
        if second:
            (group / "cpu.max").write_text(f"{quota} 100000")
        else:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text(quota)
        yield group


@contextlib.contextmanager
def _group(controller: str) -> Iterator[tuple[Path, bool]]:
    """A group without limits that has this controller, and whether it is of the second version."""
    second = (_V2 / "cgroup.controllers").exists()
    group = _V2 / ("" if second else controller) / f"probe-test-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    try:
        yield group, second
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """End what is still in it. What was killed may take a moment to be gone."""
    deadline = time.monotonic() + _GONE_SECONDS
    while True:
        with contextlib.suppress(OSError):
            for number in (group / "cgroup.procs").read_text().split():
                os.kill(int(number), signal.SIGKILL)
        try:
            group.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def join(group: Path) -> None:
    """Put this process into the group, with all that it starts from now on."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def joining(group: Path) -> list[str]:
    """A prefix that runs a command in the group."""
    return ["sh", "-c", f"echo $$ > '{group}/cgroup.procs' && exec \"$@\"", "sh"]
