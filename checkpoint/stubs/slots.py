# SPDX-License-Identifier: Apache-2.0
"""Room for stubs and their counters near images: of a team, copies of the counters for each slot.

The slots of a team are SLOT_BYTES apart, whichever image is counted. What one image's counters leave of a slot is taken
by other images': a program with dozens of libraries would else have no addresses left for the last one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint.linux import PAGE_SIZE
from checkpoint.memory_shortage import room_in
from checkpoint.process.loader import LoadedImage
from checkpoint.process.maps import find_gap, in_reach
from checkpoint.process.team import SLOT_BYTES
from checkpoint.process.tracee import Tracee
from checkpoint.stubs.encode import page_align

_GUARD = PAGE_SIZE


@dataclass
class _Slots:
    """One block of all slots: where it begins, and how many bytes of each are taken."""

    base: int
    taken: int


class StubRoom:
    """What one process has mapped for stubs, up to its next execve."""

    def __init__(self, tracee: Tracee) -> None:
        self._tracee = tracee
        self._blocks: list[_Slots] = []

    def take(self, loaded: LoadedImage, code: int, data: int) -> tuple[int, int]:
        """Addresses of `code` bytes for stubs near an image, and of `data` bytes of counters in reach of them.

        Of a team these are the counters of slot 0; of the other slots only those in use take memory. Raises LookupError
        where there is no room among the addresses, NodeUnfit where the program may have no more memory.
        """
        team = self._tracee.team
        if team is None:
            base = self._map(loaded, code, data)
            return base, base + code
        data = page_align(data)
        if data > SLOT_BYTES:
            raise LookupError(f"{data} bytes of counters are more than a thread's slot has")
        for block in self._blocks:
            if block.taken + data <= SLOT_BYTES and (beside := self._beside(loaded, code, block)):
                break
        else:
            beside = self._map(loaded, code, team.most * SLOT_BYTES)
            block = _Slots(beside + code, 0)
            self._blocks.append(block)
        counters = block.base + block.taken
        block.taken += data
        return beside, counters

    def _beside(self, loaded: LoadedImage, code: int, block: _Slots) -> int:
        """Address of `code` bytes near an image from which slot 0 of a block is in reach; 0 where there are none."""
        try:
            base = find_gap(self._tracee.mappings(), loaded.low, loaded.high, code + _GUARD)
        except LookupError:
            return 0
        if not in_reach(base, code, block.base, SLOT_BYTES):
            return 0
        with room_in(self._tracee.program.argv[0]):
            self._tracee.map_memory(base, code, executable=True)
        return base

    def _map(self, loaded: LoadedImage, code: int, data: int) -> int:
        base = find_gap(self._tracee.mappings(), loaded.low, loaded.high, code + data + _GUARD)
        with room_in(self._tracee.program.argv[0]):
            self._tracee.map_memory(base, code, executable=True)
            self._tracee.map_memory(base + code, data, executable=False)
        return base
