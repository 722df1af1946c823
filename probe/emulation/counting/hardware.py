# SPDX-License-Identifier: Apache-2.0
"""Read hardware counters of a command and all that it starts: perf_event_open(2), without the program perf.

A counter that the processor, the virtual machine or the kernel does not give is named with the kernel's reason. Where
only user code may be counted (perf_event_paranoid of 2), that is done.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from dataclasses import dataclass

_CALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319}
HARDWARE, SOFTWARE = 0, 1
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV = 1 << 1, 1 << 5, 1 << 6
_ENABLED, _RUNNING = 1, 2
"""Of read_format: for how long the counter was wanted, and counted, as there are few of them in a processor."""

_CLOEXEC = 8
_ANSWER = struct.Struct("QQQ")


@dataclass(frozen=True)
class Event:
    """A counter of the kernel (struct perf_event_attr): type, config; the unit of its column."""

    kind: int
    number: int
    unit: str


EVENTS = {
    "instructions": Event(HARDWARE, 1, "instructions"),
    "cycles": Event(HARDWARE, 0, "cycles"),
    "stalled_frontend": Event(HARDWARE, 7, "cycles"),
    "stalled_backend": Event(HARDWARE, 8, "cycles"),
}
"""Column -> counter, as `perf stat` names them: instructions, cycles, stalled-cycles-frontend, -backend."""


class Counter:
    """One counter of process `pid` and of what it starts from now on. Raises OSError with the kernel's reason."""

    def __init__(self, event: Event, pid: int) -> None:
        self._file, self.whole = _opened(event, pid)
        self.shared = False
        """Whether it counted for a part of the time, and was extrapolated."""

    def read(self) -> float | None:
        """None where it was wanted and never counted: a guest's host may use all counters."""
        value, wanted, counted = _ANSWER.unpack(os.read(self._file, _ANSWER.size))
        if wanted and not counted:
            return None
        self.shared |= counted < wanted
        return float(value) * wanted / counted if counted else float(value)

    def close(self) -> None:
        os.close(self._file)


def _opened(event: Event, pid: int) -> tuple[int, bool]:
    """A descriptor that counts process `pid` and what it starts from now on, and whether the kernel's part counts.

    Raises OSError with the kernel's reason.
    """
    failed = 0
    for flags in (_INHERIT | _EXCLUDE_HV, _INHERIT | _EXCLUDE_HV | _EXCLUDE_KERNEL):
        attributes = bytearray(128)
        struct.pack_into("IIQQQQQ", attributes, 0, event.kind, 128, event.number, 0, 0, _ENABLED | _RUNNING, flags)
        given = (ctypes.c_char * 128).from_buffer(attributes)
        libc = ctypes.CDLL(None, use_errno=True)
        found = libc.syscall(_CALL.get(platform.machine(), -1), given, pid, -1, -1, _CLOEXEC)
        if found >= 0:
            return int(found), not flags & _EXCLUDE_KERNEL
        failed = ctypes.get_errno()
        if failed not in (1, 13):
            break
    raise OSError(failed, os.strerror(failed))
