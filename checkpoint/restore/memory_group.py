# SPDX-License-Identifier: Apache-2.0
"""Limit all processes of a phase together by a control group (cgroup v2), where this user may make one.

Standard library alone, Python 3.8 and newer: this file also runs on candidate nodes. RLIMIT_AS and the filter hold
without it; the group counts what no process's addresses show: files in memory, the kernel's own, and children where a
call got through. See Documentation/admin-guide/cgroup-v2.rst of Linux.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from checkpoint.restore.isolation import works

PREFIX = "probe-phase-"
"""How the names of the groups begin."""

_UNLIMITED = {"memory.max": "max", "memory.high": "max", "cpu.max": "max", "cpuset.cpus": ""}
"""Files of a group, and their first word where nobody has limited it."""

_END_SECONDS = 5.0
_PAUSE_SECONDS = 0.002


@contextlib.contextmanager
def memory_group(most: int, threads: int = 1) -> Iterator[str]:
    """A folder for `joining`, whose `threads` may take `most` bytes together; "" where this user may make none.

    What is left in the group is ended, and the folder removed, when the block is left.
    """
    name = f"{PREFIX}{os.getpid()}-{time.monotonic_ns():x}"
    made = next((parent / name for parent in _parents() if _made(parent / name, most, threads)), None)
    try:
        yield str(made or "")
    finally:
        if made:
            _remove(made)


def joining(group: str) -> int:
    """A descriptor: a process that writes `0` to it goes into the group, also where it cannot see the folder."""
    return os.open(Path(group) / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)


def _parents(mounts: str = "/proc/self/mountinfo", ours: str = "/proc/self/cgroup") -> list[Path]:
    """Folders in which a group that limits memory may be made: our own group, and the one around it.

    Not the one around it where ours has limits: a group beside it would be free of them.
    """
    try:
        root, own = _own_group(Path(mounts), Path(ours))
    except (OSError, ValueError, StopIteration):
        return []
    around = [] if own == root or _is_limited(own) else [own.parent]
    return [group for group in [own, *around] if "memory" in _words(group / "cgroup.subtree_control")]


def _own_group(mounts: Path, ours: Path) -> tuple[Path, Path]:
    """The root of all groups that we see, and our own group in it. ValueError, StopIteration where there is none."""
    (path,) = (line[3:] for line in ours.read_text().splitlines() if line.startswith("0::"))
    rows = (line.split() for line in mounts.read_text().splitlines() if " - cgroup2 " in line)
    # Where another group's folder is mounted, ours is not in it.
    root = next(Path(fields[4]) for fields in rows if fields[3] == "/")
    return root, root / path.lstrip("/")


def _is_limited(group: Path) -> bool:
    return any("".join(_words(group / name)[:1]) not in ("", free) for name, free in _UNLIMITED.items())


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _made(group: Path, most: int, threads: int) -> bool:
    """Whether the group could be made and limited, and takes processes of ours: tried, in a child."""
    try:
        group.mkdir(mode=0o700)
    except OSError:
        return False
    try:
        _write(group / "memory.max", str(most))
        # Where the filter is missing, the group refuses another process, and another thread.
        for name, text in (("memory.swap.max", str(most)), ("memory.oom.group", "1"), ("pids.max", str(threads))):
            with contextlib.suppress(OSError):
                _write(group / name, text)
        well = works(lambda: os.write(joining(str(group)), b"0") != 1)
    except OSError:
        well = False
    if not well:
        _remove(group)
    return well


def _write(path: Path, text: str) -> None:
    # Neither made nor read: a folder that is no group has no such file, and some files may only be written.
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _remove(group: Path) -> None:
    """End what is in the group, and remove it as soon as that is gone."""
    with contextlib.suppress(OSError):
        _write(group / "cgroup.kill", "1")
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(_PAUSE_SECONDS)
