# SPDX-License-Identifier: Apache-2.0
"""Start a command, inherit its orphans, wait for all of them, and say what they used.

Runs as a process of its own between a sampler and the command (as a script: `supervisor.py ANSWER GO PARENT WORD...`,
two descriptors and a process). It starts the command when there is something to read from GO, or its end. It is
the command's subreaper (prctl(2), PR_SET_CHILD_SUBREAPER): processes that outlive their parents become its children, so
that none is lost, however short. The kernel adds what a process used to that of the process that waits for it; at the
end the supervisor's own counters hold those of all.

It writes lines to ANSWER: `ready now`, `started SECONDS PID` or `failed ERRNO`, `ended SECONDS STATUS USER KERNEL
MINOR MAJOR PEAK LEFT`, and `io NAME BYTES` for each counter of /proc/self/io. Seconds are CLOCK_MONOTONIC's; PEAK is
the largest resident set of one process, in bytes, at least the supervisor's own; LEFT counts the processes that were
still there GRACE seconds after the command, and were ended. Standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

GRACE = 1.0
"""Seconds that what a command leaves running has to end by itself."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PR_SET_PTRACER, _ANYBODY = 0x59616D61, ctypes.c_ulong(-1)
_KEYBOARD = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
_LOOK_SECONDS = 0.02


def supervise(start: Callable[[], int], answer: int, go: int, parent: int) -> None:
    """Run what `start` starts to its end, and write about it to descriptor `answer`; wait for a byte from `go` first.

    Ends everything at SIGTERM, and when process `parent` has ended.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    signal.signal(signal.SIGTERM, _end_all)
    # A terminal's signals go to the whole group: the command takes them as it likes, the sampler decides.
    for number in _KEYBOARD:
        signal.signal(number, signal.SIG_IGN)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    # Where the kernel lets a process be traced by its ancestors alone (yama), strace is none.
    libc.prctl(_PR_SET_PTRACER, _ANYBODY, 0, 0, 0)
    if os.getppid() != parent:
        return
    _say(answer, "ready now")
    if not os.read(go, 1):
        return
    os.close(go)
    first = _io()
    before = _io()
    begun = time.monotonic()
    try:
        pid = start()
    except OSError as error:
        _say(answer, f"failed {error.errno}")
        return
    _say(answer, f"started {begun!r} {pid}")
    ended, status = _wait_for(pid)
    left = _wait_for_others()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    after = _io()
    _say(
        answer,
        f"ended {ended!r} {status} {used.ru_utime!r} {used.ru_stime!r} {used.ru_minflt} {used.ru_majflt} "
        f"{used.ru_maxrss << 10} {left}",
    )
    for name, value in after.items():
        # Reading the counters once adds to them as much as it did the first time.
        _say(answer, f"io {name} {max(0, value - before[name] - (before[name] - first[name]))}")


def _say(answer: int, line: str) -> None:
    os.write(answer, f"{line}\n".encode())


def _io() -> dict[str, int]:
    """The counters of this process and of all it waited for; none where the kernel keeps none."""
    try:
        with open("/proc/self/io", "rb", buffering=0) as file:
            words = file.read(4096).split()
    except OSError:
        return {}
    return {words[at].decode().rstrip(":"): int(words[at + 1]) for at in range(0, len(words) - 1, 2)}


def _wait_for(pid: int) -> tuple[float, int]:
    """(when process `pid` ended, its status); orphans that end before it are waited for, too."""
    while True:
        found, status = os.waitpid(-1, 0)
        if found == pid:
            return time.monotonic(), status


def _wait_for_others() -> int:
    """How many processes had to be ended."""
    limit = time.monotonic() + GRACE
    while time.monotonic() < limit:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(_LOOK_SECONDS)
            continue
        return 0
    return _kill_and_wait()


def _kill_and_wait() -> int:
    """Kill our children until there are no more: those of a killed process become ours. How many there were."""
    killed = set()
    with contextlib.suppress(ChildProcessError):
        while True:
            there = _children()
            killed |= set(there)
            # What became another user (sudo) is not ours to end, nor to wait for without end.
            if there and not any([_kill(pid) for pid in there]):
                break
            os.waitpid(-1, 0)
    return len(killed)


def _kill(pid: int) -> bool:
    with contextlib.suppress(PermissionError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def _children() -> list[int]:
    """Numbers of our children, whose threads are not looked at: they have none but this one."""
    with open("/proc/thread-self/children") as file:
        return [int(word) for word in file.read().split()]


def _end_all(_number: int, _frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _kill_and_wait()
    os._exit(1)


def main(answer: int, go: int, parent: int, words: list[str]) -> None:
    os.set_inheritable(answer, False)
    # Python ignores SIGPIPE. What was ignored before us (nohup) stays so for the command.
    heard = [number for number in _KEYBOARD if signal.getsignal(number) is not signal.SIG_IGN]
    again = [*heard, signal.SIGTERM, signal.SIGPIPE]
    supervise(lambda: os.posix_spawnp(words[0], words, os.environ, setsigdef=again), answer, go, parent)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
