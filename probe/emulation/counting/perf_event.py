# SPDX-License-Identifier: Apache-2.0
"""Open a counter or a sampler of the kernel: perf_event_open(2), without the program perf."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

HARDWARE, SOFTWARE = 0, 1
"""PERF_TYPE_HARDWARE, PERF_TYPE_SOFTWARE."""

INHERIT, EXCLUDE_KERNEL, EXCLUDE_HV, MMAP, TASK, MMAP2 = 1 << 1, 1 << 5, 1 << 6, 1 << 8, 1 << 13, 1 << 23
"""Bits of struct perf_event_attr."""

_CALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319}
_ATTRIBUTES = struct.Struct("IIQQQQQ")
_SIZE = 128
_CLOEXEC = 8


def opened_event(
    kind: int, number: int, flags: int, *, pid: int, cpu: int = -1, period: int = 0, sampled: int = 0, answer: int = 0
) -> int:
    """A descriptor of event `number` of `kind`, of a process (0: this thread) on a processor (-1: all).

    `period`: events between two samples; `sampled`: sample_type; `answer`: read_format. Raises OSError with the
    kernel's reason.
    """
    attributes = bytearray(_SIZE)
    _ATTRIBUTES.pack_into(attributes, 0, kind, _SIZE, number, period, sampled, answer, flags)
    given = (ctypes.c_char * _SIZE).from_buffer(attributes)
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(_CALL.get(platform.machine(), -1), given, pid, cpu, -1, _CLOEXEC)
    if found < 0:
        reason = ctypes.get_errno()
        raise OSError(reason, os.strerror(reason))
    return int(found)
