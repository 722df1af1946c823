# SPDX-License-Identifier: Apache-2.0
"""Restores one phase again and again, and reports its times. Process 1 of its own PID and mount namespaces.

Standard library alone, Python 3.8 and newer: this file also runs on candidate nodes. It is started as

    unshare --pid --mount --fork --mount-proc --kill-child --propagation private python3 -I restore_agent.py

and reads one line of JSON from standard input (see `main`); it writes one line of JSON per repeat. When standard
input ends, whoever asked has gone: the agent leaves at once, and its namespace takes all its processes along.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

Spec = Dict[str, Any]

_EVENT_BYTES = 64
_MS_BIND, _MS_REC, _MNT_DETACH, _PIVOT_ROOT = 0x1000, 0x4000, 2, 155
_CHILD = {signal.SIGCHLD}
_CONTINUE_AGAIN_SECONDS = 0.05


def read_event(memory: int, address: int) -> Tuple[bool, float, float]:
    """(fired, wall seconds, CPU seconds) of the event record at `address` (checkpoint/stubs.S)."""
    raw = os.pread(memory, _EVENT_BYTES, address)
    fired, wall, wall_ns, cpu, cpu_ns = struct.unpack_from("<I4q", raw, 12)
    return bool(fired), wall + wall_ns * 1e-9, cpu + cpu_ns * 1e-9


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2), in this mount namespace only. Raises OSError naming the target."""
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [x.encode() or None for x in (source, target, kind)]
    if libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None):
        number = ctypes.get_errno()
        raise OSError(number, "mounting %s on %s: %s" % (source, target, os.strerror(number)))


def bind(source: str, target: str) -> None:
    """Show the file `source` at the path `target`, in this mount namespace only."""
    mount(source, target, "", _MS_BIND)


def other_mounts() -> List[str]:
    """Mount points directly below the root mount, in order."""
    with open("/proc/self/mountinfo") as file:
        rows = [line.split() for line in file]
    points = [(row[0], row[1], row[4].encode().decode("unicode_escape")) for row in rows]
    root = [number for number, _, point in points if point == "/"][-1]
    return [point for _, parent, point in points if parent == root and point != "/"]


def enter_extendable_root(scratch: str) -> None:
    """Make a root in which paths can be added that this node does not have, and change nothing of the node.

    An overlay over the whole root, its upper layer in memory, with all other mounts as they were.
    """
    layers, root = os.path.join(scratch, "layers"), os.path.join(scratch, "root")
    os.mkdir(layers)
    os.mkdir(root)
    mount("tmpfs", layers, "tmpfs", 0, "mode=0700,size=256m")
    upper, work = os.path.join(layers, "upper"), os.path.join(layers, "work")
    os.mkdir(upper)
    os.mkdir(work)
    mount("overlay", root, "overlay", 0, "lowerdir=/,upperdir=%s,workdir=%s" % (upper, work))
    for point in [*other_mounts(), scratch]:
        target = root + point
        if not point.startswith(scratch + "/") and os.path.exists(target):
            mount(point, target, "", _MS_BIND | _MS_REC)
    # The files handed to us and CRIU's images lie beside the scratch folder and are read through the overlay.
    os.chdir(root)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_PIVOT_ROOT, b".", b".") or libc.umount2(b".", _MNT_DETACH):
        number = ctypes.get_errno()
        raise OSError(number, "pivot_root: %s" % os.strerror(number))
    os.chdir("/")


def make_room(folders: List[str], files: List[str]) -> None:
    """Create what is missing of these paths, inside the extendable root."""
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
    for path in files:
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w"):
                pass


def private_copy(spec: Spec, number: int) -> str:
    """Where the private copy of the `number`-th written file is kept."""
    return os.path.join(spec["scratch"], "written-%d" % number)


def refresh(spec: Spec) -> None:
    """Give the written files the contents they had at capture: CRIU refuses a file that has grown since."""
    for number, (source, _) in enumerate(spec["written"]):
        shutil.copy(source, private_copy(spec, number))


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


def time_region(spec: Spec, pid: int, wait: Callable[[int, float], Optional[int]] = wait_for_stop) -> Dict[str, Any]:
    """Let the restored process run to the end of its region; its stamps, or what went wrong.

    `wait` takes the process and a deadline, and returns as `wait_for_stop` does.
    """
    memory = os.open("/proc/%d/mem" % pid, os.O_RDONLY)
    try:
        deadline = time.monotonic() + spec["region_seconds"]
        os.kill(pid, signal.SIGCONT)
        while True:
            status = wait(pid, deadline)
            if status is None:
                return {"status": "timeout", "detail": "no region end within %g s" % spec["region_seconds"]}
            if os.WIFSIGNALED(status):
                return {"status": "killed", "signal": os.WTERMSIG(status)}
            if os.WIFEXITED(status):
                return {"status": "exited", "code": os.WEXITSTATUS(status)}
            warm, start, end = (read_event(memory, spec[name]) for name in ("warm", "start", "end"))
            if end[0]:
                break
            # The stop that the checkpoint was taken in is reported once more by some kernels.
            os.kill(pid, signal.SIGCONT)
        if not (warm[0] and start[0]) or not warm[1] <= start[1] < end[1]:
            return {"status": "order", "detail": "markers fired out of order"}
        return {
            "status": "ok",
            "wall": end[1] - start[1],
            "cpu": end[2] - start[2],
            "warm": start[1] - warm[1],
        }
    finally:
        os.close(memory)


def one_repeat(spec: Spec, number: int) -> Dict[str, Any]:
    refresh(spec)
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


def leave_with_parent() -> None:
    """End everything here when standard input ends."""
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(3)


def prepare(spec: Spec) -> None:
    """Show the files of the phase at their paths. Raises OSError."""
    files = [target for _, target in [*spec["binds"], *spec["written"]]]
    if not all(os.path.exists(path) for path in files + spec["folders"]):
        enter_extendable_root(spec["scratch"])
        make_room(spec["folders"], files)
    for source, target in spec["binds"]:
        bind(source, target)
    refresh(spec)
    for number, (_, target) in enumerate(spec["written"]):
        bind(private_copy(spec, number), target)


def main() -> None:
    """One line in: {criu, options, images, scratch, outputs, folders, binds, written, warm, start, end, ...}."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _CHILD)
    spec = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=leave_with_parent, daemon=True).start()
    try:
        prepare(spec)
    except OSError as error:
        print(json.dumps(refused(error)), flush=True)
        os._exit(0)
    for number in range(spec["repeats"]):
        try:
            result = one_repeat(spec, number)
        except OSError as error:
            result = refused(error)
        print(json.dumps(result), flush=True)
        if result["status"] != "ok":
            break
    os._exit(0)


if __name__ == "__main__":
    main()
