# SPDX-License-Identifier: Apache-2.0
"""Shared memory and signals that direct capture cannot hold: each refused with its reason."""

from __future__ import annotations

import mmap
import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from programs import build
from regions import captured_regions

import checkpoint.capture.direct
from checkpoint.capture import shared_memory
from checkpoint.capture.memory_map import Area, read_areas
from checkpoint.capture.process_facts import queued_signals
from checkpoint.capture.stored import read_state
from checkpoint.errors import ProgramUnsupported
from checkpoint.flat.convert import flatten
from checkpoint.flat.descriptors import NotFlat
from checkpoint.flat.image import MOST_OBJECTS, MOST_PENDING
from checkpoint.linux import PAGE_SIZE, PTRACE_DETACH, PTRACE_INTERRUPT, PTRACE_SEIZE
from checkpoint.process.ptrace import ptrace
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.state.process_state import ProcessState
from checkpoint.state.shared_memory import QueuedSignal, SharedMemory

_SIGPENDING = 11


@pytest.fixture(scope="module")
def job(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> RestoreJob:
    folder = tmp_path_factory.mktemp("memfd") / "work"
    (job,) = captured_regions(build("shares", builds), "memfd", folder=folder, direct=True)
    return job


@pytest.mark.parametrize("what", ["shared", "queued"])
def test_more_than_the_restorer_makes_is_refused(what: str, job: RestoreJob) -> None:
    state = read_state(job.images)
    more: dict[str, ProcessState] = {
        "shared": replace(state, shared=(*state.shared, *[SharedMemory(99, "")] * MOST_OBJECTS)),
        "queued": replace(state, queued=(QueuedSignal(True, bytes(128)),) * (MOST_PENDING + 1)),
    }
    with pytest.raises(NotFlat, match=f"where at most {MOST_OBJECTS if what == 'shared' else MOST_PENDING} are"):
        flatten(more[what], [job.warm_event])


def test_what_is_swapped_out_cannot_be_told_from_holes(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped(pid: int) -> list[Area]:
        areas = read_areas(pid)
        for area in areas:
            area.swapped = area.is_shared
        return areas

    monkeypatch.setattr(checkpoint.capture.direct, "read_areas", swapped)
    monkeypatch.setattr(shared_memory, "_map_file", lambda _: "nowhere")
    with pytest.raises(ProgramUnsupported, match=r"shared memory at 0x\S+, which is swapped out in part"):
        captured_regions(build("shares", builds), "anonymous", folder=tmp_path / "work", direct=True)


def test_a_private_mapping_shows_no_shared_memory(tmp_path: Path) -> None:
    area = Area(0, PAGE_SIZE, "rw-p", 0, 7, "/memfd:made (deleted)")
    window = shared_memory._Window(cast(Any, None), [area])
    with (tmp_path / "out").open("wb") as out:
        said = window.copied(SharedMemory(1, "/memfd:made"), out, "it")
    assert said.refused == "which is mapped privately alone"


def test_huge_pages_are_refused(tmp_path: Path) -> None:
    file = os.memfd_create("huge", os.MFD_HUGETLB)
    try:
        with (tmp_path / "out").open("wb") as out:
            said = shared_memory._copied_file(SharedMemory(1, "/memfd:huge"), file, out, "it", lambda _: b"")
    finally:
        os.close(file)
    assert said.refused == "which has huge pages (hugetlb)"


def test_a_queue_that_is_too_long_is_read_beyond_what_is_sent_again() -> None:
    """Nothing is lost in silence: one signal too many is seen, and refused."""
    seen = queued_by_a_child(MOST_PENDING + 100)
    assert len(seen) > MOST_PENDING
    few = queued_by_a_child(70)
    assert [one.number for one in few] == [signal.SIGRTMIN] * 70 and not any(one.to_thread for one in few)


def queued_by_a_child(count: int) -> Sequence[QueuedSignal]:
    """What is seen of a process that has sent itself so many signals."""
    if resource.getrlimit(_SIGPENDING)[0] <= count:
        pytest.skip("this user may not have so many pending signals")
    ready = mmap.mmap(-1, PAGE_SIZE)
    child = os.fork()
    if not child:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
            for _ in range(count):
                os.kill(os.getpid(), signal.SIGRTMIN)
        finally:
            ready[0] = 1
            signal.pause()
            os._exit(1)
    try:
        while not ready[0]:
            pass
        ptrace(PTRACE_SEIZE, child)
        ptrace(PTRACE_INTERRUPT, child)
        os.waitpid(child, 0)
        found = list(queued_signals(child))
        ptrace(PTRACE_DETACH, child)
        return found
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
