# SPDX-License-Identifier: Apache-2.0
"""The files of a process: descriptors, what is mapped, program, working folder."""

from __future__ import annotations

import ctypes
import os
import select
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from checkpoint.binary.syscall_names import call_number
from checkpoint.capture.memory_map import Area, mode_of
from checkpoint.errors import StorageError
from checkpoint.flat.file_names import deleted_name
from checkpoint.private_file import create_private
from checkpoint.process.descriptors import LARGEST_DELETED, is_write_end
from checkpoint.process.maps import DELETED
from checkpoint.state.process_state import Descriptor, File, FileKind

_KINDS = (
    ("pipe:", 2), ("socket:", 5), ("anon_inode:[eventfd]", 6), ("anon_inode:[eventpoll]", 7), ("anon_inode:inotify", 8),
    ("anon_inode:[signalfd]", 9), ("/dev/pts/", 11), ("/dev/tty", 11), ("anon_inode:[timerfd]", 17), ("/memfd:", 18),
    ("anon_inode:", 16),
)  # fmt: skip
"""How the kernel's names of open files begin that are no files, and the kinds that `unsupported` knows them by."""
_NAMED_PIPE = 3
_KCMP_FILE = 0
_PIECE = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)


class OpenFiles:
    """The files of one process, numbered from 1 on as they are asked for."""

    def __init__(self, pid: int, memory: Collection[tuple[int, int]] = ()) -> None:
        """`memory`: device and inode of files that are captured as shared memory."""
        self._pid = pid
        self._memory = memory
        self._by_name: dict[tuple[str, int], int] = {}
        self._removed: dict[int, str] = {}
        self._inode: dict[int, int] = {}
        self.files: dict[int, File] = {}

    def named(self, path: str, inode: int = 0) -> int:
        """The number of a file that is mapped, executed or a working folder, by the kernel's name of it."""
        if (path, inode) not in self._by_name:
            self._by_name[path, inode] = self._add(path, FileKind.REGULAR, os.O_RDONLY, 0, None, mode_of(path))
        return self._by_name[path, inode]

    def mapped(self, area: Area) -> int:
        """The number of the file that is mapped there."""
        # Of files that are gone several may have had the same name.
        number = self.named(area.file, area.inode if area.file.endswith(DELETED) else 0)
        if number in self._removed:
            self._removed[number] = f"map_files/{area.start:x}-{area.end:x}"
            self._inode[number] = area.inode
        return number

    def link(self, name: str) -> int:
        """The number of the file that /proc/PID/`name` leads to."""
        return self.named(str(Path(f"/proc/{self._pid}/{name}").readlink()))

    def descriptors(self) -> Iterator[Descriptor]:
        """All descriptors by their numbers; those that share a file description share a file."""
        first: dict[int, int] = {}
        numbers = sorted(int(entry.name) for entry in Path(f"/proc/{self._pid}/fd").iterdir())
        shown = {n: (str(Path(f"/proc/{self._pid}/fd/{n}").readlink()), *self._flags(n)) for n in numbers}
        own = {path for path, flags, _ in shown.values() if not is_write_end(flags)}
        for number, (path, flags, position) in shown.items():
            same = next((fd for fd in first if self._are_one(fd, number)), None)
            if same is None:
                status = os.stat(f"/proc/{self._pid}/fd/{number}")  # noqa: PTH116
                kind = next((kind for start, kind in _KINDS if path.startswith(start)), FileKind.REGULAR)
                kind = _NAMED_PIPE if kind == FileKind.REGULAR and stat.S_ISFIFO(status.st_mode) else kind
                if kind == FileKind.PIPE and path not in own and self._is_read(number):
                    path, kind, status = os.devnull, FileKind.REGULAR, os.stat(os.devnull)  # noqa: PTH116
                if (status.st_dev, status.st_ino) in self._memory:
                    kind = FileKind.MEMFD
                # Of what only grows the size says nothing.
                sized = stat.S_ISREG(status.st_mode) and not flags & os.O_APPEND
                size = status.st_size if sized else None
                first[number] = self._add(path, kind, flags & ~os.O_CLOEXEC, position, size, status.st_mode)
                if first[number] in self._removed:
                    self._removed[first[number]] = f"fd/{number}"
            file = first[number if same is None else same]
            yield Descriptor(number, file, int(bool(flags & os.O_CLOEXEC)), self.files[file].kind)

    def _add(self, path: str, kind: int, flags: int, position: int, size: int | None, mode: int) -> int:
        number = len(self.files) + 1
        if path.endswith(DELETED) and not Path(path).exists():
            path = path[: -len(DELETED)]
            # What a memfd holds is captured with the mappings of it.
            if kind != FileKind.MEMFD:
                self._removed[number] = ""
        self.files[number] = File(number, kind, path, flags, position, size, mode)
        return number

    def copy_removed(self, folder: Path) -> dict[int, int | None]:
        """Put contents of deleted files into `folder`; the number of the copy of each by the file's, None where this
        user may not read it. Raises StorageError.

        Only root may read a file through its mapping (/proc/PID/map_files). For others a descriptor must lead to it.
        """
        found: dict[int, int | None] = {}
        copies: dict[tuple[int, int], int] = {}
        # Descriptors first: they can be read by anybody.
        for number, source in sorted(self._removed.items(), key=lambda item: item[1]):
            which, found[number] = self._identity(source), None
            if which is None:
                same = [copy for (_, inode), copy in copies.items() if inode == self._inode.get(number)]
                found[number] = same[0] if len(same) == 1 else None
                continue
            if which not in copies and _copy(f"/proc/{self._pid}/{source}", folder / deleted_name(len(copies) + 1)):
                copies[which] = len(copies) + 1
            found[number] = copies.get(which)
        return found

    def _identity(self, source: str) -> tuple[int, int] | None:
        """Device and inode; None where this user may not ask."""
        if not source:
            return None
        try:
            status = os.stat(f"/proc/{self._pid}/{source}")  # noqa: PTH116
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _flags(self, number: int) -> tuple[int, int]:
        """Flags as for open(2), O_CLOEXEC included, and position."""
        fields = {}
        for line in Path(f"/proc/{self._pid}/fdinfo/{number}").read_text().splitlines():
            name, _, value = line.partition(":")
            fields[name] = value.strip()
        return int(fields["flags"], 8), int(fields["pos"])

    def _is_read(self, number: int) -> bool:
        """Whether there is a descriptor by which what is written to this end of a pipe can be read (poll(2), POLLERR).
        True where this user may not ask."""
        try:
            end = os.open(f"/proc/{self._pid}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return True
        try:
            asked = select.poll()
            asked.register(end, 0)
            return not asked.poll(0)
        finally:
            os.close(end)

    def _are_one(self, one: int, other: int) -> bool:
        """Whether two descriptors share a file description (kcmp). Where a filter refuses to tell, they do not."""
        return bool(_libc.syscall(call_number("kcmp"), self._pid, self._pid, _KCMP_FILE, one, other) == 0)


def _copy(source: str, target: Path) -> bool:
    """Copy a deleted file, with its holes; False where it cannot be read or is too large. Raises StorageError."""
    try:
        reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        status = os.fstat(reader)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_DELETED:
            return False
        with create_private(target) as out:
            while piece := os.read(reader, _PIECE):
                if any(piece):
                    out.write(piece)
                else:
                    out.seek(len(piece), os.SEEK_CUR)
            out.truncate()
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror}; give --work on a larger disk") from error
    finally:
        os.close(reader)
    return True
