# SPDX-License-Identifier: Apache-2.0
"""Phases restored directly in tests: as root, as an ordinary user, in a container of sorts."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from programs import build
from regions import captured_regions

from checkpoint.capture.stored import read_state
from checkpoint.compiled import restorer
from checkpoint.flat.convert import flatten
from checkpoint.flat.deleted import write_deleted
from checkpoint.flat.image import NAME, FlatImage, encode
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.direct_agent import Control, launch
from checkpoint.restore.recorded_calls import record_calls

NOBODY = 65534
SECONDS = 60.0


def flat_job(job: RestoreJob, scratch: Path, *, watched: bool = True, **more: Any) -> FlatImage:
    """Put a flat image beside a job's images; `watched`: with the system calls that it makes."""
    images = read_state(job.images)
    events = (job.warm_event, job.start_event, job.end_event)
    write_deleted(images)
    flat = flatten(images, events, outputs=job.outputs, written=[path for _, path in job.written], **more)
    (job.images / NAME).write_bytes(encode(flat))
    if watched:
        calls = record_calls(job, flat, images.pages_image, restorer(), scratch=scratch)
        flat.calls, flat.opened = sorted(calls.numbers), calls.opened
        flat.header.calls_made, flat.header.changes_paths = calls.made, calls.changes_paths
        (job.images / NAME).write_bytes(encode(flat))
    return flat


def memfd_job(builds: Path, folder: Path) -> RestoreJob:
    """A region of a program with a memfd, captured directly and flattened in `folder`."""
    (job,) = captured_regions(build("shares", builds), "memfd", folder=folder / "work", direct=True)
    flat_job(job, folder)
    return job


def report_of(
    image: bytes, pages: Path, folder: Path, *, stamps: int = 1, look: Callable[[int], None] | None = None
) -> tuple[int, int, int, int]:
    """Run the restorer on these bytes: (wait status, progress, step, errno) once it has ended or stopped. `look` gets
    the process that has stopped."""
    folder.mkdir(exist_ok=True)
    (folder / "image").write_bytes(image)
    control = Control(list(range(0, stamps * 4096, 4096)), str(folder))
    spec = {
        "image": str(folder / "image"), "pages": str(pages), "copies": str(folder), "restorer": str(restorer()),
        "cpus": [], "threads": 0, "region_seconds": 5, "restore_seconds": 5, "file_bytes": 1 << 20,
        "memory_bytes": 1 << 34, "option_bits": 0, "private_view": False,
    }  # fmt: skip
    try:
        pid = launch(spec, str(folder), control.fd)
        deadline = time.monotonic() + SECONDS
        while True:
            found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
            if found:
                break
            assert time.monotonic() < deadline, "the restorer hangs"
            time.sleep(0.0005)
        progress, step, error, *_ = control.report()
        if os.WIFSTOPPED(status):
            if look:
                look(pid)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return status, progress, step, error
    finally:
        control.close()


def python_for_anybody() -> str:
    """An interpreter that an ordinary user may execute."""
    for path in (sys.executable, "/usr/bin/python3"):
        if Path(path).exists() and all(p.stat().st_mode & 1 for p in Path(os.path.realpath(path)).parents):
            return path
    raise AssertionError("no Python that an ordinary user may execute: install python3")


def as_nobody(action: Callable[[], Any], before: Callable[[], None] | None = None) -> Any:
    """The JSON value of `action` called in a process without privileges; `before` is called there first, as root."""
    return as_user(NOBODY, action, before)


def as_user(user: int, action: Callable[[], Any], before: Callable[[], None] | None = None) -> Any:
    """The same as any user, root too."""
    reader, writer = os.pipe()
    python = python_for_anybody()
    pid = os.fork()
    if not pid:
        said: Any = None
        try:
            os.close(reader)
            if before is not None:
                before()
            if user:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
                # As after an execve by that user: its entries in /proc are its own.
                ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE
            sys.executable = python
            said = {"value": action()}
        except BaseException as error:
            said = {"error": f"{type(error).__name__}: {error}", "where": traceback.format_exc()}
        finally:
            with os.fdopen(writer, "w") as file:
                file.write(json.dumps(said))
            os._exit(0)
    os.close(writer)
    timer = threading.Timer(SECONDS, os.kill, (pid, signal.SIGKILL))
    timer.start()
    with os.fdopen(reader) as file:
        text = file.read()
    timer.cancel()
    os.waitpid(pid, 0)
    answer = json.loads(text) if text else {"error": "it was killed", "where": f"after at most {SECONDS:g} s"}
    if "error" in answer:
        raise AssertionError(f"{answer['error']}\n{answer['where']}")
    return answer["value"]


def refuse_calls(*numbers: int, error: int = errno.EPERM) -> None:
    """From now on these system calls fail in this process, as in containers, or on kernels without them."""
    code = struct.pack("<HBBI", 0x20, 0, 0, 0)
    for number in numbers:
        code += struct.pack("<HBBI", 0x15, 0, 1, number) + struct.pack("<HBBI", 0x06, 0, 0, 0x00050000 | error)
    code += struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(code)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    program = Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(program)) == 0


def open_to_anybody(folder: Path) -> None:
    """Let an ordinary user in, down to `folder` (in pytest's own folder) and everything in it."""
    for parent in [folder, *folder.parents]:
        if any(part.startswith("pytest-") for part in parent.parts):
            parent.chmod(parent.stat().st_mode | 0o711)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o644))


def for_anybody(folder: Path) -> Path:
    """A copy of our packages that an ordinary user can read."""
    root = Path(__file__).parents[2]
    for package in ("checkpoint", "reducer", "probe"):
        shutil.copytree(root / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    open_to_anybody(folder)
    return folder


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    raw = [x.encode() if x is not None else None for x in (source, target, kind, options)]
    if libc.mount(raw[0], raw[1], raw[2], ctypes.c_ulong(flags), raw[3]):
        number = ctypes.get_errno()
        raise OSError(number, f"mount on {target}: {os.strerror(number)}")
