# SPDX-License-Identifier: Apache-2.0
"""Tell of system calls what they do to files by their paths, and until when they wait: what a recording notes."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field

from checkpoint.binary.syscall_names import call_number
from checkpoint.linux import AT_FDCWD, PAGE_SIZE
from checkpoint.process.ptrace import Registers

OPENS = {call_number("open"): 0, call_number("creat"): 0, call_number("openat"): 1, call_number("openat2"): 1}
"""Calls that open a path, and which argument is the path (the one before it is the folder, if it is not 0)."""
OPEN_FLAGS = {call_number("open"): "rsi", call_number("openat"): "rdx"}
OPENAT2 = call_number("openat2")
CHANGES = {
    call_number(name)
    for name in (
        *("truncate", "rename", "mkdir", "rmdir", "link", "unlink", "symlink", "chmod", "chown", "lchown", "utime"),
        *("mknod", "setxattr", "lsetxattr", "removexattr", "lremovexattr", "utimes", "mkdirat", "mknodat", "fchownat"),
        *("futimesat", "unlinkat", "renameat", "linkat", "symlinkat", "fchmodat", "utimensat", "renameat2"),
        *("fchmodat2", "setxattrat", "removexattrat", "file_setattr"),
        *("fchmod", "fchown", "fsetxattr", "fremovexattr"),
    )
}
"""Calls that change files by their paths, or more of them than their contents. Without a private view they are refused
(checkpoint/restorer/filter.c)."""
NAMES = {call_number(name) for name in ("rename", "renameat", "renameat2", "link", "linkat")}
"""Calls after which a file has another name."""
_ABSOLUTE = {call_number(name) for name in ("clock_nanosleep", "timer_settime", "timerfd_settime")}
"""Calls whose second argument's lowest bit says that a time is one of the clock."""
_FUTEX, _FUTEX_COMMAND, _FUTEX_UNTIL = call_number("futex"), 127, (6, 9, 11, 13)
"""Of futex: the commands that wait until a time of the clock."""
_UNTIL = {
    call_number("mq_timedsend"): "r8", call_number("mq_timedreceive"): "r8", call_number("futex_wait"): "r8",
    call_number("futex_waitv"): "r10",
}  # fmt: skip
"""Calls that do so where this argument is a time."""
HARMLESS = frozenset(
    call_number(name)
    for name in (
        *("rt_sigprocmask", "rt_sigaction", "clock_gettime", "gettimeofday", "time", "times", "getrusage", "getcpu"),
        *("getpid", "gettid", "getppid", "getuid", "geteuid", "getgid", "getegid", "sched_yield"),
        *("read", "write", "readv", "writev", "pread64", "pwrite64", "lseek", "fstat"),
    )
)
"""Calls of which a recording tells no more than that they are made."""
_LONGEST_PATH = 4096
_PATH_ARGUMENTS = ("rdi", "rsi")
KERNELS = ("/proc/", "/sys/")
"""Where the kernel tells of each node, and of what runs there."""
_NOT_FILES = (*KERNELS, "/dev/")
"""Each node's own, and rightly so."""
_DESCRIPTORS = "/fd/"
"""In paths of descriptors: below /proc/PID, or /dev."""


def waits_until(number: int, registers: Registers) -> bool:
    """Whether the call waits until a time that a clock shows, or sets a timer to one."""
    if number == _FUTEX:
        return bool(registers.r10) and registers.rsi & _FUTEX_COMMAND in _FUTEX_UNTIL
    if number in _UNTIL:
        return bool(getattr(registers, _UNTIL[number]))
    return bool(number in _ABSOLUTE and registers.rsi & 1)


def plain_path(path: str) -> str:
    """The absolute `path` without `.`, `..` and repeated slashes. As in the kernel `..` leads out of the folder that a
    symbolic link names; links behind the last one stay, so the file keeps the name it was opened by."""
    parts = path.split("/")
    if ".." in parts:
        last = len(parts) - parts[::-1].index("..")
        path = "/".join([os.path.realpath("/".join(parts[:last])), *parts[last:]])
    return f"/{os.path.normpath(path).lstrip('/')}"


@dataclass
class OpenedPaths:
    """What process `pid`, which we trace, does by paths; `written` are the files that it had open for writing.

    The fields without a line as in RecordedCalls.
    """

    pid: int
    written: list[str]
    opened: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    changes_paths: bool = False
    _made: set[str] = field(default_factory=set)

    def path_of(self, number: int, registers: Registers) -> str | None:
        """The path that the call at which it stands opens or changes, absolute; None for other calls."""
        if number in CHANGES:
            return ""
        if number not in OPENS:
            return None
        at = OPENS[number]
        text = self._read(getattr(registers, _PATH_ARGUMENTS[at]), _LONGEST_PATH).split(b"\0")[0]
        folder = ctypes.c_int(registers.rdi & 0xFFFFFFFF).value if at else AT_FDCWD
        base = f"/proc/{self.pid}/cwd" if folder == AT_FDCWD else f"/proc/{self.pid}/fd/{folder}"
        return plain_path(os.path.join(os.path.realpath(base), os.fsdecode(text)))  # noqa: PTH118

    def note(self, number: int, registers: Registers, path: str) -> None:
        """Take note of such a call, which was made."""
        flags = int(getattr(registers, OPEN_FLAGS[number])) if number in OPEN_FLAGS else os.O_WRONLY
        if number == OPENAT2:
            flags = int.from_bytes(self._read(registers.rdx, 8)[:4], "little")
        if number in CHANGES:
            self.changes_paths = True
            if number in NAMES:
                # By another name it may be opened unknown.
                self._may_read(self.written)
            return
        if flags & os.O_ACCMODE != os.O_WRONLY and not flags & os.O_TRUNC:
            # A descriptor that is opened once more may be any of them.
            self._may_read(self.written if _DESCRIPTORS in path else [os.path.realpath(path)])
        if path.startswith(_NOT_FILES):
            return
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116
        except OSError:
            self.changes_paths = True
            return
        if not stat.S_ISREG(mode):
            return
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            self.changes_paths = True
            self._made.add(path)
        elif path not in self.opened and path not in self._made:
            self.opened.append(path)

    def _may_read(self, paths: Iterable[str]) -> None:
        self.read += [path for path in paths if path in self.written and path not in self.read]

    def _read(self, address: int, size: int) -> bytes:
        memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY)
        try:
            data = b""
            # A path may end right before memory that is not mapped.
            while len(data) < size:
                at = address + len(data)
                part = os.pread(memory, min(size - len(data), PAGE_SIZE - at % PAGE_SIZE), at)
                data += part
                if not part or b"\0" in part:
                    break
            return data
        except OSError:
            return data
        finally:
            os.close(memory)
