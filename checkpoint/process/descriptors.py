# SPDX-License-Identifier: Apache-2.0
"""Find a process's open files before CRIU is asked to dump it: files it writes, and what reaches outside it."""

from __future__ import annotations

import os
from pathlib import Path

from checkpoint.errors import ProgramUnsupported
from checkpoint.process.maps import read_maps

_KINDS = {
    "socket:": "a socket",
    "pipe:": "a pipe",
    "anon_inode:[eventfd]": "an eventfd",
    "anon_inode:[eventpoll]": "an epoll descriptor",
    "anon_inode:[io_uring]": "an io_uring",
    "anon_inode:[perf_event]": "a performance counter",
    "anon_inode:[timerfd]": "a timerfd",
    "anon_inode:[signalfd]": "a signalfd",
    "anon_inode:inotify": "an inotify descriptor",
    "/memfd:": "a memfd",
    "/dev/pts/": "a terminal",
    "/dev/tty": "a terminal",
}


_MAPPINGS = {
    "/anon_hugepage": "huge pages (hugetlb)",
    "/SYSV": "System V shared memory",
}
"""Mappings by the names the kernel gives them, of which CRIU would say something less plain."""


def refuse_outside_descriptors(pid: int, name: str) -> None:
    """Raise ProgramUnsupported, naming what process `pid` holds and no probe can: descriptors, and memory that CRIU
    does not dump."""
    found = []
    folder = Path(f"/proc/{pid}/fd")
    for entry in sorted(folder.iterdir(), key=lambda p: int(p.name)):
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        kind = next((what for start, what in _KINDS.items() if target.startswith(start)), None)
        if kind is not None:
            found.append(f"{kind} (descriptor {entry.name})")
        elif target.endswith(" (deleted)"):
            found.append(f"a deleted file (descriptor {entry.name}, {target[:-10]})")
    for mapping in read_maps(pid):
        special = next((what for start, what in _MAPPINGS.items() if mapping.path.startswith(start)), None)
        if special is not None and mapping.path.endswith(" (deleted)"):
            found.append(f"{special} at {mapping.start:#x}-{mapping.end:#x}")
    if found:
        raise ProgramUnsupported(
            f"{name}: holds {', '.join(found)} where a phase starts; what is at the other end is not there when the "
            "phase is restored. Probe the computing program by itself, with files in place of pipes and sockets, and "
            "without huge pages or shared memory."
        )


def written_files(pid: int) -> set[str]:
    """Paths of the regular files that a process has open for writing; empty once it is gone."""
    found = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            target = entry.readlink()
            if str(target).startswith("/") and _is_writable(pid, entry.name) and target.is_file():
                found.add(str(target))
    except OSError:
        pass
    return found


def _is_writable(pid: int, descriptor: str) -> bool:
    for line in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False
