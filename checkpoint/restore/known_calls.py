# SPDX-License-Identifier: Apache-2.0
"""Tell of system calls what they do to files by their paths, and until when they wait: what a recording notes."""

from __future__ import annotations

import os

from checkpoint.binary.syscall_names import call_number
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
