# SPDX-License-Identifier: Apache-2.0
"""The files of a process: descriptors, what is mapped, program, working folder."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from checkpoint.binary.syscall_names import call_number
from checkpoint.capture.memory_map import DELETED, mode_of
from checkpoint.state.process_state import Descriptor, File, FileKind

_KINDS = (
    ("pipe:", 2), ("socket:", 5), ("anon_inode:[eventfd]", 6), ("anon_inode:[eventpoll]", 7), ("anon_inode:inotify", 8),
    ("anon_inode:[signalfd]", 9), ("/dev/pts/", 11), ("/dev/tty", 11), ("anon_inode:[timerfd]", 17), ("/memfd:", 18),
    ("anon_inode:", 16),
)  # fmt: skip
"""How the kernel's names of open files begin that are no files, and the kinds that `unsupported` knows them by."""
_NAMED_PIPE = 3
_KCMP_FILE = 0

_libc = ctypes.CDLL(None, use_errno=True)


class OpenFiles:
    """The files of one process, numbered from 1 on as they are asked for."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._by_path: dict[str, int] = {}
        self.files: dict[int, File] = {}
        self.removed: set[int] = set()

    def named(self, path: str) -> int:
        """The number of a file that is mapped, executed or a working folder, by the kernel's name of it."""
        if path not in self._by_path:
            self._by_path[path] = self._add(path, FileKind.REGULAR, os.O_RDONLY, 0, None, mode_of(path))
        return self._by_path[path]

    def link(self, name: str) -> int:
        """The number of the file that /proc/PID/`name` leads to."""
        return self.named(str(Path(f"/proc/{self._pid}/{name}").readlink()))

    def descriptors(self) -> Iterator[Descriptor]:
        """All descriptors by their numbers; those that share a file description share a file."""
        first: dict[int, int] = {}
        for number in sorted(int(entry.name) for entry in Path(f"/proc/{self._pid}/fd").iterdir()):
            path = str(Path(f"/proc/{self._pid}/fd/{number}").readlink())
            flags, position = self._flags(number)
            same = next((fd for fd in first if self._are_one(fd, number)), None)
            if same is None:
                status = os.stat(f"/proc/{self._pid}/fd/{number}")  # noqa: PTH116
                kind = next((kind for start, kind in _KINDS if path.startswith(start)), FileKind.REGULAR)
                kind = _NAMED_PIPE if kind == FileKind.REGULAR and stat.S_ISFIFO(status.st_mode) else kind
                # Of what only grows the size says nothing.
                sized = stat.S_ISREG(status.st_mode) and not flags & os.O_APPEND
                size = status.st_size if sized else None
                first[number] = self._add(path, kind, flags & ~os.O_CLOEXEC, position, size, status.st_mode)
            file = first[number if same is None else same]
            yield Descriptor(number, file, int(bool(flags & os.O_CLOEXEC)), self.files[file].kind)

    def _add(self, path: str, kind: int, flags: int, position: int, size: int | None, mode: int) -> int:
        number = len(self.files) + 1
        if path.endswith(DELETED) and not Path(path).exists():
            path = path[: -len(DELETED)]
            self.removed.add(number)
        self.files[number] = File(number, kind, path, flags, position, size, mode)
        return number

    def _flags(self, number: int) -> tuple[int, int]:
        """Flags as for open(2), O_CLOEXEC included, and position."""
        fields = {}
        for line in Path(f"/proc/{self._pid}/fdinfo/{number}").read_text().splitlines():
            name, _, value = line.partition(":")
            fields[name] = value.strip()
        return int(fields["flags"], 8), int(fields["pos"])

    def _are_one(self, one: int, other: int) -> bool:
        """Whether two descriptors share a file description (kcmp). Where a filter refuses to tell, they do not."""
        return bool(_libc.syscall(call_number("kcmp"), self._pid, self._pid, _KCMP_FILE, one, other) == 0)
