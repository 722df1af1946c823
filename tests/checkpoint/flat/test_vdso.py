# SPDX-License-Identifier: Apache-2.0
"""The vDSO that asks the kernel: its functions found, replaced, and working."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.flat.vdso import NotAVdso, functions, with_system_calls


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
    memory = executable(with_system_calls(VDSO))
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    found = functions(VDSO)
    clock_gettime = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_int, ctypes.POINTER(Timespec))(
        base + found["__vdso_clock_gettime"]
    )
    at = Timespec()
    before = time.monotonic_ns()
    assert clock_gettime(time.CLOCK_MONOTONIC, ctypes.byref(at)) == 0
    assert before <= at.seconds * 10**9 + at.nanoseconds <= time.monotonic_ns()
    now = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(base + found["__vdso_time"])(None)
    assert abs(now - time.time()) <= 1
    cpu = ctypes.c_uint(10**6)
    getcpu = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.POINTER(ctypes.c_uint), ctypes.c_void_p, ctypes.c_void_p)
    assert getcpu(base + found["__vdso_getcpu"])(ctypes.byref(cpu), None, None) == 0
    assert cpu.value in range(os.cpu_count() or 1)


def test_what_is_no_plain_system_call_says_that_it_is_not_there() -> None:
    unknown = {name: at for name, at in functions(VDSO).items() if "sgx" in name}
    memory = executable(with_system_calls(VDSO))
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for offset in unknown.values():
        assert ctypes.CFUNCTYPE(ctypes.c_int)(base + offset)() == -38


def test_random_bytes_come_and_the_layout_of_their_state_does_not() -> None:
    offset = functions(VDSO).get("__vdso_getrandom")
    if offset is None:
        pytest.skip("this kernel's vDSO has no getrandom")
    memory = executable(with_system_calls(VDSO))
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_void_p, ctypes.c_size_t
    )
    buffer = ctypes.create_string_buffer(32)
    assert kind(base + offset)(ctypes.addressof(buffer), 32, 0, None, 144) == 32
    assert buffer.raw != bytes(32)
    assert kind(base + offset)(None, 0, 0, None, 2**64 - 1) == -38


def test_nothing_but_the_functions_is_changed() -> None:
    changed = with_system_calls(VDSO)
    starts = functions(VDSO).values()
    assert len(changed) == len(VDSO)
    for at, (old, new) in enumerate(zip(VDSO, changed, strict=True)):
        assert old == new or any(start <= at < start + 20 for start in starts)


@given(st.integers(0, len(VDSO) - 1), st.integers(0, 255))
def test_a_damaged_vdso_is_read_or_refused(at: int, value: int) -> None:
    data = bytearray(VDSO)
    data[at] = value
    with contextlib.suppress(NotAVdso):
        with_system_calls(bytes(data))


@pytest.mark.parametrize("data", [b"", b"\x7fELF", bytes(8192), VDSO[:200], b"\x7fELF\x01" + VDSO[5:]])
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(NotAVdso):
        with_system_calls(data)
