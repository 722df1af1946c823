# SPDX-License-Identifier: Apache-2.0
"""Neighbouring pages with one pattern are held once, and restored as many pages, each of its own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from direct_runs import flat_job, report_of
from held_pages import held_pages
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import build
from regions import captured_regions

from checkpoint.compiled import restorer
from checkpoint.errors import PhaseFailed
from checkpoint.flat.image import NAME, REPEATED, FlatImage, Header, Mapping, Run, checksum, decode, encode
from checkpoint.linux import PAGE_SIZE
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.direct_restore import DirectRefused, direct_spec, pages_image
from checkpoint.restore.observation import observe
from probe.flow.memory import BY_WORD, DOUBLES, FLOATS, KEPT, WHOLE, Modes, PhaseMemory
from probe.flow.synthesis import write_images

ARRAYS = (0x230000000, 0x240000000)
"""Where `arrays huge` has two arrays of 1024 pages."""

FAILED, TABLE = 1, 6


@pytest.fixture(scope="module")
def huge(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> RestoreJob:
    folder = tmp_path_factory.mktemp("repeated")
    (job,) = captured_regions(build("arrays", builds), "huge", folder=folder / "captured", direct=True)
    flat_job(job, folder)
    return job


def in_arrays(memory: PhaseMemory) -> Modes:
    inside = [(memory.addresses >= at) & (memory.addresses < at + 1024 * PAGE_SIZE) for at in ARRAYS]
    return np.where(inside[0] | inside[1], WHOLE, KEPT).astype(np.uint8)


def ended(images: Path, flat: FlatImage, folder: Path) -> dict[int, bytes]:
    """The arrays' pages once the region was restored and has ended."""
    found: dict[int, bytes] = {}

    def look(pid: int) -> None:
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            for at in ARRAYS:
                memory.seek(at)
                found[at] = memory.read(1024 * PAGE_SIZE)

    folder.mkdir()
    for number, path in enumerate(flat.files):
        (folder / str(number)).symlink_to(path)
    job = next(images.glob("pages-*.img"))
    status, *said = report_of(encode(flat), job, folder, stamps=len(flat.stamps), look=look)
    assert os.WIFSTOPPED(status), said
    return found


@pytest.mark.parametrize("pattern", [DOUBLES, FLOATS])
def test_each_page_comes_back(huge: RestoreJob, pattern: str, tmp_path: Path) -> None:
    """As from images that hold all of them, across a mapping's end, too."""
    memory = PhaseMemory(decode(huge.images / NAME), pages_image(huge, decode(huge.images / NAME)))
    modes = in_arrays(memory)
    modes[np.flatnonzero(modes)[100:110]] = KEPT
    images = tmp_path / "images"
    flat = write_images(huge.images, images, memory, pages_image(huge, memory.flat), modes, pattern)
    once = [run for run in flat.runs if run.address & REPEATED]
    assert sum(run.pages for run in once) == 2048 - 10 and len(once) == 3
    pages = next(images.glob("pages-*.img"))
    assert (
        pages.stat().st_size == flat.header.pages * PAGE_SIZE == (len(memory) - sum(r.pages - 1 for r in once)) * 4096
    )
    addresses, words = held_pages(images)
    assert (addresses == memory.addresses).all()
    assert (words == memory.replaced(slice(0, len(memory)), modes, pattern)).all()

    whole = tmp_path / "whole"
    whole.mkdir()
    words.tofile(whole / "pages-1.img")
    expected = ended(whole, memory.flat, tmp_path / "a")
    assert ended(images, decode(images / NAME), tmp_path / "b") == expected
    # The second array's mapping in two, the second of which gets no huge pages.
    split = decode(images / NAME)
    at = next(n for n, m in enumerate(split.mappings) if m.start <= ARRAYS[1] < m.end)
    first = split.mappings[at]
    second = Mapping.from_buffer_copy(first)
    first.end = second.start = ARRAYS[1] + 512 * PAGE_SIZE
    second.small, second.advice = 1, 0
    split.mappings.insert(at + 1, second)
    assert ended(images, split, tmp_path / "c") == expected


def test_images_that_criu_reads_hold_every_page(huge: RestoreJob, tmp_path: Path) -> None:
    memory = PhaseMemory(decode(huge.images / NAME), pages_image(huge, decode(huge.images / NAME)))
    source = tmp_path / "source"
    source.mkdir()
    for path in huge.images.iterdir():
        os.link(path, source / path.name)
    (source / "pagemap-7.img").touch()
    images = tmp_path / "images"
    flat = write_images(source, images, memory, pages_image(huge, memory.flat), in_arrays(memory), DOUBLES)
    assert not any(run.address & REPEATED for run in flat.runs)
    assert next(images.glob("pages-*.img")).stat().st_size == len(memory) * PAGE_SIZE
    assert (images / NAME).samefile(huge.images / NAME)


@given(st.lists(st.tuples(st.sampled_from([KEPT, WHOLE, BY_WORD]), st.integers(1, 40), st.booleans()), max_size=8))
@settings(max_examples=60, deadline=None)
def test_runs_and_pages_agree(parts: list[tuple[int, int, bool]]) -> None:
    """Whatever is replaced, wherever mappings have gaps: every page is in one run, in order."""
    memory = PhaseMemory.__new__(PhaseMemory)
    modes = np.concatenate([np.full(n, mode, dtype=np.uint8) for mode, n, _ in parts] or [np.zeros(0, np.uint8)])
    steps = np.concatenate([[2 if gap else 1] + [1] * (n - 1) for _, n, gap in parts] or [np.zeros(0)])
    memory.addresses = (np.cumsum(steps).astype(np.uint64) + np.uint64(1)) * np.uint64(PAGE_SIZE)
    memory.single = np.arange(len(modes)) % 50 < 25
    runs = [run for part, once in memory._parts(modes) for run in memory._runs(part, once)]
    covered = [(run.address & ~REPEATED) + page * PAGE_SIZE for run in runs for page in range(run.pages)]
    assert covered == memory.addresses.tolist()
    once = np.concatenate([np.full(r.pages, bool(r.address & REPEATED)) for r in runs] or [np.zeros(0, bool)])
    assert (modes[once] == WHOLE).all()
    for run in runs:
        if run.address & REPEATED:
            rows = np.searchsorted(memory.addresses, (run.address & ~REPEATED) + np.arange(run.pages) * PAGE_SIZE)
            assert run.pages >= 16 and len(set(memory.single[rows].tolist())) == 1


def refused(flat: FlatImage, pages: Path, folder: Path, version: int = 5) -> bool:
    data = bytearray(encode(flat))
    at = Header.version.offset
    assert data[at] == 5
    data[at] = version
    data[8:16] = checksum(memoryview(data)[at:]).to_bytes(8, "little")
    status, progress, step, _ = report_of(bytes(data), pages, folder, stamps=4)
    return os.WIFEXITED(status) and (progress, step) == (FAILED, TABLE)


@pytest.mark.parametrize("wrong", ["version", "overlap", "outside", "too many", "count", "another bit"])
def test_a_repeated_run_made_to_harm_is_refused(wrong: str, huge: RestoreJob, tmp_path: Path) -> None:
    flat, pages = decode(huge.images / NAME), pages_image(huge, decode(huge.images / NAME))
    flat.clocks = 0  # the first version with such runs has none
    last = flat.runs[-1]
    if wrong == "version":
        flat.runs[0] = Run(flat.runs[0].address | REPEATED, flat.runs[0].pages)
        assert refused(flat, pages, tmp_path / "run", version=4)
        return
    flat.runs.append(
        {
            "overlap": Run(last.address | REPEATED, 1),
            "outside": Run(0x7FFFFFF00000 | REPEATED, 1),
            "too many": Run(last.address + last.pages * PAGE_SIZE | REPEATED, 1 << 51),
            "another bit": Run(last.address + last.pages * PAGE_SIZE | REPEATED | 8, 1),
            "count": Run(last.address + last.pages * PAGE_SIZE | REPEATED, 0),
        }[wrong]
    )
    assert refused(flat, pages, tmp_path / "run")


def test_more_pages_than_the_node_has_memory_for_are_refused(huge: RestoreJob, tmp_path: Path) -> None:
    """One page in the file may stand for any number of them."""
    flat, pages = decode(huge.images / NAME), pages_image(huge, decode(huge.images / NAME))
    flat.runs.append(Run(1 << 45 | REPEATED, os.sysconf("SC_PHYS_PAGES")))
    with pytest.raises(DirectRefused, match=r"phase 1: it fills [0-9]+ bytes of memory; this node has [0-9]+"):
        direct_spec(huge, flat, pages, restorer(), tmp_path, None)


def test_pages_that_are_touched_cannot_be_seen_behind_a_repeated_one(huge: RestoreJob, tmp_path: Path) -> None:
    """Whoever looks gets each page from its own place in the file."""
    flat = decode(huge.images / NAME)
    large = max(range(len(flat.runs)), key=lambda n: flat.runs[n].pages)
    flat.runs[large] = Run(flat.runs[large].address | REPEATED, flat.runs[large].pages)
    images = tmp_path / "images"
    images.mkdir()
    for path in huge.images.iterdir():
        if path.name != NAME:
            os.link(path, images / path.name)
    (images / NAME).write_bytes(encode(flat))
    with pytest.raises(PhaseFailed, match="its flat image has a table or address out of range"):
        observe(
            replace(huge, images=images), decode(images / NAME), pages_image(huge, decode(huge.images / NAME)),
            restorer(), [], lazily=True, scratch=tmp_path, cpu=None, margin=0.0,
        )  # fmt: skip
