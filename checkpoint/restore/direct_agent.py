# SPDX-License-Identifier: Apache-2.0
"""Restores one phase again and again with the direct restorer, as an ordinary user, and reports its times.

Standard library alone, Python 3.8 and newer: this file also runs on candidate nodes. It reads and writes the same
lines as criu_agent.py. The restorer becomes the phase's process itself, as our child: the kernel tells us when it
stops, and its stamps arrive in a file that it shares with us. It dies with us.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import queue
import resource
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))

from checkpoint import strict_json
from checkpoint.event import EVENT_BYTES, Event, event_of
from checkpoint.flat.control import Report
from checkpoint.linux import (
    ADDR_NO_RANDOMIZE,
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    PAGE_SIZE,
    PERSONALITY_QUERY,
    PTRACE_TRACEME,
)
from checkpoint.parent import die_with_parent
from checkpoint.private_file import copy_private
from checkpoint.process.waiting import WAITS_FOR_EVER, EndlessWait
from checkpoint.restore.criu_agent import ended, kill, pass_orders, prepare, refused, region_times, wait_for_stop
from checkpoint.restore.isolation import (
    apart,
    children,
    enter_namespaces,
    hide_memory,
    possible_namespaces,
    works,
)
from checkpoint.restore.memory_group import joining
from checkpoint.restore.private_root import close_own_devices, mount

Spec = Dict[str, Any]

_FAILED, RESTORED = 1, 2
_FIRST_PASSED = 3
_LOOK_SECONDS = 0.25
"""How often somebody looks whether a phase has been restored, which its time begins with."""
_RESTORING_LOOK_SECONDS = 0.05
"""How often somebody looks what its threads have waited so far, while it is being restored."""
_APART_SECONDS = 0.09
"""So long each restored thread keeps the processor that it begins on, where there are as many: the others count as
laden by whoever restored the phase, and a kernel puts a thread that is woken beside the one that wakes it."""
_HIDDEN = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
STEP_AGENT = 26
"""What this file reports when the restorer cannot even be started (enum step)."""

# Loaded before anything is forked.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.personality.argtypes = [ctypes.c_ulong]


class Control:
    """The file shared with the restored process: a report, then its pages with stamps."""

    def __init__(self, stamps: list[int], folder: str) -> None:
        self._stamps = {address: number for number, address in enumerate(stamps)}
        try:
            self.fd = os.memfd_create("control", os.MFD_CLOEXEC)
        except (AttributeError, OSError):
            self.fd = os.open(os.path.join(folder, "control"), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(self.fd, PAGE_SIZE * (1 + len(stamps)))

    def report(self) -> tuple[int, int, int, int, int, int, float, int]:
        """(progress, step, errno, copied mappings, address, detail, seconds at which it was restored, confined)."""
        said = Report.from_buffer_copy(os.pread(self.fd, ctypes.sizeof(Report), 0))
        restored = said.restored_s + said.restored_ns * 1e-9
        return said.progress, said.step, said.error, said.copied, said.address, said.detail, restored, said.confined

    def event(self, address: int) -> Event:
        """The event record at `address`."""
        number = self._stamps[address // PAGE_SIZE * PAGE_SIZE]
        return event_of(os.pread(self.fd, EVENT_BYTES, PAGE_SIZE * (1 + number) + address % PAGE_SIZE))

    def close(self) -> None:
        os.close(self.fd)


def limit(kind: int, most: int) -> None:
    """Lower a limit of this process for good."""
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(kind, (most, most))


def become_restorer(spec: Spec, folder: str, control: int, parent: int) -> None:
    """In a forked child: turn into the restorer, which turns into the phase. Returns only by raising OSError."""
    os.setsid()
    # A timer or a stray signal must not run the phase's handlers before the phase is whole; its own mask comes last.
    # SIGTRAP is how a tracer learns of execve.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGTRAP})
    # New mappings then lie where they lay in the captured run: below the place that the kernel chooses at execve.
    _libc.personality(_libc.personality(PERSONALITY_QUERY) | ADDR_NO_RANDOMIZE)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if spec["cpus"]:
        os.sched_setaffinity(0, spec["cpus"])
    passed = [
        os.open(spec["image"], os.O_RDONLY), os.open(spec["pages"], os.O_RDONLY),
        os.open(spec["copies"], os.O_RDONLY | os.O_DIRECTORY), os.open(folder, os.O_RDONLY | os.O_DIRECTORY), control,
    ]  # fmt: skip
    last = max(passed) + 1
    moved = [os.dup2(fd, last + number, inheritable=False) for number, fd in enumerate(passed)]
    for number, fd in enumerate(moved):
        os.dup2(fd, _FIRST_PASSED + number, inheritable=True)
    program = os.open(spec["restorer"], os.O_RDONLY)
    if spec["private_view"]:
        # It has its files open: by their paths it would fill the node's disk, or change what its next repeat gets.
        mount("none", spec["scratch"], "tmpfs", _HIDDEN, "size=4k,mode=0500")
    limit(resource.RLIMIT_CORE, 1)
    if not spec["threads"]:
        # Where there are threads the restorer starts them first, and then sets it.
        limit(resource.RLIMIT_NPROC, 0)
    seconds = spec["region_seconds"] + spec["restore_seconds"]
    limit(resource.RLIMIT_CPU, (int(seconds) + 1) * (1 + spec["threads"]))
    limit(resource.RLIMIT_FSIZE, spec["file_bytes"])
    limit(resource.RLIMIT_AS, spec["memory_bytes"])
    arguments = ["restorer", str(parent), str(spec["option_bits"])]
    try:
        os.execve(spec["restorer"], arguments, {})
    except PermissionError:
        # On a file system that is mounted noexec: from memory.
        copied = os.memfd_create("restorer", os.MFD_CLOEXEC)
        while data := os.read(program, 1 << 16):
            os.write(copied, data)
        os.execve(copied, arguments, {})


def launch(spec: Spec, folder: str, control: int, traced: bool = False, group: "int | None" = None) -> int:
    """Start the restorer; its process number. `traced`: it waits for its parent to trace it; `group`: it goes there
    (memory_group.py)."""
    parent = os.getpid()
    told = os.dup(control)
    pid = os.fork()
    if pid:
        os.close(told)
        return pid
    try:
        if traced:
            _libc.ptrace(PTRACE_TRACEME, 0, None, None)
        if group is not None:
            os.write(group, b"0")
        become_restorer(spec, folder, control, parent)
    except (OSError, AttributeError, ValueError) as error:
        failure = Report(progress=_FAILED, step=STEP_AGENT, error=getattr(error, "errno", None) or 0)
        os.pwrite(told, bytes(failure), 0)
    finally:
        os._exit(126)


def time_region(spec: Spec, pid: int, control: Control) -> Dict[str, Any]:
    """Wait for the end of the region; its stamps, or what went wrong."""
    until = time.monotonic() + spec["restore_seconds"]
    begun, apart_until = False, math.inf
    restoring_delays = {}  # type: Dict[str, int]
    waits = EndlessWait(pid)
    while True:
        watched = bool(spec["threads"]) and not begun
        look = _RESTORING_LOOK_SECONDS if watched else _LOOK_SECONDS
        status = wait_for_stop(pid, min(until, apart_until, time.monotonic() + look))
        if status is None and time.monotonic() >= apart_until:
            apart_until = math.inf
            let_go(spec["cpus"])
        # Before the report: what is not restored behind it had not been at this moment.
        delays = run_delays() if watched else {}
        progress, step, error, copied, address, detail, restored, confined = control.report()
        if progress == _FAILED:
            return {"status": "direct", "step": step, "errno": error, "address": address, "detail_number": detail}
        if progress != RESTORED:
            restoring_delays = delays
        elif not begun:
            begun, until = True, time.monotonic() + spec["region_seconds"]
            apart_until = restored + _APART_SECONDS if spec["threads"] else math.inf
        if status is None and begun and not spec["threads"] and waits.is_found():
            return {"status": "waits", "detail": WAITS_FOR_EVER}
        if status is None and time.monotonic() < until:
            continue
        if status is None:
            what = "no region end" if progress == RESTORED else "not restored"
            seconds = spec["region_seconds" if begun else "restore_seconds"]
            return {"status": "timeout", "detail": "%s within %g s" % (what, seconds)}
        if progress != RESTORED and status != signal.SIGKILL:
            what = "signal %d" % os.WTERMSIG(status) if os.WIFSIGNALED(status) else "status %d" % (status >> 8)
            return {"status": "crashed", "detail": what}
        if not os.WIFSTOPPED(status):
            return ended(status)
        warm, start, end = (control.event(spec[name]) for name in ("warm", "start", "end"))
        if end[0]:
            found = {"restored": restored, "copied": copied, "confined": confined}
            delay = longest_delay(restoring_delays) if spec["threads"] else None
            return {**region_times(warm, start, end), **found, **({} if delay is None else {"delay": delay})}
        os.kill(pid, signal.SIGCONT)


def let_go(cpus: List[int]) -> None:
    """From here on each thread of our children may use every one of these processors."""
    for number in thread_folders():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(number), cpus)


def longest_delay(before: Dict[str, int]) -> Optional[float]:
    """Seconds that the thread of the stopped phase that waited longest for a processor has waited since `before`; None
    where the kernel does not tell."""
    waited = [delay - before.get(thread, 0) for thread, delay in run_delays().items()]
    return max(waited) * 1e-9 if waited else None


def run_delays() -> Dict[str, int]:
    """Nanoseconds that each thread of our children has waited for a processor since it was started, by its number.

    Second field of /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats). Threads of which that is not
    kept, or cannot be read, are left out: no repeat fails for want of it.
    """
    found = {}
    for number, folder in thread_folders().items():
        with contextlib.suppress(OSError, IndexError, ValueError), open(folder + "/schedstat") as file:
            found[number] = int(file.read().split()[1])
    return found


def thread_folders() -> Dict[str, str]:
    """Where /proc tells of the threads of our children, by their numbers."""
    found = {}  # type: Dict[str, str]
    with contextlib.suppress(OSError):
        for pid in children():
            folder = "/proc/%d/task" % pid
            found.update((number, "%s/%s" % (folder, number)) for number in os.listdir(folder))
    return found


def enter_private_view(spec: Spec) -> None:
    """See the node's files with the probe's own on top, and keep all changes to ourselves. Raises OSError."""
    enter_namespaces(CLONE_NEWNS if os.geteuid() == 0 else CLONE_NEWUSER | CLONE_NEWNS)
    prepare(spec)


def may_have_private_view(scratch: str) -> bool:
    """Whether a phase gets a private view of the files from this user here: tried, in a child, with nothing to show."""
    kinds = possible_namespaces()
    empty = {"scratch": scratch, "binds": [], "written": [], "folders": []}

    def try_it() -> None:
        enter_namespaces(kinds)
        prepare(empty, closed=True)

    return bool(kinds & CLONE_NEWNS) and works(try_it)


def copy_written(spec: Spec, folder: str) -> None:
    """Put copies of the files that the phase writes into `folder`, where its restorer opens them. Raises OSError."""
    for index, source in enumerate(spec["sources"]):
        copy_private(Path(source), Path(folder, "w%d" % index))


def one_repeat(spec: Spec, folder: str) -> Dict[str, Any]:
    """Restore and time the phase once, with `folder` for what it writes."""
    group = joining(spec["memory_group"]) if spec["memory_group"] else None
    if spec["private_view"]:
        prepare(spec, closed=True)
    elif spec["namespaces"] & CLONE_NEWNS:
        with contextlib.suppress(OSError):
            close_own_devices()
    begun = time.monotonic()
    copy_written(spec, folder)
    control = Control(spec["stamps"], folder)
    try:
        hide_memory()
        begun = time.monotonic()
        pid = launch(spec, folder, control.fd, group=group)
        try:
            result = time_region(spec, pid, control)
        finally:
            kill(pid)
    finally:
        control.close()
    if "restored" in result:
        result["restore_seconds"] = result["restored"] - begun
    result["total_seconds"] = time.monotonic() - begun
    return result


def repeat(spec: Spec, number: int) -> None:
    """One repeat and its line of JSON, in a child, of which nothing is left for the next."""
    parent = os.getpid()
    folder = os.path.join(spec["scratch"], "repeat-%d" % number)
    os.mkdir(folder, 0o700)
    try:
        child = os.fork()
        if not child:
            _report(spec, folder, parent)
        if os.waitpid(child, 0)[1]:
            print(strict_json.dumps({"status": "crashed", "detail": "its agent died"}), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _report(spec: Spec, folder: str, parent: int) -> None:
    """In a child: the repeat and its line. Does not return."""
    status = 1
    try:
        die_with_parent(parent)
        try:
            said = apart(spec["namespaces"], lambda: strict_json.dumps(answer(spec, folder)))
        except OSError as error:
            said = strict_json.dumps(refused(error))
        # Whoever reads it ends us: nothing of the phase is left by now.
        if said:
            print(said, flush=True)
            status = 0
    finally:
        os._exit(status)


def answer(spec: Spec, folder: str) -> Dict[str, Any]:
    try:
        return one_repeat(spec, folder)
    except OSError as error:
        return refused(error)


def main() -> None:
    """One line in, then one per repeat that is wanted; one line out per repeat."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    spec = strict_json.loads(sys.stdin.buffer.readline())
    orders = queue.SimpleQueue()  # type: queue.SimpleQueue[bytes]
    threading.Thread(target=pass_orders, args=(orders,), daemon=True).start()
    number = 0
    while orders.get():
        repeat(spec, number)
        number += 1


if __name__ == "__main__":
    main()
