# SPDX-License-Identifier: Apache-2.0
"""The time of day as another run was told it: what a program asks first is answered as in the traced run.

Simulations start their random numbers from it, C programs by `srand(time(NULL))`: told another time, no run would
repeat another. All later answers are as much earlier or later, so that time passes as it does. The functions of the
vDSO that tell it become jumps to code of our own (wall_clock.S). What makes a system call by itself is not seen.

Threads that wait do so until a time of day, as pthread_cond_timedwait(3) has it, and the kernel goes by the node's: a
program with several is told that, too.
"""

from __future__ import annotations

import struct
import time

from iced_x86 import Decoder, FlowControl

from checkpoint.binary.sites import JUMP_BYTES
from checkpoint.binary.vdso import NotAVdso, functions
from checkpoint.compiled import WALL_CLOCK
from checkpoint.linux import PAGE_SIZE
from checkpoint.memory_shortage import room_in
from checkpoint.process.maps import find_gap
from checkpoint.process.tracee import Tracee
from checkpoint.stubs.encode import assembled

_MAPPING = "[vdso]"
_TELLING = ("clock_gettime", "gettimeofday", "time")
"""The functions, as wall_clock.S has them, too."""
_LONGEST_START = JUMP_BYTES + 15
"""Bytes that the instructions may take over which the jump is written."""
_JUMP = b"\xe9"
_WORD, _TIME = struct.Struct("<q"), struct.Struct("<2q")
_NANOSECONDS = 30
"""Bits of the word `shift` that hold nanoseconds, as in wall_clock.S."""
_SECOND = 10**9


class WallClock:
    """What was put into one process so that it is told the time from `Program.began` on; 0: the node's, of which the
    first answer is written down. Its children are told the node's."""

    def __init__(self, tracee: Tracee) -> None:
        self._tracee = tracee
        self._given = tracee.program.began if tracee.program.threads == 1 else 0
        self._base = 0
        self._places: dict[str, int] = {}
        self._saved: list[tuple[int, bytes]] = []

    def install(self) -> None:
        """At the program's entry point. It is told the node's time where the kernel gives it no vDSO that we can read,
        or no room near its own. Raises NodeUnfit where it may have no more memory."""
        tracee = self._tracee
        tracee.wall_clock_shift = self.shift
        maps = tracee.mappings()
        image = next((one for one in maps if one.path == _MAPPING), None)
        if image is None:
            return
        vdso = tracee.read(image.start, image.end - image.start)
        self._places, code = assembled(WALL_CLOCK)
        try:
            offsets = _telling(vdso)
            start = _whole_instructions(vdso[offsets["clock_gettime"] :])
            base = find_gap(maps, image.start, image.end, len(code))
        except (NotAVdso, LookupError):
            return
        data = self._places["shift"]
        with room_in(tracee.program.argv[0]):
            tracee.map_memory(base, data, executable=True)
            tracee.map_memory(base + data, PAGE_SIZE, executable=False)
        tracee.write(base, code)
        original, behind = base + self._places["original"], image.start + offsets["clock_gettime"] + len(start)
        tracee.write(original, start + _jump(original + len(start), behind))
        tracee.write(base + self._places["given"], _TIME.pack(*divmod(self._given, _SECOND)))
        entries = {name: image.start + offset for name, offset in offsets.items()}
        self._saved = [(at, tracee.read(at, JUMP_BYTES)) for at in sorted(entries.values())]
        tracee.originals.append(lambda: self._saved)
        for name, at in entries.items():
            tracee.write(at, _jump(at, base + self._places[name]))
        self._base = base

    def first(self) -> int:
        """What the program was told first, in nanoseconds; 0: it has not asked. The process has not ended yet."""
        seconds, nanoseconds = self._word("given" if self._given else "told", _TIME)
        return seconds * _SECOND + nanoseconds

    def shift(self) -> int:
        """By how many nanoseconds the program's time of day is later than the node's. Where it has not asked yet: the
        shift by which an answer given now would be the first. The process has not ended yet."""
        (word,) = self._word("shift", _WORD)
        if not word and self._base and self._given:
            return self._given - time.time_ns()
        return (word >> _NANOSECONDS) * _SECOND + (word & (1 << _NANOSECONDS) - 1)

    def _word(self, name: str, form: struct.Struct) -> tuple[int, ...]:
        if not self._base:
            return (0,) * (form.size // _WORD.size)
        return form.unpack(self._tracee.read(self._base + self._places[name], form.size))


def _telling(vdso: bytes) -> dict[str, int]:
    """Offsets of the telling functions. Raises NotAVdso, or LookupError where one is missing."""
    offsets = functions(vdso)
    return {name: offsets[f"__vdso_{name}"] for name in _TELLING}


def _whole_instructions(code: bytes) -> bytes:
    """The first instructions of a function that a jump is written over. Raises LookupError where they cannot be
    executed elsewhere."""
    size = 0
    for instruction in Decoder(64, code[:_LONGEST_START]):
        if instruction.flow_control != FlowControl.NEXT or instruction.is_ip_rel_memory_operand:
            break
        size += instruction.len
        if size >= JUMP_BYTES:
            return code[:size]
    raise LookupError("its first instructions depend on where they are")


def _jump(at: int, to: int) -> bytes:
    return _JUMP + struct.pack("<i", to - (at + JUMP_BYTES))
