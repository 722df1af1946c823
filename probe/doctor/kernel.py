# SPDX-License-Identifier: Apache-2.0
"""Try what this kernel and this user's privileges really allow, by doing it once.

Settings files tell only part of it: security modules, seccomp filters of containers and lockdown modes refuse
what the settings permit. Every function returns None when the thing works, else one sentence with the reason.
Nothing stays behind: children are killed, descriptors closed, personality put back.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

from checkpoint.binary.syscall_names import call_number
from checkpoint.linux import (
    ADDR_NO_RANDOMIZE,
    AT_ENTRY,
    PERSONALITY_QUERY,
    PTRACE_DETACH,
    PTRACE_INTERRUPT,
    PTRACE_SEIZE,
    WALL,
)

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_LIBC.ptrace.restype = ctypes.c_long
_LIBC.personality.argtypes = [ctypes.c_ulong]
_LIBC.syscall.restype = ctypes.c_long

_TIMEOUT: Final = 20.0


def tracing() -> str | None:
    """Seize a child with ptrace, write to its program text, let it go (ptrace(2), proc(5))."""
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL) as child:
        try:
            if _LIBC.ptrace(PTRACE_SEIZE, child.pid, None, None) != 0:
                return f"ptrace of a child is refused: {os.strerror(ctypes.get_errno())}"
            if _LIBC.ptrace(PTRACE_INTERRUPT, child.pid, None, None) != 0:
                return f"a traced child cannot be stopped: {os.strerror(ctypes.get_errno())}"
            os.waitpid(child.pid, WALL)
            try:
                _rewrite_entry(child.pid)
            except OSError as error:
                return f"the text of a traced child cannot be written through /proc/PID/mem: {error.strerror}"
            if _LIBC.ptrace(PTRACE_DETACH, child.pid, None, None) != 0:
                return f"a traced child cannot be let go: {os.strerror(ctypes.get_errno())}"
        finally:
            child.kill()
    return None


def _rewrite_entry(pid: int) -> None:
    # Kernels from 6.12 on can forbid writes to read-only mappings (proc_mem.force_override), tracer or not.
    words = struct.iter_unpack("QQ", Path(f"/proc/{pid}/auxv").read_bytes())
    entry = next(value for key, value in words if key == AT_ENTRY)
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    try:
        os.pwrite(memory, os.pread(memory, 8, entry), entry)
    finally:
        os.close(memory)


def fixed_addresses() -> str | None:
    """Start two programs with address randomisation off and compare where they lie (personality(2))."""
    before = _LIBC.personality(PERSONALITY_QUERY)
    if before == -1 or _LIBC.personality(before | ADDR_NO_RANDOMIZE) == -1:
        return f"personality(ADDR_NO_RANDOMIZE) is refused: {os.strerror(ctypes.get_errno())}"
    try:
        layouts = {_layout() for _ in range(3)}
    finally:
        _LIBC.personality(before)
    return None if len(layouts) == 1 else "addresses still change from run to run with ADDR_NO_RANDOMIZE set"


def _layout() -> tuple[str, ...]:
    maps = subprocess.run(
        ["cat", "/proc/self/maps"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT
    ).stdout
    return tuple(line.split("-")[0] for line in maps.splitlines())


def userfaultfd() -> str | None:
    """Open a userfaultfd that sees the kernel's own accesses too (userfaultfd(2))."""
    descriptor = _LIBC.syscall(ctypes.c_long(call_number("userfaultfd")), ctypes.c_long(os.O_CLOEXEC | os.O_NONBLOCK))
    if descriptor < 0:
        return f"userfaultfd is refused: {os.strerror(ctypes.get_errno())}"
    os.close(descriptor)
    return None


def namespaces(*, as_user: bool = False) -> str | None:
    """Make a PID and mount namespace with a /proc of its own; `as_user` inside a new user namespace."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return "the command unshare is missing"
    command = [unshare, *(["--user", "--map-root-user"] if as_user else [])]
    command += ["--pid", "--mount", "--fork", "--mount-proc", "--kill-child", "true"]
    try:
        made = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"unshare did not finish within {_TIMEOUT:g} s"
    if made.returncode != 0:
        reason = made.stderr.strip().splitlines()
        return reason[-1] if reason else f"unshare ended with status {made.returncode}"
    return None


def missing_capabilities() -> list[str]:
    """Names of the capabilities dump and restore need that this process lacks (capabilities(7))."""
    needed = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_SETUID": 7, "CAP_SETGID": 6, "CAP_CHOWN": 0}
    status = Path("/proc/self/status").read_text()
    effective = int(next(line for line in status.splitlines() if line.startswith("CapEff:")).split()[1], 16)
    return [name for name, bit in needed.items() if not effective >> bit & 1]
