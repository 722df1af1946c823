# SPDX-License-Identifier: Apache-2.0
"""Let a restored program's clocks go on from where they were, and refuse tables that would be written elsewhere."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from direct_runs import flat_job, refuse_calls, report_of
from direct_state import timed
from programs import build
from regions import captured_regions

from checkpoint.binary.syscall_names import call_number
from checkpoint.capture.stored import read_state, write_state
from checkpoint.compiled import restorer
from checkpoint.errors import PhaseFailed
from checkpoint.flat.control import Option
from checkpoint.flat.image import NAME, FlatImage, Header, checksum, decode, encode
from checkpoint.flat.vdso import _GOING_ON, CLOCKS
from checkpoint.linux import PAGE_SIZE
from checkpoint.restore import recorded_calls
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.recorded_calls import record_calls
from checkpoint.restore.watched_phase import confined
from probe.pipeline.flatten import flatten_phases

FAILED, TABLE = 1, 6
A_DAY, LATER = 86_400 * 10**9, 5.5


def captured(scenario: str, builds: Path, folder: Path, *more: str) -> RestoreJob:
    (job,) = captured_regions(build("clocks", builds), scenario, *more, folder=folder, direct=True)
    return job


def with_clocks(job: RestoreJob, clocks: tuple[int, ...]) -> None:
    write_state(replace(read_state(job.images), clocks=clocks))


def noted(flat: FlatImage) -> bool:
    """Whether the image's clocks go on, and are not the node's."""
    ((start, data),) = [(start, data) for start, data in flat.patches if start <= flat.clocks < start + len(data)]
    return any(data[flat.clocks - start :][: 16 * CLOCKS])


def clock_calls(job: RestoreJob, flat: FlatImage, folder: Path) -> int:
    """System calls for the time that the region makes."""
    calls = record_calls(job, flat, read_state(job.images).pages_image, restorer(), scratch=folder)
    return calls.counts.get(call_number("clock_gettime"), 0)


def test_every_clock_goes_on_from_where_it_was(builds: Path, tmp_path: Path) -> None:
    job = captured("read", builds, tmp_path / "work")
    flat_job(job, tmp_path, watched=False)
    time.sleep(LATER)
    timed(job, tmp_path)


@pytest.mark.parametrize("clock", range(CLOCKS))
@pytest.mark.parametrize("days", [-1, 400])
def test_each_is_told_by_the_state(clock: int, days: int, builds: Path, tmp_path: Path) -> None:
    """With one of them wrong the program sees it."""
    job = captured("read", builds, tmp_path / "work")
    clocks = list(read_state(job.images).clocks)
    assert len(clocks) == CLOCKS and min(clocks) > 0
    clocks[clock] = max(0, clocks[clock] + days * A_DAY)
    with_clocks(job, tuple(clocks))
    flat_job(job, tmp_path, watched=False)
    with pytest.raises(PhaseFailed):
        timed(job, tmp_path)


def test_without_clocks_the_program_would_see_the_nodes(builds: Path, tmp_path: Path) -> None:
    job = captured("read", builds, tmp_path / "work")
    with_clocks(job, ())
    assert not noted(flat_job(job, tmp_path, watched=False))
    time.sleep(LATER)
    with pytest.raises(PhaseFailed):
        timed(job, tmp_path)


def test_who_waits_until_a_time_gets_the_nodes_clocks(builds: Path, tmp_path: Path) -> None:
    """The kernel wakes by its own: a time of the program's would be long past, or far away."""
    job = captured("deadline", builds, tmp_path / "work")
    flat = flat_job(job, tmp_path, watched=False)
    assert noted(flat)
    calls = record_calls(job, flat, read_state(job.images).pages_image, restorer(), scratch=tmp_path)
    assert calls.deadlines
    (made,) = flatten_phases([(job, ())], folder=tmp_path, cpu=None, progress=lambda _: None)
    assert not made.refused and not noted(decode(job.images / NAME))
    assert timed(job, tmp_path).wall >= 0.02


def test_where_not_all_calls_are_seen_there_may_be_a_wait(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = captured("read", builds, tmp_path / "work")
    flat = flat_job(job, tmp_path, watched=False)
    pages = read_state(job.images).pages_image
    assert not record_calls(job, flat, pages, restorer(), scratch=tmp_path).deadlines
    monkeypatch.setattr("checkpoint.restore.recorded_calls.MOST_CALLS", 3)
    assert record_calls(job, flat, pages, restorer(), scratch=tmp_path).deadlines


def test_a_wait_that_does_not_end_gets_the_nodes_clocks(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = captured("deadline", builds, tmp_path / "work")
    clocks = read_state(job.images).clocks
    with_clocks(job, tuple(clock + A_DAY for clock in clocks))
    monkeypatch.setattr("checkpoint.restore.recorded_calls.region_limit", lambda _: 1.0)
    monkeypatch.setattr("checkpoint.restore.recorded_calls.RESTORE_SECONDS", 1.0)
    (made,) = flatten_phases([(job, ())], folder=tmp_path, cpu=None, progress=lambda _: None)
    assert not made.refused and not noted(decode(job.images / NAME))


@pytest.mark.parametrize("own", [True, False], ids=["go on", "node's"])
def test_the_time_is_read_by_the_nodes_vdso(own: bool, builds: Path, tmp_path: Path) -> None:
    """A system call takes some ten times as long."""
    job = captured("often", builds, tmp_path / "work")
    if not own:
        with_clocks(job, ())
    flat = flat_job(job, tmp_path, watched=False)
    assert noted(flat) == own
    assert clock_calls(job, flat, tmp_path) == 0
    timed(job, tmp_path)


def test_looks_at_the_nodes_vdso_are_looks_at_the_programs(builds: Path, tmp_path: Path) -> None:
    job = captured("often", builds, tmp_path / "work", "3000000")
    flat = flat_job(job, tmp_path, watched=False)
    calls = record_calls(job, flat, read_state(job.images).pages_image, restorer(), scratch=tmp_path)
    ((start, _),) = flat.patches
    assert calls.seen.get(start) and all(abs(at - flat.header.park) > 1 << 30 for at in calls.seen)


def test_an_image_of_version_6_makes_system_calls(builds: Path, tmp_path: Path) -> None:
    """Its table has no room for the address of anything of the node's."""
    job = captured("often", builds, tmp_path / "work")
    flat = flat_job(job, tmp_path, watched=False)
    flat.header.version = 6
    (job.images / NAME).write_bytes(encode(flat))
    assert decode(job.images / NAME).header.version == 6
    assert clock_calls(job, flat, tmp_path) == 20_002
    time.sleep(LATER)
    timed(job, tmp_path)


def test_looks_do_not_find_where_calls_return(builds: Path, tmp_path: Path) -> None:
    """Nearly all would, in a region that does little between its calls: it waits there for its watcher."""
    job = captured("often", builds, tmp_path / "work")
    flat = flat_job(job, tmp_path, watched=False)
    flat.header.version = 6
    (job.images / NAME).write_bytes(encode(flat))
    ((start, data),) = flat.patches
    calls = record_calls(job, flat, read_state(job.images).pages_image, restorer(), scratch=tmp_path)
    call = bytes.fromhex("b8e40000000f05")
    returned = start + data.index(call, flat.clocks - start - len(_GOING_ON)) + len(call)
    assert sum(calls.counts.values()) > 20_000 and returned < flat.clocks and returned not in calls.seen


def test_who_steps_through_a_region_finds_system_calls(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = captured("often", builds, tmp_path / "work")
    flat = flat_job(job, tmp_path, watched=False)
    monkeypatch.setattr(recorded_calls, "confined", lambda spec, folder: confined(spec, folder) | Option.ASK_KERNEL)
    assert clock_calls(job, flat, tmp_path) == 20_002


def test_a_node_without_a_vdso_is_asked_by_system_calls(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one used that cannot be moved: the filter refuses what would."""
    job = captured("often", builds, tmp_path / "work")
    flat = flat_job(job, tmp_path, watched=False)

    def without(spec: dict[str, Any], folder: Path) -> int:
        refuse_calls(call_number("mremap"))
        return confined(spec, folder)

    monkeypatch.setattr(recorded_calls, "confined", without)
    assert clock_calls(job, flat, tmp_path) == 20_002


def test_no_room_for_the_nodes_vdso_is_refused(builds: Path, tmp_path: Path) -> None:
    job = captured("often", builds, tmp_path / "work")
    data = bytearray(encode(flat_job(job, tmp_path, watched=False)))
    pages = read_state(job.images).pages_image
    for number, smaller in enumerate((0, PAGE_SIZE)):
        header = Header.from_buffer(data)
        header.park_size -= smaller
        header.checksum = checksum(bytes(data)[Header.version.offset :])
        _, progress, step, _ = report_of(bytes(data), pages, tmp_path / str(number), stamps=3)
        assert ((progress, step) == (FAILED, TABLE)) == bool(smaller)


def refusal(flat: FlatImage, job: RestoreJob, folder: Path) -> tuple[int, int]:
    _, progress, step, _ = report_of(encode(flat), read_state(job.images).pages_image, folder, stamps=len(flat.stamps))
    return progress, step


def test_clocks_outside_of_a_patch_are_refused(builds: Path, tmp_path: Path) -> None:
    job = captured("read", builds, tmp_path / "work")
    flat = flat_job(job, tmp_path, watched=False)
    (start, data), inside = flat.patches[0], flat.clocks
    assert refusal(flat, job, tmp_path / "sound") != (FAILED, TABLE)
    outside = [start - 16, start + len(data) - 128, start + len(data), inside + 1, flat.stamps[0], 8, 2**64 - 16]
    assert start + len(data) - 128 > inside and start % PAGE_SIZE == 0
    for number, address in enumerate(outside):
        flat.clocks = address
        assert refusal(flat, job, tmp_path / str(number)) == (FAILED, TABLE), hex(address)
