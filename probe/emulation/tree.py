# SPDX-License-Identifier: Apache-2.0
"""One look at all processes of a command: /proc/PID/stat of each, the supervisor first, parents before children."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MOST_PROCESSES = 1 << 16
_FULL = 1 << 10
"""A shorter answer of the kernel is the last one."""


@dataclass(frozen=True)
class Process:
    """One process as of one look. `stat`: the fields of /proc/PID/stat (proc(5)) from the third on."""

    pid: int
    stat: tuple[str, ...]
    name: str = ""

    def field(self, number: int) -> int:
        """A field by its number in proc(5)."""
        return int(self.stat[number - 3])

    @property
    def born(self) -> tuple[int, int]:
        """Names the process for good: numbers are given out again."""
        return self.pid, self.field(22)

    @property
    def threads(self) -> int:
        return self.field(20)

    @property
    def used(self) -> float:
        """Its own CPU seconds."""
        return (self.field(14) + self.field(15)) * _TICK

    @property
    def resident(self) -> int:
        """Bytes."""
        return self.field(24) * _PAGE

    def cpu(self, *, own: bool = True) -> tuple[float, float]:
        """(user, kernel) CPU seconds of it and of all processes that it waited for; `own` False: of these alone."""
        user, kernel = self.field(16), self.field(17)
        return ((user + own * self.field(14)) * _TICK, (kernel + own * self.field(15)) * _TICK)

    def faults(self, *, own: bool = True) -> tuple[int, int]:
        """(minor, major) page faults, likewise."""
        return self.field(11) + own * self.field(10), self.field(13) + own * self.field(12)


@dataclass(frozen=True)
class Tree:
    """The supervisor, whose children are what it inherited, and the command's processes."""

    supervisor: Process | None
    processes: tuple[Process, ...]
    seconds: float = 0.0
    """Since the command's start."""

    @cached_property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self.processes)


def look(supervisor: int) -> Tree:
    """The tree below process `supervisor` now. Processes that end meanwhile are absent.

    Parents are read before their children: what a child used is then missed for one look where it ends between, and
    never counted twice.
    """
    top = read_process(supervisor)
    found: list[Process] = []
    todo = children(supervisor)
    while todo and len(found) < _MOST_PROCESSES:
        pid = todo.pop(0)
        process = read_process(pid)
        if process is not None:
            found.append(process)
            todo += children(pid)
    return Tree(top, tuple(found))


def read_process(pid: int) -> Process | None:
    """The process, None if it is gone."""
    said = read(f"/proc/{pid}/stat")
    # Its name, in parentheses, may hold anything.
    head, _, fields = said.rpartition(")")
    return Process(pid, tuple(fields.split()), head.partition("(")[2]) if said else None


def children(pid: int) -> list[int]:
    """Processes that any thread of process `pid` started and that nobody waited for yet."""
    try:
        with os.scandir(f"/proc/{pid}/task") as entries:
            threads = [entry.name for entry in entries]
    except OSError:
        return []
    return [int(word) for thread in threads for word in read(f"/proc/{pid}/task/{thread}/children").split()]


def read(path: str) -> str:
    """A file of the kernel, "" where it is gone or not ours."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        parts = []
        # Larger than most of them, so that a look at many processes costs little.
        while part := os.read(file, 1 << 16):
            parts.append(part)
            if len(part) < _FULL:
                break
        return b"".join(parts).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(file)
