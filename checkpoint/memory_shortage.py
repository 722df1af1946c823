# SPDX-License-Identifier: Apache-2.0
"""Programs that get no more memory: refused by the kernel, or ended by a SIGKILL that looks like anybody's."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

from checkpoint.errors import NodeUnfit

_OURS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_MACHINE = Path("/proc/vmstat")
_before: dict[Path, int] = {}


@contextlib.contextmanager
def room_in(name: str) -> Iterator[None]:
    """For what is mapped inside of the program `name`. Raises NodeUnfit where it may have no more."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise NodeUnfit(
            f"{name}: has no room for the few pages that a build needs in it: raise what limits it, the number of "
            "mappings (vm.max_map_count), its address space (ulimit -v), or all memory (vm.overcommit_memory)"
        ) from error


def note_start() -> None:
    """Call it before a program is started: what the kernel has ended by then was another's."""
    _before.clear()
    _before.update(_counts())


def killed_for_memory(status: int) -> bool:
    """Whether `status`, as waitpid gives it, is that of a program that was started last, and was most likely ended so:
    by SIGKILL, while the kernel counted such an end in our control group, or on the machine where groups count none."""
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        return False
    return any(count > _before.get(path, count) for path, count in _counts().items())


def _counts() -> dict[Path, int]:
    """How many processes were ended so, by the first file that says so (admin-guide/cgroup-v2.rst, memory.events;
    cgroup-v1/memory.rst, memory.oom_control; of the machine since Linux 4.13)."""
    for path in (*_group_files(), _MACHINE):
        with contextlib.suppress(OSError):
            if found := re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE):
                return {path: int(found[1])}
    return {}


def _group_files() -> Iterator[Path]:
    with contextlib.suppress(OSError, ValueError):
        for line in _OURS.read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                yield _GROUPS / path.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                yield _GROUPS / "memory" / path.lstrip("/") / "memory.oom_control"
