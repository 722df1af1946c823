# SPDX-License-Identifier: Apache-2.0
"""ptrace(2), called from Python."""

from __future__ import annotations

import ctypes
import errno
import os

from checkpoint.errors import PrivilegeMissing

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Registers(ctypes.Structure):
    """struct user_regs_struct of x86-64 Linux."""

    _fields_ = [
        (name, ctypes.c_ulonglong)
        for name in (
            *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
            *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
        )
    ]

    def copy(self) -> Registers:
        return Registers.from_buffer_copy(self)


def ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> int:
    """One request; its result. Raises PrivilegeMissing, OSError."""
    ctypes.set_errno(0)
    result: int = _libc.ptrace(request, pid, address, data)
    if result == -1 and ctypes.get_errno():
        number = ctypes.get_errno()
        if number == errno.EPERM:
            raise PrivilegeMissing(
                f"ptrace of process {pid} is refused (kernel.yama.ptrace_scope, or a container's filter)"
            )
        raise OSError(number, f"ptrace request {request:#x} on {pid}: {os.strerror(number)}")
    return result
