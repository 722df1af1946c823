# SPDX-License-Identifier: Apache-2.0
"""The records of markers and their events (stubs.S) as bytes: what is asked of them, what they say. Python 3.8,
standard library."""

from __future__ import annotations

import struct
from typing import Optional, Tuple

Event = Tuple[bool, float, float, Optional[float], int]
"""(fired, wall seconds, CPU seconds, those in the kernel or None where they were not stamped, page faults)."""

MARKER = struct.Struct("<qQ")
"""A marker's record: executions left before its next event, address of that event's record."""

_EVENT = struct.Struct("<qII6q")
EVENT_BYTES = _EVENT.size
STOP_BEFORE, STAMP, STOP_AFTER = 1, 2, 4
"""Actions of an event; before and after the stamp."""
FIRED, USAGE_KNOWN = 1, 2


def event_of(record: bytes) -> Event:
    """What an event record says (checkpoint/stubs/stubs.S)."""
    _, _, marks, wall, wall_ns, cpu, cpu_ns, kernel, faults = _EVENT.unpack_from(record)
    known = kernel * 1e-6 if marks & USAGE_KNOWN else None
    return bool(marks), wall + wall_ns * 1e-9, cpu + cpu_ns * 1e-9, known, faults


def event_record(gap: int, action: int) -> bytes:
    """The record of an event that has not fired: executions from it to the following one, and what it does."""
    return _EVENT.pack(gap, action, 0, 0, 0, 0, 0, 0, 0)
