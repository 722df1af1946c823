# SPDX-License-Identifier: Apache-2.0
"""Deleted files in memory that may have another name: shared memory only where they have none."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_outside import holding

from checkpoint.capture.memory_map import Area, read_areas
from checkpoint.process import descriptors, maps
from checkpoint.process.descriptors import outside
from probe.tracers import outside_looks
from probe.tracers.outside_looks import LASTING_SECONDS, OutsideLooks

_MEMORY = Path("/dev/shm")
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def semaphore(folder: Path, *, unlinked: bool) -> Iterator[tuple[list[str], list[Area]]]:
    """What is said of a process that has opened a new semaphore: what it holds, and its mappings of that."""
    name = f"/probe-test-{os.getpid()}"
    opened = f"libc.sem_open({name.encode()!r}, {os.O_CREAT}, 0o600, 1)"
    expression = f"[{opened}, libc.sem_unlink({name.encode()!r})]" if unlinked else opened
    try:
        with holding(expression, folder) as pid:
            yield outside(pid), [area for area in read_areas(pid) if area.path.startswith("/dev/shm/sem.")]
    finally:
        _libc.sem_unlink(name.encode())


def test_a_semaphore_with_a_name_is_refused(tmp_path: Path) -> None:
    with semaphore(tmp_path, unlinked=False) as (said, (area,)):
        assert [fault for fault in said if "/dev/shm/sem." in fault and "mapped shared and writable" in fault]
        assert not area.as_memory


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may ask a mapping")
def test_a_semaphore_without_a_name_is_shared_memory(tmp_path: Path) -> None:
    with semaphore(tmp_path, unlinked=True) as (said, (area,)):
        assert said == [] and area.as_memory


def test_what_cannot_be_asked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user who is not root: no descriptor leads to a semaphore."""
    real = maps.os.stat

    def stat(path: str, **more: bool) -> os.stat_result:
        if "/map_files/" in str(path):
            raise PermissionError(path)
        return real(path, **more)

    monkeypatch.setattr(maps.os, "stat", stat)
    with semaphore(tmp_path, unlinked=True) as (said, (area,)):
        assert [fault for fault in said if "mapped shared and writable" in fault] and not area.as_memory


@pytest.mark.parametrize(("name", "its_own"), [("it.{pid}", True), ("it.{pid}0", False), ("it", False)])
def test_a_name_with_the_number_of_its_process_is_its_own(name: str, its_own: bool, tmp_path: Path) -> None:
    """As of Mono's counters: nobody else comes upon it."""
    path = f"{_MEMORY}/probe-test-{os.getpid()}-{name.format(pid='%d')}"
    size = f"os.ftruncate(os.open(path, {os.O_RDWR | os.O_CREAT}), 4096)"
    opened = f"[path := {path!r} % ((os.getpid(),) if '%' in {path!r} else ()), {size}, "
    try:
        with holding(f"{opened}mmap.mmap(os.open(path, {os.O_RDWR}), 4096)]", tmp_path) as pid:
            (area,) = (area for area in read_areas(pid) if area.path.startswith(str(_MEMORY)))
            assert area.as_memory == its_own
            assert any("mapped shared and writable" in fault for fault in outside(pid)) == (not its_own)
    finally:
        for left in _MEMORY.glob(f"probe-test-{os.getpid()}-*"):
            left.unlink()


def test_who_has_it_open_by_a_living_name_is_seen(tmp_path: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=_MEMORY) as file, holding(f"open({file.name!r})", tmp_path) as pid:
        status = os.fstat(file.fileno())
        assert maps.held_by_others(os.getpid(), {(status.st_dev, status.st_ino)}) == {
            (status.st_dev, status.st_ino): pid
        }


def test_another_process_at_each_look_is_the_same_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = OutsideLooks("it", 0.0)
    for second in range(9):
        fault = f"shared memory at 0x1000-0x2000{descriptors.OTHER}process {second} (a) has too"
        monkeypatch.setattr(outside_looks, "outside", lambda _, fault=fault: [fault])
        if second < LASTING_SECONDS:
            looks.look(1, float(second))
    with pytest.raises(descriptors.ProgramUnsupported, match="which process 8"):
        looks.look(1, LASTING_SECONDS)


def test_looks_take_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    looked = []

    def slow(_: int) -> list[str]:
        looked.append(clock[0])
        clock[0] += 0.2
        return []

    monkeypatch.setattr(outside_looks, "outside", slow)
    monkeypatch.setattr(outside_looks.time, "monotonic", lambda: clock[0])
    looks = OutsideLooks("it", 0.0)
    while clock[0] < 100:
        looks.look(1, clock[0])
        clock[0] += 0.1
    assert 10 <= len(looked) <= 13
