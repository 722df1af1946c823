# SPDX-License-Identifier: Apache-2.0
"""Touched sets by lazily mapped pages and the page table, against those by CRIU's lazy restore of the same images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from direct_runs import flat_job
from programs import build
from regions import captured_regions
from test_touched_set import BOTH, IN_ORDER, SCENARIOS, Scenario, scenarios

from checkpoint.capture.stored import read_state
from checkpoint.compiled import restorer
from checkpoint.criu.tool import find_criu
from checkpoint.flat.image import FlatImage
from checkpoint.linux import MAP_GROWSDOWN, PAGE_SIZE
from checkpoint.restore.criu_restore import PageDropped, RestoreJob
from checkpoint.state.process_state import ProcessState
from probe.pipeline.reduce import PhaseToReduce, reduce_phase
from reducer.reduction import reduce_checkpoint
from reducer.touched_set import (
    TouchedSet,
    check_reduced_directly,
    pages_to_keep,
    record_touched_directly,
    record_touched_set,
)

__all__ = ["scenarios"]

AREA = 0x200000000
"""Where tests/programs/touches.c has most of its areas."""


def directly(job: RestoreJob, images: ProcessState, folder: Path, margin: float = 0.0) -> TouchedSet:
    flat = flat_job(job, folder, watched=False)
    return record_touched_directly(job, images, flat, restorer(), scratch=folder, region_seconds=margin)


def pages_of(found: TouchedSet, images: ProcessState) -> set[int]:
    """Without the stack, of which all is kept, and the events' pages, which are shared with the tracer."""
    stack = [vma for vma in images.vmas if vma.flags & MAP_GROWSDOWN]
    return {int(a) for a in found.address if not any(vma.start <= a < vma.end for vma in stack)}


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in ("wander", "huge", "locked")])
def test_the_same_pages_as_by_criu(name: str, scenarios: dict[str, Scenario], tmp_path: Path) -> None:
    one = scenarios[name]
    by_criu = record_touched_set(one.job, one.images, find_criu(), scratch=tmp_path, region_seconds=0.0)
    found = directly(one.job, one.images, tmp_path)
    assert not found.in_groups
    base = {name: one.areas[name] & -PAGE_SIZE for name in one.areas}
    here, there = pages_of(found, one.images), pages_of(by_criu, one.images)
    assert {hex(a) for a in there - here} == set(), base
    # What only the direct way shows: pages whose contents were made anonymous before a call that needs that.
    extra = here - there
    expected = {"move", "resize", "discard"}
    assert not extra or name in expected, ({hex(a) for a in extra}, base)


@pytest.mark.parametrize(("name", "area"), [*IN_ORDER, *BOTH])
def test_at_least_these_pages(name: str, area: str, scenarios: dict[str, Scenario], tmp_path: Path) -> None:
    one = scenarios[name]
    base = one.areas[area] & -PAGE_SIZE
    wanted = {
        base + page * PAGE_SIZE for page in dict([*IN_ORDER.get((name, area), []), *BOTH.get((name, area), {}).items()])
    }
    held = {run.vaddr + k * PAGE_SIZE for run in one.images.page_runs for k in range(run.pages)}
    assert wanted & held <= {int(a) for a in directly(one.job, one.images, tmp_path).address}


@pytest.fixture(scope="module")
def captured(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RestoreJob]:
    """All scenarios, captured directly in one run."""
    folder = tmp_path_factory.mktemp("direct")
    jobs = captured_regions(build("touches", builds, "nopie"), folder=folder, regions=len(SCENARIOS), direct=True)
    return dict(zip(SCENARIOS, jobs, strict=True))


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "wander"])
def test_a_directly_captured_phase_runs_without_its_untouched_pages(
    name: str, captured: dict[str, RestoreJob], tmp_path: Path
) -> None:
    job = captured[name]
    reduced = reduce_phase(PhaseToReduce(job, 0.001), None, how="drop", folder=tmp_path)
    assert reduced.whole == "" and 0 < reduced.kept_pages <= reduced.raw_pages


def test_a_dropped_page_that_is_asked_for_is_seen(captured: dict[str, RestoreJob], tmp_path: Path) -> None:
    job = captured["plain"]
    images = read_state(job.images)
    keep = pages_to_keep(images, directly(job, images, tmp_path))
    # It only writes there: where it reads it would notice at once.
    position, wanted = 0, AREA + 5 * PAGE_SIZE
    for run in images.page_runs:
        if run.vaddr <= wanted < run.end:
            keep[position + (wanted - run.vaddr) // PAGE_SIZE] = False
        position += run.pages
    reduced = reduce_checkpoint(images, keep, tmp_path / "reduced", "drop")
    other = replace(job, images=reduced.folder)
    state = read_state(reduced.folder)
    flat: FlatImage = flat_job(other, tmp_path, watched=False)
    with pytest.raises(PageDropped, match=f"{wanted:#x} was dropped and is asked for"):
        check_reduced_directly(other, state, flat, restorer(), reduced.dropped, scratch=tmp_path)
