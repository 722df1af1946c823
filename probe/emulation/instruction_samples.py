# SPDX-License-Identifier: Apache-2.0
"""Sample which instructions a command's CPU time goes to: perf_event_open(2) by the kernel's task clock.

That needs no hardware counter, and no privilege where perf_event_paranoid is 2 or less. Processes and threads that this
thread starts are followed. Each sample is one instruction; its class is decoded from the file that it was mapped from.
"""

from __future__ import annotations

import functools
import mmap
import os
import platform
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from iced_x86 import Decoder, FlowControl, Instruction, OpKind

from probe.emulation.counting.perf_event import (
    EXCLUDE_HV,
    EXCLUDE_KERNEL,
    INHERIT,
    MMAP,
    MMAP2,
    SOFTWARE,
    TASK,
    opened_event,
)

CLASSES = (
    "vector", "vector_memory", "scalar", "scalar_memory", "branch", "load", "store", "logic", "sum", "product", "other",
)  # fmt: skip
"""Arithmetic on several and on single floating-point numbers, each with an operand in memory or without; branches;
moves from and to memory; shifts and bits; sums, comparisons and addresses of integers; their products; all else."""

_PERIOD = 1_000_000
"""Nanoseconds of CPU time between two samples of a thread."""

_TASK_CLOCK = 1
_IP_TID = 0x1 | 0x2
_FORK, _SAMPLE, _MAPPED = 7, 9, 10
_PAGES = 32
_HEAD = 1024
"""Offset of data_head in a ring's first page; data_tail is behind it."""

_MAPPED_PATH = 64
"""Offset of the path in a record of PERF_RECORD_MMAP2."""

_LONGEST_INSTRUCTION = 15
_BEFORE = 96
_WHOLE = {
    "logic": re.compile(
        r"v?p?(?:and|or|xor)n?[dqps]*|not|test|sh[lr]d?x?|sa[lr]x?|ro[lr]x?|bt[rsc]?|bs[fr]|[lt]zcnt|popcnt"
    ),
    "sum": re.compile(r"add|adc|sub|sbb|cmp|inc|dec|neg|lea|v?padd\w+|v?psub\w+|v?pcmp\w+"),
    "product": re.compile(r"i?mulx?|i?div|v?pmul\w+|v?pmadd\w+"),
}
_FLOATING = re.compile(
    r"v?(?:fn?m(?:add|sub)\d*|add(?:sub)?|sub|mul|div|sqrt|max|min|dp|hadd|hsub|rcp|rsqrt|round|u?comi)([sp])[sd]"
    r"|fi?(?:add|mul|div|sub)r?p?|fsqrt|fsin|fcos|fptan|fpatan|f2xm1|fyl2x|fprem1?"
)


class NoSamples(Exception):
    """Why instructions cannot be sampled here."""


@dataclass
class _Mapping:
    """Executable part of a file in a process."""

    start: int
    end: int
    offset: int
    path: str


class InstructionSamples:
    """Samples of what this thread starts, from now until `close`. Raises NoSamples where there can be none."""

    def __init__(self) -> None:
        self._mapped: dict[int, list[_Mapping]] = {}
        self._seen: Counter[tuple[int, str, int]] = Counter()
        self._files: list[int] = []
        self._buffers: list[mmap.mmap] = []
        if platform.machine() != "x86_64":
            raise NoSamples(f"instructions of {platform.machine()} are not decoded by this version")
        for cpu in sorted(os.sched_getaffinity(0)):
            self._files.append(_opened(cpu))
            try:
                self._buffers.append(mmap.mmap(self._files[-1], (1 + _PAGES) * mmap.PAGESIZE))
            except OSError as error:
                raise NoSamples(f"the kernel gives no memory for samples: {error.strerror}") from error

    def read(self) -> None:
        """Take what has come; to be called several times a second."""
        forks, samples = [], []
        for buffer in self._buffers:
            for kind, record in _records(buffer):
                if kind == _FORK:
                    forks.append(struct.unpack_from("II", record))
                elif kind == _MAPPED:
                    self._map(record)
                elif kind == _SAMPLE:
                    samples.append(struct.unpack_from("QI", record))
        for pid, parent in forks:
            if pid != parent:
                self._mapped.setdefault(pid, [])[:0] = self._mapped.get(parent, [])
        for address, pid in samples:
            path, place = self._place(address, pid)
            self._seen[pid, path, place] += 1

    def forget(self) -> None:
        """Let samples until now not count."""
        self.read()
        self._seen.clear()

    def close(self, *besides: int) -> dict[str, float]:
        """Shares of CLASSES in the samples of all processes but this one and those in `besides`; empty without any.

        Instructions that are in no file (made at run time) do not count.
        """
        self.read()
        self.__del__()
        found: Counter[str] = Counter()
        for (pid, path, place), count in self._seen.items():
            if pid not in (os.getpid(), *besides) and (kind := _class_at(path, place)):
                found[kind] += count
        whole = found.total()
        return {kind: found[kind] / whole for kind in CLASSES} if whole else {}

    def __del__(self) -> None:
        """Also where no command was started after all."""
        buffers, files = self._buffers, self._files
        self._buffers, self._files = [], []
        for buffer in buffers:
            buffer.close()
        for file in files:
            os.close(file)

    def _map(self, record: bytes) -> None:
        pid, _, start, length, offset = struct.unpack_from("IIQQQ", record)
        path = record[_MAPPED_PATH:].split(b"\0", 1)[0].decode(errors="surrogateescape")
        self._mapped.setdefault(pid, []).append(_Mapping(start, start + length, offset, path))

    def _place(self, address: int, pid: int) -> tuple[str, int]:
        """File and offset of an instruction, by the newest mapping of its address; "" where there is none."""
        for one in reversed(self._mapped.get(pid, ())):
            if one.start <= address < one.end:
                return one.path, address - one.start + one.offset
        return "", 0


def _opened(cpu: int) -> int:
    """A descriptor of samples on one processor, of this thread and of what it starts."""
    flags = INHERIT | EXCLUDE_KERNEL | EXCLUDE_HV | MMAP | TASK | MMAP2
    try:
        return opened_event(SOFTWARE, _TASK_CLOCK, flags, pid=0, cpu=cpu, period=_PERIOD, sampled=_IP_TID)
    except OSError as error:
        raise NoSamples(f"the kernel lets nobody sample instructions (perf_event_open: {error.strerror})") from error


def _records(buffer: mmap.mmap) -> Iterator[tuple[int, bytes]]:
    """Kind and contents of the records in a ring that were not taken yet (struct perf_event_mmap_page)."""
    head, tail = struct.unpack_from("QQ", buffer, _HEAD)
    size = _PAGES * mmap.PAGESIZE
    while tail < head:
        kind, _, length = struct.unpack("IHH", _piece(buffer, tail, 8, size))
        yield kind, _piece(buffer, tail + 8, length - 8, size)
        tail += length
    struct.pack_into("Q", buffer, _HEAD + 8, tail)


def _piece(buffer: mmap.mmap, at: int, length: int, size: int) -> bytes:
    begin, page = at % size, mmap.PAGESIZE
    first = min(length, size - begin)
    return buffer[page + begin : page + begin + first] + buffer[page : page + length - first]


@functools.lru_cache(maxsize=1 << 16)
def _class_at(path: str, place: int) -> str:
    """One of CLASSES, of the instruction that ran into a sample there; "" for what is in no file that can be read.

    An interrupt comes when an instruction is done: the time was that of the one before.
    """
    begin = max(0, place - _BEFORE)
    try:
        with open(path, "rb") as file:
            file.seek(begin)
            code = file.read(place - begin + _LONGEST_INSTRUCTION)
    except (OSError, ValueError):
        return ""
    return _class_of(_done(code, place - begin))


def _done(code: bytes, place: int) -> Instruction:
    """The instruction that ends at `place`; the one that begins there, where none is found, or none falls through."""
    # Decoding from anywhere soon meets the true beginnings of instructions.
    decoder = Decoder(64, code[:place])
    last = None
    while decoder.can_decode:
        last = decoder.decode()
        if last.is_invalid:
            decoder.position = min(place, last.next_ip)
    passes = last is not None and not last.is_invalid and last.next_ip == place
    if passes and last is not None and last.flow_control in (FlowControl.NEXT, FlowControl.CONDITIONAL_BRANCH):
        return last
    return Decoder(64, code[place:]).decode()


def _class_of(instruction: Instruction) -> str:
    if instruction.is_invalid:
        return ""
    if instruction.flow_control != FlowControl.NEXT:
        return "branch"
    name = str(instruction).split()[0]
    memory = instruction.op_count > 0 and OpKind.MEMORY in map(instruction.op_kind, range(instruction.op_count))
    if floating := _FLOATING.fullmatch(name):
        return ("vector" if floating[1] == "p" else "scalar") + "_memory" * memory
    if (memory and "mov" in name) or name in ("push", "pop"):
        writes = name == "push" or instruction.op_kind(0) == OpKind.MEMORY
        return "store" if writes else "load"
    return next((kind for kind, names in _WHOLE.items() if names.fullmatch(name)), "other")
