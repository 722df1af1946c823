# SPDX-License-Identifier: Apache-2.0
"""The vDSO that asks the kernel: its functions found, replaced, and working."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.binary.vdso import NotAVdso, functions
from checkpoint.flat.vdso import with_system_calls

# time() counts in the kernel's ticks: it may name the second before for as long as a tick.
TICK = 0.02  # seconds; twice the longest


def own_vdso() -> bytes:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("[vdso]"):
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            with Path("/proc/self/mem").open("rb") as memory:
                memory.seek(start)
                return memory.read(end - start)
    raise AssertionError("this kernel gives no vDSO")


VDSO = own_vdso()


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def executable(image: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(image), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(image)
    return memory


def test_the_functions_that_a_c_library_asks_for_are_found() -> None:
    found = functions(VDSO)
    assert {"__vdso_clock_gettime", "__vdso_gettimeofday", "__vdso_time", "__vdso_getcpu"} <= found.keys()
    assert all(0 < offset < len(VDSO) for offset in found.values())


def test_replaced_functions_work_without_the_kernels_data_pages() -> None:
    memory = executable(with_system_calls(VDSO)[0])
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    found = functions(VDSO)
    clock_gettime = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_int, ctypes.POINTER(Timespec))(
        base + found["__vdso_clock_gettime"]
    )
    at = Timespec()
    before = time.monotonic_ns()
    assert clock_gettime(time.CLOCK_MONOTONIC, ctypes.byref(at)) == 0
    assert before <= at.seconds * 10**9 + at.nanoseconds <= time.monotonic_ns()
    earliest = int(time.time() - TICK)
    now = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(base + found["__vdso_time"])(None)
    assert earliest <= now <= time.time()
    cpu = ctypes.c_uint(10**6)
    getcpu = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.POINTER(ctypes.c_uint), ctypes.c_void_p, ctypes.c_void_p)
    assert getcpu(base + found["__vdso_getcpu"])(ctypes.byref(cpu), None, None) == 0
    assert cpu.value in range(os.cpu_count() or 1)


def test_what_is_no_plain_system_call_says_that_it_is_not_there() -> None:
    unknown = {name: at for name, at in functions(VDSO).items() if "sgx" in name}
    memory = executable(with_system_calls(VDSO)[0])
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for offset in unknown.values():
        assert ctypes.CFUNCTYPE(ctypes.c_int)(base + offset)() == -38


def test_random_bytes_come_and_the_layout_of_their_state_does_not() -> None:
    offset = functions(VDSO).get("__vdso_getrandom")
    if offset is None:
        pytest.skip("this kernel's vDSO has no getrandom")
    memory = executable(with_system_calls(VDSO)[0])
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_void_p, ctypes.c_size_t
    )
    buffer = ctypes.create_string_buffer(32)
    assert kind(base + offset)(ctypes.addressof(buffer), 32, 0, None, 144) == 32
    assert buffer.raw != bytes(32)
    assert kind(base + offset)(None, 0, 0, None, 2**64 - 1) == -38


def test_nothing_but_the_functions_is_changed() -> None:
    changed, _ = with_system_calls(VDSO)
    starts = functions(VDSO).values()
    assert len(changed) == len(VDSO)
    for at, (old, new) in enumerate(zip(VDSO, changed, strict=True)):
        assert old == new or any(start <= at < start + 20 for start in starts)


NUMBERS = (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME, time.CLOCK_PROCESS_CPUTIME_ID,
           time.CLOCK_THREAD_CPUTIME_ID, time.CLOCK_MONOTONIC_RAW, time.CLOCK_TAI)  # fmt: skip
SAME = {time.CLOCK_REALTIME: (5,), time.CLOCK_MONOTONIC: (6,)}
"""Coarse clocks go as the fine ones do."""
TICK, BUSY = 10**7, 20 * 10**9
"""Nanoseconds that a coarse clock may lag, and that a busy machine may need between two looks."""


def going_on(clocks: list[int]) -> tuple[mmap.mmap, int, dict[str, int]]:
    """A vDSO whose table has these, as the restorer leaves it: its memory, its address, and where its functions are."""
    image, table = with_system_calls(VDSO, clocks)
    assert table, "no room in this kernel's vDSO"
    memory = executable(image)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return memory, base, functions(VDSO)


def told(base: int, offset: int, clock: int) -> int:
    at = Timespec()
    assert ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_int, ctypes.POINTER(Timespec))(base + offset)(clock, at) == 0
    assert 0 <= at.nanoseconds < 10**9
    return at.seconds * 10**9 + at.nanoseconds


@given(st.lists(st.integers(-(10**18), 10**18), min_size=len(NUMBERS), max_size=len(NUMBERS)))
def test_each_clock_is_told_with_its_own_difference(differences: list[int]) -> None:
    _memory, base, at = going_on(differences)
    for number, difference in zip(NUMBERS, differences, strict=True):
        for clock in (number, *SAME.get(number, ())):
            now = time.clock_gettime_ns(number)
            assert -TICK <= told(base, at["__vdso_clock_gettime"], clock) - difference - now < BUSY


def test_time_of_day_goes_on_in_all_its_forms() -> None:
    back = -1_000_000 * 10**9 - 999_999_999
    _memory, base, at = going_on([back] + [0] * 6)
    expected = (time.time_ns() + back) / 1e9
    gettimeofday = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.POINTER(Timespec), ctypes.c_void_p)(
        base + at["__vdso_gettimeofday"]
    )
    zone = (ctypes.c_int * 2)(77, 77)
    for second in (None, ctypes.addressof(zone)):
        seen = Timespec()
        assert gettimeofday(seen, second) == 0
        assert abs(seen.seconds + seen.nanoseconds / 1e6 - expected) < 5 and seen.nanoseconds < 10**6
    assert list(zone) != [77, 77]
    assert gettimeofday(None, None) == 0
    stored = ctypes.c_long()
    kind = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)
    assert kind(base + at["__vdso_time"])(ctypes.addressof(stored)) == stored.value
    assert abs(stored.value - expected) < 5 and kind(base + at["__vdso_time"])(None) - stored.value in (0, 1)


NODE = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_int, ctypes.POINTER(Timespec))


def test_the_nodes_function_is_asked_in_place_of_the_kernel() -> None:
    """With all arguments, and with its answer where it refuses; registers are the callee's, as in any C function."""
    asked = []

    @NODE
    def node(clock: int, to: Any) -> int:
        asked.append(clock)
        to[0] = Timespec(1000, 999_999_999)
        return -22 if clock == 3 else 0

    image, table = with_system_calls(VDSO, [7 * 10**9 + 1] * 7)
    changed = bytearray(image)
    struct.pack_into("<Q", changed, table + 16 * 8, ctypes.cast(node, ctypes.c_void_p).value or 0)
    memory = executable(bytes(changed))
    base, at = ctypes.addressof(ctypes.c_char.from_buffer(memory)), functions(VDSO)
    assert told(base, at["__vdso_clock_gettime"], 1) == 1008 * 10**9 and asked == [1]
    assert NODE(base + at["__vdso_clock_gettime"])(3, Timespec()) == -22
    day, stored = Timespec(), ctypes.c_long()
    both = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    assert both(base + at["__vdso_gettimeofday"])(ctypes.addressof(day), None) == 0
    assert (day.seconds, day.nanoseconds) == (1008, 0)
    assert both(base + at["__vdso_time"])(ctypes.addressof(stored), None) == stored.value == 1008
    assert asked == [1, 3, 0, 0]


def test_clocks_of_others_and_wrong_numbers_are_the_kernels() -> None:
    _memory, base, at = going_on([10**15] * 7)
    own = ~os.getpid() << 3 | 2
    before = time.clock_gettime_ns(own)
    assert before <= told(base, at["__vdso_clock_gettime"], own) <= time.clock_gettime_ns(own)
    call = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_int, ctypes.POINTER(Timespec))(base + at["__vdso_clock_gettime"])
    assert call(99, Timespec()) < 0


def test_without_room_the_clocks_are_the_kernels() -> None:
    data = bytearray(VDSO)
    (table,), (count,) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<H", data, 60)
    for at in range(table, table + 64 * count, 64):
        struct.pack_into("<Q", data, at + 32, 100)
    assert with_system_calls(bytes(data), [0] * 7) == with_system_calls(bytes(data))
    assert with_system_calls(VDSO, [0] * 5) == with_system_calls(VDSO)


@pytest.mark.parametrize("sections", [b"\0\0", b"\xff\xff"])
def test_an_image_without_sections_has_room_between_its_functions(sections: bytes) -> None:
    data = bytearray(VDSO)
    data[60:62] = sections
    image, table = with_system_calls(bytes(data), [0] * 7)
    starts = sorted(functions(VDSO).values())
    assert starts[0] < table < starts[-1] and len(image) == len(VDSO)


def test_room_is_in_the_code_and_touches_no_function() -> None:
    image, table = with_system_calls(VDSO, [0] * 7)
    starts = functions(VDSO).values()
    changed = [at for at, (old, new) in enumerate(zip(VDSO, image, strict=True)) if old != new]
    far = [at for at in changed if not any(start <= at < start + 21 for start in starts)]
    assert far and far[-1] - far[0] < 344 and table <= far[-1] + 136
    assert not any(far[0] - 21 < start <= far[-1] for start in starts)


@given(st.integers(0, len(VDSO) - 1), st.integers(0, 255))
def test_a_damaged_vdso_is_read_or_refused(at: int, value: int) -> None:
    data = bytearray(VDSO)
    data[at] = value
    with contextlib.suppress(NotAVdso):
        assert len(with_system_calls(bytes(data), [0] * 7)[0]) == len(VDSO)


@pytest.mark.parametrize("data", [b"", b"\x7fELF", bytes(8192), VDSO[:200], b"\x7fELF\x01" + VDSO[5:]])
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(NotAVdso):
        with_system_calls(data)
