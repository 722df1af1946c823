# SPDX-License-Identifier: Apache-2.0
"""The event record of a stub (stubs.S) as bytes: its size, its marks, what it says. Python 3.8, standard library."""

from __future__ import annotations

import struct
from typing import Optional, Tuple

Event = Tuple[bool, float, float, Optional[float], int]
"""(fired, wall seconds, CPU seconds, those in the kernel or None where they were not stamped, page faults)."""

EVENT_BYTES = 64
FIRED, USAGE_KNOWN = 1, 2


def event_of(record: bytes) -> Event:
    """What an event record says (checkpoint/stubs/stubs.S)."""
    fired, wall, wall_ns, cpu, cpu_ns, kernel, faults = struct.unpack_from("<I6q", record, 12)
    known = kernel * 1e-6 if fired & USAGE_KNOWN else None
    return bool(fired), wall + wall_ns * 1e-9, cpu + cpu_ns * 1e-9, known, faults
