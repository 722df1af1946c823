# SPDX-License-Identifier: Apache-2.0
"""Runs a phase apart from everything else: in namespaces of its own where this user may have them, and until its end.

Standard library alone, Python 3.8 and newer: this file also runs on candidate nodes. What a phase may call is the
restorer's matter (checkpoint/restorer/filter.c); here is what holds although a call got through.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import select
import signal
import time
from typing import Callable, List

from checkpoint.linux import (
    CLONE_NEWIPC,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
)

_EVERYTHING = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID
_PROC_FLAGS = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
_PAUSE_SECONDS = 0.0005
_END_SECONDS = 20.0
"""For ending what a phase has started: far more than it takes."""

# Loaded before anything is forked.
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (what, os.strerror(number)))


def enter_namespaces(kinds: int) -> None:
    """Go into new namespaces of these kinds (CLONE_NEW*), as the user that we are. Raises OSError."""
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(kinds), "namespaces of its own")
    if kinds & CLONE_NEWUSER:
        maps = (("setgroups", "deny"), ("uid_map", "%d %d 1" % (user, user)), ("gid_map", "%d %d 1" % (group, group)))
        for name, text in maps:
            with open("/proc/self/" + name, "w") as file:
                file.write(text)
    if kinds & CLONE_NEWNS:
        _check(_libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "private mounts")


def possible_namespaces() -> int:
    """Kinds of namespaces (CLONE_NEW*) that this user may have here, 0 where it may have none: tried, in a child."""
    return _possible_namespaces(os.getpid(), os.geteuid())


@functools.lru_cache(maxsize=1)
def _possible_namespaces(_process: int, user: int) -> int:
    own = [] if user else [_EVERYTHING, CLONE_NEWNS | CLONE_NEWPID, CLONE_NEWNS]
    for kinds in own + [CLONE_NEWUSER | k for k in (_EVERYTHING, CLONE_NEWNS | CLONE_NEWPID, CLONE_NEWNS)]:
        if works(lambda kinds=kinds: apart(kinds, lambda: "well") != "well"):  # type: ignore[misc]
            return kinds
    return 0


def works(action: Callable[[], object]) -> bool:
    """Whether `action`, called in a child, returns something false, and does not raise."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    status = 1
    with contextlib.suppress(BaseException):
        status = int(bool(action()))
    os._exit(status)


def apart(kinds: int, action: Callable[[], str]) -> str:
    """Call `action` in new namespaces of these kinds (0: in none), and end what it has started: only then what it said
    is returned, "" where it could not. Called in a process made for that. Raises OSError.

    In a PID namespace `action` is called in process 1: no signal from inside stops or ends it, and the kernel ends
    everything with it. Elsewhere this process becomes the parent of all that lose theirs, and ends them one by one.
    """
    if kinds:
        enter_namespaces(kinds)
    if kinds & CLONE_NEWPID:
        return _as_first_process(action)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        return action()
    finally:
        end_descendants()


def _as_first_process(action: Callable[[], str]) -> str:
    alive, ours = os.pipe()
    said, to_say = os.pipe()
    child = os.fork()
    if not child:
        _be_first_process(action, alive, ours, to_say)
    for descriptor in (alive, to_say):
        os.close(descriptor)
    with os.fdopen(said) as file:
        text = file.read()
    # The kernel lets it go when nothing is left in its namespace.
    os.waitpid(child, 0)
    os.close(ours)
    return text


def _be_first_process(action: Callable[[], str], alive: int, others: int, to_say: int) -> None:
    """In a child that is process 1. Does not return."""
    try:
        os.close(others)
        # From inside signals reach process 1 only where it handles them.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # Its parent has no number in here: the pipe tells whether it is gone already.
        if not select.select([alive], [], [], 0)[0]:
            # Refused where a container hides parts of it: then the phase sees that of the node.
            _libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(_PROC_FLAGS), None)
            text = action()
            with os.fdopen(to_say, "w") as file:
                file.write(text)
    finally:
        os._exit(0)


def hide_memory() -> None:
    """Keep other processes of this user, but for root's, from reading and changing this one through /proc."""
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def end_descendants() -> None:
    """End and reap all children of this process, and what these leave to it. Raises OSError where they do not end."""
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        for pid in children():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_PAUSE_SECONDS)
    raise OSError(0, "processes that the phase started do not end")


def children() -> List[int]:
    """Numbers of this process's children."""
    try:
        with open("/proc/thread-self/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # CONFIG_PROC_CHILDREN
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(name) == os.getpid()]


def _parent(pid: str) -> int:
    try:
        with open("/proc/%s/stat" % pid, errors="replace") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0
