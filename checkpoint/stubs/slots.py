# SPDX-License-Identifier: Apache-2.0
"""Room for counters near an image: those of the first thread, and of a team a copy of them for each slot."""

from __future__ import annotations

from checkpoint.linux import PAGE_SIZE
from checkpoint.memory_shortage import room_in
from checkpoint.process.loader import LoadedImage
from checkpoint.process.maps import find_gap
from checkpoint.process.team import SLOT_BYTES
from checkpoint.process.tracee import Tracee

_GUARD = PAGE_SIZE


def map_stubs(tracee: Tracee, loaded: LoadedImage, code: int, data: int) -> int:
    """Map `code` bytes for stubs near an image, and `data` bytes of counters behind them; their address.

    Of a team the counters of the other slots follow, of which only those in use take memory. Raises LookupError where
    there is no room among the addresses, NodeUnfit where the program may have no more memory.
    """
    if tracee.team is not None:
        if data > SLOT_BYTES:
            raise LookupError(f"{data} bytes of counters are more than a thread's slot has")
        data += (tracee.team.most - 1) * SLOT_BYTES
    base = find_gap(tracee.mappings(), loaded.low, loaded.high, code + data + _GUARD)
    with room_in(tracee.program.argv[0]):
        tracee.map_memory(base, code, executable=True)
        tracee.map_memory(base + code, data, executable=False)
    return base
