# SPDX-License-Identifier: Apache-2.0
"""Time one counting loop with its counter near its code, far from it, and on a page of its own.

A store close to code that runs looks like self-modifying code to the processor, which then empties its pipeline. How
close differs: within a cache line on some processors, within a page on others.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import time

ROUNDS = 2_000_000
REPEATS = 5
_PAGE = mmap.PAGESIZE
_PLACES = {"same_line_ns": 32, "same_page_ns": _PAGE // 2, "own_page_ns": _PAGE}


def _loop(counter: int) -> bytes:
    """void loop(unsigned rounds), to be placed at 0: counts in the 8 bytes at `counter`."""
    before = bytes.fromhex("89f9")  # mov ecx, edi
    step = bytes.fromhex("48ff05") + struct.pack("<i", counter - len(before) - 7)  # inc qword [rip + ...]
    return before + step + bytes.fromhex("ffc9 75f5 c3")  # dec ecx; jnz step; ret


def _nanoseconds(counter: int) -> float:
    """Per round, the least of some repeats."""
    memory = mmap.mmap(-1, 2 * _PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code = _loop(counter)
    memory[: len(code)] = code
    view = ctypes.c_char.from_buffer(memory)
    call = ctypes.CFUNCTYPE(None, ctypes.c_uint)(ctypes.addressof(view))
    times = []
    for _ in range(REPEATS):
        begun = time.thread_time_ns()
        call(ROUNDS)
        times.append((time.thread_time_ns() - begun) / ROUNDS)
    counted = struct.unpack_from("<q", memory, counter)[0]
    del call, view
    if counted != REPEATS * ROUNDS:
        raise RuntimeError(f"the loop counted {counted} instead of {REPEATS * ROUNDS}")
    return min(times)


def compare() -> dict[str, float | str]:
    """Nanoseconds per execution by the counter's distance from the code."""
    return {"name": "counter-page", **{name: _nanoseconds(offset) for name, offset in _PLACES.items()}}
