# SPDX-License-Identifier: Apache-2.0
"""Pages that are swapped out, of a real process: they belong to it, and to what its region touches."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from direct_runs import flat_job
from direct_state import timed
from programs import build
from regions import captured_regions

import checkpoint.capture.direct
from checkpoint.capture.memory_map import Area, read_areas
from checkpoint.compiled import restorer
from checkpoint.flat.image import Run
from checkpoint.linux import PAGE_SIZE
from checkpoint.restore.observation import observe
from probe.pipeline.reduce import PhaseToReduce, reduce_phase

pytestmark = pytest.mark.alone("the machine's swap is everybody's")

_BYTES = 16 << 20
_PAGES = 16


@pytest.fixture
def swap(tmp_path: Path) -> Iterator[None]:
    """A small file to swap to, beside what the machine has."""
    path = tmp_path / "swap"
    with path.open("xb") as file:
        file.write(bytes(_BYTES))
    path.chmod(0o600)
    subprocess.run(["mkswap", path], check=True, capture_output=True)
    subprocess.run(["swapon", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["swapoff", path], check=True)


@pytest.mark.usefixtures("swap")
def test_what_is_swapped_out_is_captured(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Area] = []

    def noted(pid: int) -> list[Area]:
        seen.extend(read_areas(pid))
        return list(seen)

    monkeypatch.setattr(checkpoint.capture.direct, "read_areas", noted)
    (job,) = captured_regions(build("traps", builds), "swapped", folder=tmp_path / "work", direct=True)
    swapped = [area for area in seen if area.swapped]
    assert [(area.end - area.start) // PAGE_SIZE >= _PAGES and not area.is_shared for area in swapped] == [True]
    flat_job(job, tmp_path, watched=False)
    assert timed(job, tmp_path).wall > 0
    reduced = reduce_phase(PhaseToReduce(job, 0.001), None, how="drop", folder=tmp_path)
    assert reduced.whole == "" and _PAGES <= reduced.kept_pages < reduced.raw_pages


@pytest.mark.usefixtures("swap")
@pytest.mark.parametrize("lazily", [True, False])
def test_what_is_swapped_out_meanwhile_counts_as_touched(lazily: bool, builds: Path, tmp_path: Path) -> None:
    """Written and then swapped out, a page has no longer the bit of those that are there."""
    (job,) = captured_regions(build("traps", builds), "paged", folder=tmp_path / "work", direct=True)
    flat = flat_job(job, tmp_path, watched=False)
    pages = next(job.images.glob("pages-*.img"))
    with pages.open("rb") as file:
        os.fsync(file.fileno())  # The kernel takes no page of a file away that the disk has not.
    first = next(page for page, data in pages_of(flat.runs, pages) if data == b"a" * PAGE_SIZE)
    seen = observe(job, flat, pages, restorer(), [(first, _PAGES)], lazily=lazily, scratch=tmp_path)
    touched = [(page - first) // PAGE_SIZE for page in seen.pages]
    assert touched == ([3, 4, 5, 6] if lazily else list(range(_PAGES)))


def pages_of(runs: Iterable[Run], image: Path) -> Iterator[tuple[int, bytes]]:
    """Each page of a pages image: its address and its contents."""
    with image.open("rb") as file:
        for run in runs:
            for page in range(run.pages):
                yield run.address + page * PAGE_SIZE, file.read(PAGE_SIZE)
