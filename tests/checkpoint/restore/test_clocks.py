# SPDX-License-Identifier: Apache-2.0
"""Let a restored program's clocks go on from where they were, and refuse tables that would be written elsewhere."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from direct_runs import flat_job, report_of
from direct_state import timed
from programs import build
from regions import captured_regions

from checkpoint.capture.stored import read_state, write_state
from checkpoint.compiled import restorer
from checkpoint.errors import PhaseFailed
from checkpoint.flat.image import NAME, FlatImage, decode, encode
from checkpoint.flat.vdso import CLOCKS
from checkpoint.linux import PAGE_SIZE
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.recorded_calls import record_calls
from probe.pipeline.flatten import flatten_phases

FAILED, TABLE = 1, 6
A_DAY, LATER = 86_400 * 10**9, 5.5


def captured(scenario: str, builds: Path, folder: Path) -> RestoreJob:
    (job,) = captured_regions(build("clocks", builds), scenario, folder=folder, direct=True)
    return job


def with_clocks(job: RestoreJob, clocks: tuple[int, ...]) -> None:
    write_state(replace(read_state(job.images), clocks=clocks))


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
    assert not flat_job(job, tmp_path, watched=False).clocks
    time.sleep(LATER)
    with pytest.raises(PhaseFailed):
        timed(job, tmp_path)


def test_who_waits_until_a_time_gets_the_nodes_clocks(builds: Path, tmp_path: Path) -> None:
    """The kernel wakes by its own: a time of the program's would be long past, or far away."""
    job = captured("deadline", builds, tmp_path / "work")
    flat = flat_job(job, tmp_path, watched=False)
    assert flat.clocks
    calls = record_calls(job, flat, read_state(job.images).pages_image, restorer(), scratch=tmp_path)
    assert calls.deadlines
    (made,) = flatten_phases([(job, ())], folder=tmp_path, cpu=None, progress=lambda _: None)
    assert not made.refused and not decode(job.images / NAME).clocks
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
    assert not made.refused and not decode(job.images / NAME).clocks


def refusal(flat: FlatImage, job: RestoreJob, folder: Path) -> tuple[int, int]:
    _, progress, step, _ = report_of(encode(flat), read_state(job.images).pages_image, folder, stamps=len(flat.stamps))
    return progress, step


def test_clocks_outside_of_a_patch_are_refused(builds: Path, tmp_path: Path) -> None:
    job = captured("read", builds, tmp_path / "work")
    flat = flat_job(job, tmp_path, watched=False)
    (start, data), inside = flat.patches[0], flat.clocks
    assert refusal(flat, job, tmp_path / "sound") != (FAILED, TABLE)
    outside = [start - 16, start + len(data) - 104, start + len(data), inside + 1, flat.stamps[0], 8, 2**64 - 16]
    assert start + len(data) - 104 > inside and start % PAGE_SIZE == 0
    for number, address in enumerate(outside):
        flat.clocks = address
        assert refusal(flat, job, tmp_path / str(number)) == (FAILED, TABLE), hex(address)
