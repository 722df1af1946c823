# SPDX-License-Identifier: Apache-2.0
"""Read hardware counters of a command and all that it starts.

A counter that the processor, the virtual machine or the kernel does not give is named with the kernel's reason. Where
only user code may be counted (perf_event_paranoid of 2), that is done.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from probe.emulation.counting.perf_event import EXCLUDE_HV, EXCLUDE_KERNEL, HARDWARE, INHERIT, opened_event

_ENABLED, _RUNNING = 1, 2
"""Of read_format: for how long the counter was wanted, and counted, as there are few of them in a processor."""

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
    wanted = INHERIT | EXCLUDE_HV
    try:
        return opened_event(event.kind, event.number, wanted, pid=pid, answer=_ENABLED | _RUNNING), True
    except PermissionError:
        wanted |= EXCLUDE_KERNEL
        return opened_event(event.kind, event.number, wanted, pid=pid, answer=_ENABLED | _RUNNING), False
