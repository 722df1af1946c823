# SPDX-License-Identifier: Apache-2.0
"""Shared memory that nobody else has, and pending signals: captured directly, restored as they were."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from direct_runs import flat_job
from direct_state import timed
from programs import build
from regions import captured_regions
from test_direct_capture import assert_equal, captured_both_ways

import probe.pipeline.runs.standing
from checkpoint import strict_json
from checkpoint.capture import shared_memory
from checkpoint.capture.direct import Captured, capture_process
from checkpoint.capture.stored import NAME as STATE
from checkpoint.capture.stored import read_state, write_state
from checkpoint.criu.pagemap import read_pagemap
from checkpoint.criu.unsupported import unsupported
from checkpoint.errors import ProbeFileDamaged, ProgramUnsupported
from checkpoint.flat.file_names import SHARED_PAGES
from checkpoint.flat.image import NAME, OF_OBJECT, decode, encode
from checkpoint.linux import PAGE_SIZE
from checkpoint.process.tracee import Tracee
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.state.process_state import FileKind, ProcessState, VmaStatus

KINDS = ("anonymous", "memfd", "deleted", "signals")
"""To CRIU a file is one that has to be where a phase is restored, and a segment part of a namespace."""


def captured(kind: str, builds: Path, folder: Path) -> RestoreJob:
    (job,) = captured_regions(build("shares", builds), kind, folder=folder, direct=True)
    return job


def during(patch: pytest.MonkeyPatch, before: Callable[[int], None]) -> None:
    """Have `before` called with the process's number when it stands still to be captured."""

    def capture(tracee: Tracee, target: Path, what: str) -> Captured:
        before(tracee.pid)
        return capture_process(tracee, target, what)

    patch.setattr(probe.pipeline.runs.standing, "capture_process", capture)


def contents(state: ProcessState) -> dict[str, list[dict[int, bytes]]]:
    """By name, of each piece of shared memory: pages that are not zero by their offsets."""
    found: dict[str, list[dict[int, bytes]]] = {}
    path, at = state.folder / SHARED_PAGES, 0
    data = path.read_bytes() if path.exists() else b""
    for one in state.shared:
        pages = {}
        for offset, count in one.pieces:
            for number in range(count):
                page = data[at : at + PAGE_SIZE]
                at += PAGE_SIZE
                if any(page):
                    pages[offset + number * PAGE_SIZE] = page
        found.setdefault(one.name, []).append(pages)
    assert at == len(data)
    return found


@pytest.mark.parametrize("kind", [*KINDS, "segment", "file"])
def test_they_come_back(kind: str, builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = captured(kind, builds, tmp_path / "work")
    state = read_state(job.images)
    assert unsupported(state) == []
    flat = flat_job(job, tmp_path)
    assert decode(job.images / NAME).header.version == 7
    shared = [m for m in flat.mappings if m.file & OF_OBJECT]
    assert bool(shared) == bool(flat.present) == bool(flat.objects) == (kind != "signals")
    assert all(any(m.start <= r.address < m.end for m in shared) for r in flat.present)
    (tmp_path / "shares.file").unlink(missing_ok=True)
    assert timed(job, tmp_path).wall > 0
    assert timed(job, tmp_path, only_recorded_calls=True).wall > 0


def test_a_region_does_not_wait_for_pages_that_were_there(builds: Path, tmp_path: Path) -> None:
    job = captured("anonymous", builds, tmp_path / "work")
    flat = flat_job(job, tmp_path)
    asked = timed(job, tmp_path).faults
    flat.present = []
    (job.images / NAME).write_bytes(encode(flat))
    waited = timed(job, tmp_path).faults
    # The kernel maps at most sixteen pages at once.
    assert asked is not None and waited is not None and waited >= asked + 4


@pytest.mark.parametrize("kind", ["anonymous", "memfd"])
def test_a_second_mapping_shows_what_an_ordinary_user_cannot_open(
    kind: str, builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is behind the end of the mappings too; of holes none is filled."""
    blocks: list[list[int]] = [[], []]

    def of_all(pid: int) -> list[int]:
        shared = [path for path in Path(f"/proc/{pid}/map_files").iterdir() if "(deleted)" in str(path.readlink())]
        return sorted(path.stat().st_blocks for path in shared)

    def both(tracee: Tracee, target: Path, what: str) -> Captured:
        opened = replace_with(tracee, target, what)
        blocks[0] = of_all(tracee.pid)
        monkeypatch.setattr(shared_memory, "_map_file", lambda _: "nowhere")
        done = capture_process(tracee, target, what)
        blocks[1] = of_all(tracee.pid)
        assert contents(done.state) == contents(opened)
        sizes = [[(one.name, -(-one.size // PAGE_SIZE), one.pieces) for one in s.shared] for s in (done.state, opened)]
        assert sizes[0] == sizes[1]
        return done

    def replace_with(tracee: Tracee, target: Path, what: str) -> ProcessState:
        other = target.with_name("opened")
        other.mkdir()
        return capture_process(tracee, other, what).state

    monkeypatch.setattr(probe.pipeline.runs.standing, "capture_process", both)
    job = captured(kind, builds, tmp_path / "work")
    assert blocks[0] == blocks[1] != []
    flat_job(job, tmp_path)
    assert timed(job, tmp_path).wall > 0


@pytest.mark.parametrize("kind", KINDS)
def test_criu_sees_the_same(kind: str, builds: Path, tmp_path: Path) -> None:
    both = captured_both_ways(build("shares", builds), kind, folder=tmp_path / "work")
    assert read_state(both.job.images) == both.direct
    assert Counter(one.number for one in both.direct.queued) == Counter(both.criu.signals.pending)
    ours = [pages for found in contents(both.direct).values() for pages in found]
    theirs = [criu_pages(path) for path in both.criu.folder.glob("pagemap-shmem-*.img")]
    assert bool(theirs) == (kind in ("anonymous", "memfd"))
    for pages in theirs:
        # Ours has besides what is no longer mapped.
        assert [one for one in ours if pages.items() <= one.items()]
    assert unsupported(both.criu)
    sent = replace(both.direct.signals, pending=both.criu.signals.pending)
    # To CRIU shared memory is a file, too; of memfds its images say elsewhere what they are.
    files = VmaStatus.FILE_SHARED | VmaStatus.FILE_PRIVATE
    vmas = [replace(v, status=v.status & ~files) if v.is_memory else v for v in both.criu.vmas]
    shared = {item.fd for item in both.direct.descriptors if item.kind == FileKind.MEMFD}
    direct, criu = (
        replace(state, descriptors=tuple(item for item in state.descriptors if item.fd not in shared))
        for state in (replace(both.direct, signals=sent), replace(both.criu, vmas=tuple(vmas)))
    )
    assert_equal(replace(both, direct=direct, criu=criu))


def criu_pages(path: Path) -> dict[int, bytes]:
    pages_id, runs = read_pagemap(path)
    data = (path.parent / f"pages-{pages_id}.img").read_bytes()
    addresses = [run.vaddr + n * PAGE_SIZE for run in runs for n in range(run.pages)]
    found = {at: data[n * PAGE_SIZE : (n + 1) * PAGE_SIZE] for n, at in enumerate(addresses)}
    return {at: page for at, page in found.items() if any(page)}


@pytest.mark.parametrize("kind", ["anonymous", "memfd", "deleted"])
def test_what_another_process_has_is_refused(
    kind: str, builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as undo:

        def take(pid: int) -> None:
            for path in Path(f"/proc/{pid}/map_files").iterdir():
                if "(deleted)" in str(path.readlink()):
                    undo.callback(os.close, os.open(path, os.O_RDONLY))

        during(monkeypatch, take)
        with pytest.raises(ProgramUnsupported, match=rf"shared memory.* at 0x\S+, which process {os.getpid()} \("):
            captured(kind, builds, tmp_path / "work")


def test_a_signal_that_nobody_can_send_again_is_refused(builds: Path, tmp_path: Path) -> None:
    state = read_state(captured("signals", builds, tmp_path / "work").images)
    lost = replace(state, queued=tuple(one for one in state.queued if one.number != 10))
    assert unsupported(lost) == ["pending signal 10 (SIGUSR1)"]


CHANGES: dict[str, object] = {
    "present": [[4096, 1]], "queued": [[True, "00"]], "shared": [],
}  # fmt: skip


@pytest.mark.parametrize("what", [*CHANGES, "piece", "pages", "twice", "file"])
def test_a_damaged_state_is_named(what: str, memfd: ProcessState, tmp_path: Path) -> None:
    copy = replace(memfd, folder=tmp_path)
    for name in (memfd.pages_image.name, SHARED_PAGES):
        (tmp_path / name).write_bytes((memfd.folder / name).read_bytes())
    one = memfd.shared[0]
    changed = {
        "piece": (replace(one, pieces=((one.size + PAGE_SIZE, 1),)), *memfd.shared[1:]),
        "twice": (*memfd.shared, one),
        "file": (replace(one, files=(999,)), *memfd.shared[1:]),
    }
    write_state(replace(copy, shared=changed.get(what, memfd.shared)))
    if what in CHANGES:
        value = strict_json.loads((tmp_path / STATE).read_bytes())
        (tmp_path / STATE).write_text(strict_json.dumps({**value, what: CHANGES[what]}))
    if what == "pages":
        (tmp_path / SHARED_PAGES).write_bytes(b"")
    with pytest.raises(ProbeFileDamaged, match="build without --resume"):
        read_state(tmp_path)


@pytest.fixture(scope="module")
def memfd(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> ProcessState:
    return read_state(captured("memfd", builds, tmp_path_factory.mktemp("memfd") / "work").images)
