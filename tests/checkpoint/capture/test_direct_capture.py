# SPDX-License-Identifier: Apache-2.0
"""Direct capture against CRIU's dump of the same process at the same stop: the same state, the same pages."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from direct_runs import flat_job
from direct_state import timed
from programs import build
from regions import captured_regions

import probe.pipeline.runs.standing
from checkpoint import strict_json
from checkpoint.capture.direct import Captured, capture_process
from checkpoint.capture.stored import NAME, read_state
from checkpoint.criu.images import read_checkpoint
from checkpoint.criu.tool import find_criu
from checkpoint.criu.unsupported import unsupported
from checkpoint.errors import ProbeFileDamaged
from checkpoint.flat.convert import flatten
from checkpoint.flat.deleted import write_deleted
from checkpoint.flat.file_names import deleted_name, is_deleted_name
from checkpoint.flat.image import FlatImage, encode
from checkpoint.linux import PAGE_SIZE
from checkpoint.process.tracee import Tracee
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.state.process_state import ProcessState, VmaStatus, file_mappings
from probe.node.facts import cpu_flags

WIDEST = () if "avx512bw" in cpu_flags() else ("avx",)
"""What makes the program fill the widest registers that this processor has."""

UNKNOWN_TO_CRIU = 1 << 18
"""MADV_WIPEONFORK."""


@dataclass(frozen=True)
class Both:
    """One stop captured directly and by CRIU."""

    job: RestoreJob
    direct: ProcessState
    criu: ProcessState


def captured_both_ways(program: Path, *arguments: str, folder: Path) -> Both:
    dumped: list[Path] = []

    def both(tracee: Tracee, target: Path, what: str) -> Captured:
        done = capture_process(tracee, target, what)
        dumped.append(target.with_name(f"{target.name}-criu"))
        dumped[-1].mkdir()
        tracee.detach(leave_stopped=True)
        tracee.wait_until_stopped()
        find_criu().dump(tracee.pid, dumped[-1], leave_stopped=True, timeout=60.0)
        tracee.wait_until_stopped()
        tracee.reattach()
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe.pipeline.runs.standing, "capture_process", both)
        # On another processor the kernel writes that one's number into the area of restartable sequences.
        cpu = min(os.sched_getaffinity(0))
        (job,) = captured_regions(program, *arguments, folder=folder, direct=True, cpu=cpu)
    return Both(job, read_state(job.images), read_checkpoint(dumped[0]))


@pytest.fixture(scope="module")
def unusual(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """A process whose every property is unusual."""
    folder = tmp_path_factory.mktemp("both")
    (folder / "input").write_bytes(random.Random(1).randbytes(5000))
    return captured_both_ways(
        build("state", builds), str(folder / "input"), str(folder / "output"), folder=folder / "work"
    )


def pages(state: ProcessState) -> dict[int, bytes]:
    """Contents by address."""
    found, at = {}, 0
    data = state.pages_image.read_bytes()
    for run in state.page_runs:
        for number in range(run.pages):
            found[run.vaddr + number * PAGE_SIZE] = data[at : at + PAGE_SIZE]
            at += PAGE_SIZE
    return found


def assert_equal(both: Both) -> None:
    """Header, mappings and pages; allowed: pages of zeros that CRIU leaves out, advice that it does not know."""
    direct, criu = both.direct, both.criu
    assert direct.registers == criu.registers
    assert direct.signals == criu.signals
    assert direct.thread == criu.thread
    assert direct.layout == criu.layout
    assert direct.limits == criu.limits
    assert (direct.comm, direct.umask, direct.pid, direct.state) == (criu.comm, criu.umask, criu.pid, criu.state)
    assert direct.no_huge_pages == criu.no_huge_pages
    assert [(t[0], t[1]) for t in direct.timers] == [(t[0], t[1]) for t in criu.timers]
    assert mappings(direct) == mappings(criu)
    assert file_mappings(direct) == file_mappings(criu)
    assert described(direct) == described(criu)
    ours, theirs = pages(direct), pages(criu)
    missing = {hex(address) for address in theirs.keys() - ours.keys()}
    assert not missing
    assert not any(any(ours[address]) for address in ours.keys() - theirs.keys())
    assert not {hex(address) for address in theirs if ours[address] != theirs[address]}


def mappings(state: ProcessState) -> list[tuple[int, ...]]:
    known = [v for v in state.vmas if not v.status & (VmaStatus.VVAR | VmaStatus.VSYSCALL)]
    return [
        (
            v.start,
            v.end,
            v.prot,
            v.flags & 0x10F,
            v.file_offset * (v.is_file or v.is_memory),
            v.advice & ~UNKNOWN_TO_CRIU,
        )
        for v in known
    ]


def described(state: ProcessState) -> list[tuple[object, ...]]:
    found = []
    for item in sorted(state.descriptors, key=lambda d: d.fd):
        file = state.files[item.file_id]
        same = min(d.fd for d in state.descriptors if d.file_id == item.file_id)
        found.append((item.fd, item.flags, same, file.path, file.flags, file.position, file.mode))
    return found


def test_state_and_pages_are_those_of_criu(unusual: Both) -> None:
    assert_equal(unusual)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("touches", ("plain",)), ("touches", ("stack",)), ("touches", ("move",)), ("touches", ("holes",)),
        ("touches", ("heap",)), ("touches", ("locked",)), ("traps", ("unforked",)), ("traps", ("unreadable",)),
        ("traps", ("sparse",)), ("wide", WIDEST),
    ],
)  # fmt: skip
def test_more_programs(name: str, arguments: tuple[str, ...], builds: Path, tmp_path: Path) -> None:
    assert_equal(captured_both_ways(build(name, builds), *arguments, folder=tmp_path / "work"))


def flat_of(both: Both, state: ProcessState) -> FlatImage:
    job = both.job
    events = (job.warm_event, job.start_event, job.end_event)
    written = [file.path for file in state.files.values() if file.writable]
    flat = flatten(replace(state, timers=()), events, outputs=job.outputs, written=written)
    flat.runs = []
    return flat


def test_the_flat_images_are_the_same(unusual: Both) -> None:
    """But for the clocks, which CRIU does not note."""
    assert unusual.direct.clocks and not unusual.criu.clocks
    direct = replace(unusual.direct, clocks=())
    assert encode(flat_of(unusual, direct)) == encode(flat_of(unusual, unusual.criu))


@pytest.mark.parametrize("kind", ["pipe", "brim", "sockets", "events", "gone", "closed"])
def test_what_leads_to_the_process_itself_is_seen_as_criu_sees_it(kind: str, builds: Path, tmp_path: Path) -> None:
    """Pipes, what is in them, socket pairs, eventfds, epoll sets, timers, signalfds, deleted files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        both = captured_both_ways(build("inside", builds), kind, folder=tmp_path / "work")
    assert read_state(both.job.images) == both.direct
    assert not unsupported(both.direct)
    ours, theirs = flat_of(both, both.direct), flat_of(both, both.criu)
    assert list(map(bytes, ours.descriptors)) == list(map(bytes, theirs.descriptors))
    assert sorted(ours.contents) == sorted(theirs.contents)
    assert list(map(bytes, ours.watches)) == list(map(bytes, theirs.watches))
    write_deleted(both.criu)
    for flat, state in ((ours, both.direct), (theirs, both.criu)):
        assert bool([name for name in (*flat.files, *flat.written) if is_deleted_name(name)]) == (kind == "gone")
        for number in {n for n in state.removed_files.values() if n is not None}:
            assert (state.folder / deleted_name(number)).stat().st_size in (6, 300000)
    assert sorted(copies(both.direct)) == sorted(copies(both.criu))


def copies(state: ProcessState) -> list[bytes]:
    """Contents of the deleted files."""
    return [(state.folder / deleted_name(n)).read_bytes() for n in set(state.removed_files.values()) if n is not None]


def test_a_directly_captured_phase_is_restored(builds: Path, tmp_path: Path) -> None:
    (job,) = captured_regions(build("touches", builds), "plain", folder=tmp_path / "work", direct=True)
    flat_job(job, tmp_path)
    assert timed(job, tmp_path).wall > 0


def test_a_damaged_state_is_named(unusual: Both, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes((unusual.direct.folder / NAME).read_bytes()[:-9])
    with pytest.raises(ProbeFileDamaged, match="build without --resume"):
        read_state(tmp_path)


@pytest.mark.parametrize("part", ["registers", "layout", "files", "signals", "extended"])
def test_a_number_where_a_part_belongs_is_named(part: str, unusual: Both, tmp_path: Path) -> None:
    value = strict_json.loads((unusual.direct.folder / NAME).read_bytes())
    (tmp_path / NAME).write_text(strict_json.dumps({**value, part: 7}))
    with pytest.raises(ProbeFileDamaged, match="build without --resume"):
        read_state(tmp_path)


def test_pages_of_another_size_are_named(unusual: Both, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes((unusual.direct.folder / NAME).read_bytes())
    (tmp_path / unusual.direct.pages_image.name).write_bytes(bytes(PAGE_SIZE))
    with pytest.raises(ProbeFileDamaged, match=f"holds {PAGE_SIZE} bytes where"):
        read_state(tmp_path)
