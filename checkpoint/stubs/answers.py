# SPDX-License-Identifier: Apache-2.0
"""Answers that repeat: random numbers, the time and what the machine has free are the same in runs that have to agree.

Interpreters and libraries order their tables by random numbers, and simulations start from them; collectors of garbage
choose their sizes by free memory. With other answers no run would repeat another. The functions of the C library and of
libstdc++ that give them become jumps to code of our own (answers.S). What reads files of /dev and /proc, or makes a
system call by itself, is not seen.
"""

from __future__ import annotations

import functools
import hashlib
import io
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from elftools.elf.elffile import ELFFile

from checkpoint.binary.elf import ElfImage, read_image
from checkpoint.binary.sites import JUMP_BYTES
from checkpoint.compiled import ANSWERS
from checkpoint.errors import ProgramNotRunnable
from checkpoint.linux import AT_RANDOM, PAGE_SIZE
from checkpoint.memory_shortage import room_in
from checkpoint.process.maps import MapEntry, find_gap, image_paths, load_bias
from checkpoint.process.tracee import Tracee
from checkpoint.stubs.encode import assembled
from checkpoint.stubs.wall_clock import WallClock

_LIBRARIES = ("libc.so", "libc-2.", "ld-musl-", "libstdc++.so")
_DEVICE = "_ZNSt13random_device9_M_getvalEv"
ANSWERING = ("getrandom", "getentropy", "syscall", "sysinfo", "arc4random", "arc4random_buf", _DEVICE)
"""The functions, as answers.S has them, too; the last is std::random_device's."""
_ERRNO = "__errno_location"
_TABLE = 1 << 18
"""Bytes of random numbers, as answers.S has them, too."""
_AT_RANDOM_BYTES = 16
_JUMP = b"\xe9"
_WORD = struct.Struct("<Q")


class Answers:
    """What was put into one process so that it gets the same answers as in every other run."""

    def __init__(self, tracee: Tracee) -> None:
        self._tracee = tracee
        self._clock = WallClock(tracee)
        self._data = 0
        self._saved: list[tuple[int, bytes]] = []
        self.drawn = 0
        """Bytes of random numbers up to the last `read`."""
        self.began = 0
        """The time that it was told first, up to the last `read`, in nanoseconds of CLOCK_REALTIME; 0: none."""

    def install(self) -> None:
        """At the program's entry point. Without room near the C library, or in a static program, of random numbers the
        kernel's 16 bytes alone (AT_RANDOM) are the same in every run."""
        self._clock.install()
        if at := self._tracee.auxiliary(AT_RANDOM):
            self._tracee.write(at, _numbers(self._tracee.program.seed)[-_AT_RANDOM_BYTES:])
        maps = self._tracee.mappings()
        answering = _functions_in(maps)
        errno_location = answering.pop(_ERRNO, 0)
        if not answering or not errno_location:
            return
        places, code = assembled(ANSWERS)
        try:
            base = find_gap(maps, min(answering.values()), max(answering.values()), len(code) + _TABLE + 2 * PAGE_SIZE)
        except LookupError:
            return
        with room_in(self._tracee.program.argv[0]):
            self._tracee.map_memory(base, places["drawn"], executable=True)
            self._tracee.map_memory(base + places["drawn"], PAGE_SIZE, executable=False)
            # Not for writing: memory that a phase could write counts as its data.
            self._tracee.map_memory(base + places["table"], _TABLE, executable=True)
        self._data = base + places["drawn"]
        self._tracee.write(base, code)
        self._tracee.write(base + places["errno_location"], _WORD.pack(errno_location))
        self._tracee.write(base + places["table"], _numbers(self._tracee.program.seed)[:_TABLE])
        self._saved = [(at, self._tracee.read(at, JUMP_BYTES)) for at in sorted(answering.values())]
        self._tracee.originals.append(lambda: self._saved)
        for name, at in answering.items():
            away = base + places[name] - (at + JUMP_BYTES)
            self._tracee.write(at, _JUMP + struct.pack("<i", away))

    def read(self) -> None:
        """Learn how much was drawn so far, and what time was told. The process has not ended yet."""
        self.began = self._clock.first()
        if self._data:
            self.drawn = min(_TABLE, *_WORD.unpack(self._tracee.read(self._data, _WORD.size)))


def repeat_answers(tracee: Tracee) -> Answers:
    """Give the program, which stands at its entry point, the same answers as in every other run.

    Its children get their own. Raises NodeUnfit where it may have no more memory.
    """
    answers = Answers(tracee)
    answers.install()
    return answers


def not_answering(image: ElfImage, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which link-time addresses of an image lie in none of the functions that become jumps."""
    outside = np.ones(len(offsets), dtype=bool)
    if Path(image.path).name.startswith(_LIBRARIES):
        for start, end in _symbols(image.path, image.sha256).values():
            outside &= (offsets < start) | (offsets >= end)
    return outside


@functools.lru_cache(maxsize=1)
def _numbers(seed: str) -> bytes:
    """Those that the program gets, and the kernel's 16 behind them, by SHAKE256 (FIPS 202): keys that it makes of them
    are as good as others for whoever does not know the seed."""
    return hashlib.shake_256(seed.encode()).digest(_TABLE + _AT_RANDOM_BYTES)


def _functions_in(maps: Sequence[MapEntry]) -> dict[str, int]:
    """Addresses of the answering functions that the mapped libraries have, and of what tells where errno is."""
    found: dict[str, int] = {}
    for path in image_paths(maps):
        if Path(path).name.startswith(_LIBRARIES):
            try:
                image = read_image(path)
                bias = load_bias(image, maps)
            except (ProgramNotRunnable, LookupError):
                continue
            for name, (start, end) in _symbols(path, image.sha256).items():
                if end - start >= JUMP_BYTES:
                    found.setdefault(name, start + bias)
    return found


@functools.lru_cache(maxsize=8)
def _symbols(path: str, sha256: str) -> dict[str, tuple[int, int]]:
    """[start, end) of each of these functions of the file with this checksum, by its link-time addresses."""
    try:
        elf = ELFFile(io.BytesIO(Path(path).read_bytes()))
        section = elf.get_section_by_name(".gnu.hash") or elf.get_section_by_name(".hash")
        named = [] if section is None else [section.get_symbol(name) for name in (*ANSWERING, _ERRNO)]
    except Exception:  # the parser lets nearly anything escape on a damaged file
        return {}
    return {
        str(s.name): (int(s["st_value"]), int(s["st_value"]) + int(s["st_size"]))
        for s in named
        if s is not None and s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["type"] == "STT_FUNC"
    }
