# SPDX-License-Identifier: Apache-2.0
"""Shared memory that nothing but mappings lead to, and signals: a process is made to hold them while it stands."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from programs import build
from tracees import started

import checkpoint.capture.direct
from checkpoint.binary.syscall_names import call_number
from checkpoint.capture import process_facts, shared_memory
from checkpoint.capture.direct import capture_process
from checkpoint.capture.memory_map import Area
from checkpoint.errors import StorageError
from checkpoint.linux import PAGE_SIZE, PTRACE_PEEKSIGINFO
from checkpoint.process.tracee import Tracee
from checkpoint.process.waiting import status_of
from checkpoint.state.shared_memory import SharedMemory

_READ, _BOTH = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
_LOCKED, _LATER = 0x2000, 2
_PAGES = 16


@pytest.fixture
def tracee(builds: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracee]:
    monkeypatch.setattr(shared_memory, "_map_file", lambda _: "nowhere")
    with started(build("shares", builds)) as found:
        yield found


class Held:
    """A memfd of the stopped process, in which every third page has something; its last is a hole."""

    def __init__(self, tracee: Tracee, pages: int = _PAGES) -> None:
        self._tracee, self._pages = tracee, pages
        self._name = tracee.registers().rsp - 4096
        self._file = self._named(b"held\0", "memfd_create", 0)
        tracee.system_call(call_number("ftruncate"), self._file, pages * PAGE_SIZE)
        at = self.map(_BOTH)
        for page in range(0, pages - 1, 3):
            tracee.write(at + page * PAGE_SIZE, bytes([page + 1]) * PAGE_SIZE)
        tracee.system_call(call_number("munmap"), at, pages * PAGE_SIZE)

    def _named(self, name: bytes, call: str, *rest: int, first: tuple[int, ...] = ()) -> int:
        self._tracee.write(self._name, name)
        return self._tracee.system_call(call_number(call), *first, self._name, *rest)

    def map(self, protection: int, flags: int = 0, first: int = 0) -> int:
        size = (self._pages - first) * PAGE_SIZE
        shared = mmap.MAP_SHARED | flags
        return self._tracee.system_call(call_number("mmap"), 0, size, protection, shared, self._file, first * PAGE_SIZE)

    def read_only(self) -> None:
        """Let what is mapped from now on never become writable."""
        path = f"/proc/self/fd/{self._file}\0".encode()
        again = self._named(path, "openat", os.O_RDONLY, 0, first=(2**64 - 100,))
        self.close()
        self._file = again

    def close(self) -> None:
        self._tracee.system_call(call_number("close"), self._file)


def held(tracee: Tracee, folder: Path) -> SharedMemory:
    state = capture_process(tracee, folder, "it").state
    (one,) = (one for one in state.shared if one.name == "/memfd:held")
    return one


def test_what_has_a_writable_mapping_is_read_by_that(tracee: Tracee, tmp_path: Path) -> None:
    made = Held(tracee)
    made.map(_BOTH, first=2)
    made.read_only()
    made.map(_READ)
    made.close()
    found = held(tracee, tmp_path)
    assert not found.refused and found.size == _PAGES * PAGE_SIZE
    assert found.pieces == tuple((page * PAGE_SIZE, 1) for page in range(0, _PAGES - 1, 3))


def test_holes_that_would_be_filled_for_good_are_refused(tracee: Tracee, tmp_path: Path) -> None:
    """Not taken for pages behind the end: that would lose what is before them."""
    made = Held(tracee)
    made.read_only()
    made.map(_READ)
    made.close()
    assert held(tracee, tmp_path).refused == "of which the end cannot be found without filling it (Permission denied)"


@pytest.mark.parametrize("how", ["mlock", "mlockall"])
def test_locked_memory_is_refused(how: str, tracee: Tracee, tmp_path: Path) -> None:
    """A second mapping of it would fill all its holes."""
    made = Held(tracee)
    made.map(_BOTH, _LOCKED if how == "mlock" else 0)
    made.close()
    if how == "mlockall":
        tracee.system_call(call_number("mlockall"), _LATER)
    assert held(tracee, tmp_path).refused == "which is locked in memory (mlock)"


def swap_out(tracee: Tracee, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    """Let mincore(2) say that a page is absent, as it does of one that is swapped out."""
    real = shared_memory._Window._resident

    def resident(self: Any, start: int, size: int) -> Iterator[tuple[int, Any]]:
        for first, flags in real(self, start, size):
            said = flags.copy()
            if size == PAGE_SIZE or len(said) > page:
                said[page if size > PAGE_SIZE else 0] = False
            yield first, said

    monkeypatch.setattr(shared_memory._Window, "_resident", resident)


def test_a_page_that_is_swapped_out_is_not_removed(
    tracee: Tracee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Held(tracee, _PAGES - 3)
    at = made.map(_BOTH)
    last = at + (_PAGES - 4) * PAGE_SIZE
    tracee.write(last, b"kept")
    made.close()
    swap_out(tracee, monkeypatch, _PAGES - 4)
    assert held(tracee, tmp_path).refused == "which is swapped out in part"
    assert tracee.read(last, 4) == b"kept"


def test_swap_that_only_the_second_mapping_shows_is_seen(
    tracee: Tracee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Held(tracee)
    made.map(_BOTH)
    made.close()
    real = shared_memory.read_areas

    def areas(pid: int) -> list[Area]:
        found = real(pid)
        for area in found:
            area.swapped = "held" in area.path
        return found

    monkeypatch.setattr(shared_memory, "read_areas", areas)
    assert held(tracee, tmp_path).refused == "which is swapped out in part"


class Full:
    """A file on a disk that is full."""

    def __init__(self, name: Path) -> None:
        self.name = str(name)

    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("how", ["window", "descriptor"])
def test_a_full_disk_is_said_to_be_full(how: str, tracee: Tracee, tmp_path: Path) -> None:
    made = Held(tracee)
    area = made.map(_BOTH)
    assert area
    out: Any = Full(tmp_path / "out")
    with pytest.raises(StorageError, match=r"cannot write .*out: No space left on device"):
        if how == "window":
            made.close()
            areas = [one for one in shared_memory.read_areas(tracee.pid) if one.start == area]
            shared_memory._Window(tracee, areas).copied(SharedMemory(1, "held"), out, "it")
        else:
            copied_file(out)


def copied_file(out: IO[bytes]) -> SharedMemory:
    file = os.memfd_create("held")
    try:
        os.write(file, b"words")
        return shared_memory._copied_file(SharedMemory(1, "held"), file, out, "it", lambda _: b"")
    finally:
        os.close(file)


def test_what_cannot_be_read_is_refused_by_name(
    tracee: Tracee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Held(tracee).map(_BOTH)

    def pieces(*_: object) -> Iterator[tuple[int, int]]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(shared_memory, "_data", pieces)
    assert held(tracee, tmp_path).refused == "which cannot be read (Input/output error)"


def test_a_timer_that_runs_out_meanwhile_is_no_signal_yet(
    tracee: Tracee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restorer starts it: what is pending besides would come twice."""
    at = tracee.registers().rsp - 4096
    tracee.write(at, bytes(16) + (2).to_bytes(8, "little") + bytes(8))
    tracee.system_call(call_number("setitimer"), 0, at, 0)
    real: Callable[..., Any] = shared_memory.SharedParts.copy

    def copy(self: Any, folder: Path, what: str) -> Any:
        deadline = time.monotonic() + 30
        while not int(status_of(tracee.pid)["ShdPnd"], 16) >> signal.SIGALRM - 1 & 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return real(self, folder, what)

    monkeypatch.setattr(shared_memory.SharedParts, "copy", copy)
    state = capture_process(tracee, tmp_path, "it").state
    assert any(state.timers[0])
    assert not state.queued and signal.SIGALRM not in state.signals.pending


def test_signals_that_the_kernel_tells_one_at_a_time_are_all_read(
    tracee: Tracee, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        os.kill(tracee.pid, signal.SIGRTMIN)
    real = process_facts.ptrace

    def one(request: int, pid: int, address: int = 0, data: int = 0) -> int:
        if request == PTRACE_PEEKSIGINFO:
            process_facts._Peek.from_address(address).count = 1
        return real(request, pid, address, data)

    monkeypatch.setattr(process_facts, "ptrace", one)
    assert [found.number for found in process_facts.queued_signals(tracee.pid)] == [signal.SIGRTMIN] * 3


def test_a_signal_that_comes_while_timers_are_asked_for_is_not_lost(
    tracee: Tracee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = checkpoint.capture.direct.ask_all
    asked = []

    def ask_all(*arguments: Any) -> Any:
        asked.append(real(*arguments))
        if len(asked) == 1:
            os.kill(tracee.pid, signal.SIGUSR1)
        return asked[-1]

    monkeypatch.setattr(checkpoint.capture.direct, "ask_all", ask_all)
    state = capture_process(tracee, tmp_path, "it").state
    assert [one.number for one in state.queued] == [signal.SIGUSR1] and len(asked) == 2
    assert state.signals.pending == (signal.SIGUSR1,)
