# SPDX-License-Identifier: Apache-2.0
"""The page map of mappings with few pages: the kernel's own search finds what reading every entry finds."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint import page_table
from checkpoint.linux import PAGE_SIZE
from checkpoint.page_table import PageTable

PAGES = 1 << 17
TERABYTE = 1 << 40
MAP_NORESERVE = 0x4000


@contextmanager
def reserved(size: int) -> Iterator[tuple[mmap.mmap, int]]:
    """Anonymous memory of so many bytes, and its address."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    view = np.frombuffer(memory, dtype=np.uint8)
    address = int(view.ctypes.data)
    del view
    try:
        yield memory, address
    finally:
        memory.close()


def pages_of(start: int, end: int) -> list[int]:
    with PageTable(os.getpid()) as table:
        own, there = (numbers(found, start) for found in (table.own_pages(start, end), table.present(start, end)))
    assert own == there
    return own


def numbers(stretches: Iterator[tuple[int, int]], start: int) -> list[int]:
    return [(address - start) // PAGE_SIZE + n for address, count in stretches for n in range(count)]


@settings(max_examples=40, deadline=None)
@given(touched=st.sets(st.one_of(st.integers(0, PAGES - 1), st.integers(0, 3000), st.integers(PAGES - 5, PAGES - 1))))
def test_every_page_is_found(touched: set[int]) -> None:
    with reserved(PAGES * PAGE_SIZE) as (memory, start):
        for page in touched:
            memory[page * PAGE_SIZE] = 1
        assert pages_of(start, start + PAGES * PAGE_SIZE) == sorted(touched)


def test_more_stretches_than_are_asked_for_at_once() -> None:
    touched = list(range(0, PAGES, 16))
    assert len(touched) > page_table._REGIONS
    with reserved(PAGES * PAGE_SIZE) as (memory, start):
        for page in touched:
            memory[page * PAGE_SIZE] = 1
        assert pages_of(start, start + PAGES * PAGE_SIZE) == touched


def test_more_islands_than_the_kernel_finds_at_once() -> None:
    """Of 700 it says that it got to the 512th, and has found them all."""
    touched = [1024 * n for n in range(700)]
    with reserved(1024 * 1024 * PAGE_SIZE) as (memory, start):
        for page in touched:
            memory[page * PAGE_SIZE] = 1
        assert pages_of(start, start + 1024 * 1024 * PAGE_SIZE) == touched


@pytest.mark.parametrize("refused", [1, 2])
def test_kernels_that_know_no_search(refused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(file: int, operation: int, arguments: bytearray) -> int:
        asked.append(operation)
        if len(asked) <= refused:
            raise OSError(22, "Invalid argument")
        return fcntl_ioctl(file, operation, arguments)

    fcntl_ioctl = fcntl.ioctl
    monkeypatch.setattr(page_table.fcntl, "ioctl", refuse)
    with reserved(PAGES * PAGE_SIZE) as (memory, start):
        memory[77 * PAGE_SIZE] = 1
        with PageTable(os.getpid()) as table:
            assert list(table.own_pages(start, start + PAGES * PAGE_SIZE)) == [(start + 77 * PAGE_SIZE, 1)]
    assert len(asked) == 2


def test_of_a_program_that_was_replaced_meanwhile_nothing_is_told() -> None:
    words = ["/bin/sh", "-c", "read line; exec cat"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process, PageTable(process.pid) as table:
        assert process.stdin is not None
        assert not len(table.present_pages(PAGE_SIZE, 3))
        process.stdin.write(b"\n")
        process.stdin.flush()
        while Path(f"/proc/{process.pid}/comm").read_text() != "cat\n":
            time.sleep(0.01)
        with pytest.raises(OSError, match="is gone"):
            table.present_pages(PAGE_SIZE, 3)
        process.stdin.close()


def test_a_terabyte_of_addresses_takes_no_time() -> None:
    """As Haskell's runtime reserves them: reading every entry took ten seconds."""
    with reserved(TERABYTE) as (memory, start):
        with PageTable(os.getpid()) as table:
            assert list(table.present(start, start + PAGES * PAGE_SIZE)) == []
            searches = bool(table._kinds)
        memory[TERABYTE // 2] = 1
        begun = time.process_time()
        assert pages_of(start, start + TERABYTE) == [TERABYTE // 2 // PAGE_SIZE]
        # Before Linux 6.7 every entry is read.
        assert time.process_time() - begun < (1 if searches else 120)
