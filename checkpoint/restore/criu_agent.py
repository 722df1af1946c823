# SPDX-License-Identifier: Apache-2.0
"""Restores one phase again and again, and reports its times. Process 1 of its own PID and mount namespaces.

Standard library alone, Python 3.8 and newer: this file also runs on candidate nodes. It is started as

    unshare --pid --mount --fork --mount-proc --kill-child --propagation private python3 -I criu_agent.py

and reads one line of JSON from standard input (see `main`), then one line for every repeat that is wanted; it writes
one line of JSON per repeat. When standard input ends, whoever asked has gone: the agent leaves at once, and its
namespace takes all its processes along.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

# Started by its path, and without the environment's.
sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))

from checkpoint import strict_json
from checkpoint.event import EVENT_BYTES, Event, event_of
from checkpoint.linux import (
    CLONE_NEWNS,
    MNT_DETACH,
)
from checkpoint.restore.private_root import bind, close_devices, enter_private_root, make_room, show_copy

Spec = Dict[str, Any]


_CHILD = {signal.SIGCHLD}
_LONGEST_ORDER = 4096
_CONTINUE_AGAIN_SECONDS = 0.05


def read_event(memory: int, address: int) -> Event:
    """The event at `address` of the process whose memory is open as `memory`."""
    return event_of(os.pread(memory, EVENT_BYTES, address))


def wait_for_stop(pid: int, deadline: float) -> Optional[int]:
    """Status of the next stop or end of `pid` as waitpid gives it; None at the deadline (time.monotonic)."""
    while True:
        found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
        if found:
            return status
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        signal.sigtimedwait(_CHILD, min(left, _CONTINUE_AGAIN_SECONDS))


def restore(spec: Spec, number: int) -> Tuple[int, Optional[str]]:
    """Run CRIU once; the restored process is our child and stopped. Returns (pid, error text or None)."""
    pidfile = os.path.join(spec["scratch"], "pid-%d" % number)
    command = [*spec["criu"], "restore", "--no-default-config", "-d", "-S", "-D", spec["images"]]
    command += ["-W", spec["scratch"], "-o", "restore.log", "-v1", "--pidfile", pidfile, "--cpu-cap=none"]
    command += spec["options"]
    passed: List[int] = []
    for path in spec["outputs"]:
        sink = os.path.join(spec["scratch"], "output-%d-%d" % (number, len(passed)))
        fd = os.open(sink, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.set_inheritable(fd, True)
        passed.append(fd)
        command += ["--inherit-fd", "fd[%d]:%s" % (fd, path.lstrip("/"))]
    ours = os.sched_getaffinity(0)
    try:
        # Inherited by CRIU and by what it restores; we ourselves stay off the processor that is measured on.
        if spec["cpu"] is not None:
            os.sched_setaffinity(0, {spec["cpu"]})
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=passed
        )
        os.sched_setaffinity(0, ours)
        try:
            process.wait(spec["restore_seconds"])
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return 0, "criu restore did not end within %g s" % spec["restore_seconds"]
    finally:
        for fd in passed:
            os.close(fd)
    if process.returncode:
        return 0, "criu restore ended with status %d" % process.returncode
    with open(pidfile) as file:
        return int(file.read()), None


def kill(pid: int) -> None:
    """End the restored process and reap it."""
    try:
        os.kill(pid, signal.SIGKILL)
        while True:
            _, status = os.waitpid(pid, 0)
            if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                return
    except (ProcessLookupError, ChildProcessError):
        pass


def ended(status: int) -> Dict[str, Any]:
    """The answer where a phase ended before its region did; `status` as waitpid gives it."""
    if os.WIFSIGNALED(status):
        return {"status": "killed", "signal": os.WTERMSIG(status)}
    return {"status": "exited", "code": os.WEXITSTATUS(status)}


def ended_early(status: Optional[int]) -> Dict[str, Any]:
    """The answer where a restored process was gone before it could be continued; `status` as `wait_for_stop` gives."""
    if status is None or os.WIFSTOPPED(status):
        return {"status": "restore", "detail": "the restored process has no memory"}
    return ended(status)


def region_times(warm: Event, start: Event, end: Event) -> Dict[str, Any]:
    """The answer from the three events of a region that has ended."""
    if not (warm[0] and start[0]) or not warm[1] <= start[1] < end[1]:
        return {"status": "order", "detail": "markers fired out of order"}
    times = {"status": "ok", "wall": end[1] - start[1], "cpu": end[2] - start[2], "warm": start[1] - warm[1]}
    times["warm_cpu"] = start[2] - warm[2]
    if start[3] is not None and end[3] is not None:
        # The kernel scales its ticks to the CPU time anew at each question: it can take some back.
        times["kernel"] = min(max(0.0, end[3] - start[3]), end[2] - start[2])
        times["faults"] = max(0, end[4] - start[4])
    return times


def time_region(spec: Spec, pid: int, wait: Callable[[int, float], Optional[int]] = wait_for_stop) -> Dict[str, Any]:
    """Let the restored process run to the end of its region; its stamps, or what went wrong.

    `wait` takes the process and a deadline, and returns as `wait_for_stop` does.
    """
    deadline = time.monotonic() + spec["region_seconds"]
    try:
        memory = os.open("/proc/%d/mem" % pid, os.O_RDONLY)
    except (ProcessLookupError, FileNotFoundError):
        # Killed from outside before it ran: a process without memory only waits for us to ask how it ended.
        return ended_early(wait(pid, deadline))
    try:
        os.kill(pid, signal.SIGCONT)
        while True:
            status = wait(pid, deadline)
            if status is None:
                return {"status": "timeout", "detail": "no region end within %g s" % spec["region_seconds"]}
            if not os.WIFSTOPPED(status):
                return ended(status)
            warm, start, end = (read_event(memory, spec[name]) for name in ("warm", "start", "end"))
            if end[0]:
                return region_times(warm, start, end)
            # The stop that the checkpoint was taken in is reported once more by some kernels.
            os.kill(pid, signal.SIGCONT)
    finally:
        os.close(memory)


def one_repeat(spec: Spec, number: int) -> Dict[str, Any]:
    """Restore and time the phase in a mount namespace of its own: each repeat finds the node's files as they were."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare: %s" % os.strerror(ctypes.get_errno()))
    prepare(spec)
    begun = time.monotonic()
    pid, error = restore(spec, number)
    if error is not None:
        return {"status": "restore", "detail": error}
    restored = time.monotonic()
    try:
        result = time_region(spec, pid)
    finally:
        kill(pid)
    result["restore_seconds"] = restored - begun
    result["total_seconds"] = time.monotonic() - begun
    return result


def refused(error: OSError) -> Dict[str, Any]:
    """The answer where this node does not let us."""
    return {"status": "node", "errno": error.errno, "detail": str(error)}


def pass_orders(orders: "queue.SimpleQueue[bytes]") -> None:
    """Pass on every further line of standard input, and end everything here when it ends."""
    while True:
        line = sys.stdin.buffer.readline(_LONGEST_ORDER)
        if not line:
            os._exit(3)
        orders.put(line)


def prepare(spec: Spec, closed: bool = False) -> None:
    """Show the files of the phase at their paths, in this mount namespace only; `closed`: without the node's devices.
    Raises OSError."""
    binds = [(os.path.realpath(source), target) for source, target in spec["binds"]]
    written = [(os.path.realpath(source), target) for source, target in spec["written"]]
    covered = enter_private_root(spec["scratch"], [folder for folder, _ in spec["folders"]])
    old = os.path.join(spec["scratch"], "old")
    make_room(spec["folders"], [target for _, target in binds + written], covered)
    for source, target in binds:
        bind(old + source, target, read_only=True)
    for number, (source, target) in enumerate(written):
        show_copy(old + source, target, os.path.join(spec["scratch"], "written-%d" % number), covered)
    if closed:
        close_devices(old, os.path.realpath(spec["scratch"]))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(old.encode(), MNT_DETACH):
        raise OSError(ctypes.get_errno(), "umount: %s" % os.strerror(ctypes.get_errno()))


def repeat_in_child(spec: Spec, number: int) -> bool:
    """One repeat and its line of JSON, in a child, so that nothing of it is left for the next. True if it went well."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    ended = 1
    try:
        try:
            result = one_repeat(spec, number)
        except OSError as error:
            result = refused(error)
        print(strict_json.dumps(result), flush=True)
        ended = int(result["status"] != "ok")
    finally:
        os._exit(ended)


def main() -> None:
    """One line in: {criu, options, images, scratch, outputs, folders, binds, written, warm, start, end, ...}."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _CHILD)
    spec = strict_json.loads(sys.stdin.buffer.readline())
    orders = queue.SimpleQueue()  # type: queue.SimpleQueue[bytes]
    threading.Thread(target=pass_orders, args=(orders,), daemon=True).start()
    number = 0
    while orders.get():
        if not repeat_in_child(spec, number):
            break
        number += 1
    os._exit(0)


if __name__ == "__main__":
    main()
