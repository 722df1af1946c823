# SPDX-License-Identifier: Apache-2.0
"""Reduced checkpoints: the same layout or less of it, the same computation, never one that asks for what is gone."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import build
from regions import captured_regions

import probe.pipeline.reduce
from checkpoint.criu.images import read_checkpoint
from checkpoint.criu.tool import find_criu
from checkpoint.errors import PhaseFailed, ProbeFileDamaged, ProgramUnsupported
from checkpoint.linux import PAGE_SIZE
from checkpoint.restore import criu_restore as restore
from checkpoint.restore.agent_process import AgentProcess
from checkpoint.restore.criu_restore import RestoreJob, observe_touches, time_phase
from checkpoint.state.process_state import PAGE_LAZY, ProcessState
from probe.candidates.local import run as run_probe
from probe.contents.captured_files import touched_file
from probe.formats.arrays import BoolArray
from probe.formats.choices import SelectionOptions
from probe.pipeline.build import build as build_probe
from probe.pipeline.options import BuildOptions
from probe.pipeline.reduce import PhaseToReduce, reduce_phase
from reducer.choices import Reduction
from reducer.reduction import reduce_checkpoint
from reducer.touched_set import TouchedSet, pages_to_keep, record_touched_set

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def job(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> RestoreJob:
    """A region that reads, writes and copies at random places."""
    folder = tmp_path_factory.mktemp("wander")
    return captured_regions(build("touches", builds, "nopie"), "wander", folder=folder)[0]


@pytest.fixture(scope="module")
def keep(job: RestoreJob, tmp_path_factory: pytest.TempPathFactory) -> BoolArray:
    images = read_checkpoint(job.images)
    scratch = tmp_path_factory.mktemp("scratch")
    return pages_to_keep(images, record_touched_set(job, images, find_criu(), scratch=scratch, region_seconds=0.0))


def addresses(images: ProcessState) -> list[int]:
    """Of every page, in the order of the pages image."""
    return [run.vaddr + k * PAGE_SIZE for run in images.page_runs for k in range(run.pages)]


def contents(images: ProcessState) -> dict[int, bytes]:
    raw = images.pages_image.read_bytes()
    return {a: raw[i * PAGE_SIZE : (i + 1) * PAGE_SIZE] for i, a in enumerate(addresses(images))}


def choices(images: ProcessState) -> list[BoolArray]:
    """Which pages to keep: few, many, alternating, none of those that may go, all."""
    fixed = np.concatenate([np.full(r.pages, not r.flags & PAGE_LAZY) for r in images.page_runs])
    chance = np.random.default_rng(1)
    shares = [chance.random(images.pages) < share for share in (0.05, 0.5, 0.95)]
    every_other = np.arange(images.pages) % 2 == 0
    return [fixed | extra for extra in (*shares, every_other, ~every_other, np.zeros_like(fixed), np.ones_like(fixed))]


def test_dropped_pages_are_gone_and_the_others_keep_their_addresses(job: RestoreJob, tmp_path: Path) -> None:
    images = read_checkpoint(job.images)
    before = contents(images)
    for number, flags in enumerate(choices(images)):
        reduced = reduce_checkpoint(images, flags, tmp_path / str(number), "drop")
        after = read_checkpoint(reduced.folder)
        wanted = {a for a, flag in zip(addresses(images), flags, strict=True) if flag}
        assert contents(after) == {a: before[a] for a in wanted}
        gone = {run.vaddr + k * PAGE_SIZE for run in reduced.dropped for k in range(run.pages)}
        assert gone == before.keys() - wanted
        assert (reduced.kept, reduced.dropped_pages) == (len(wanted), len(gone))
        flags_of = {run.vaddr + k * PAGE_SIZE: run.flags for run in images.page_runs for k in range(run.pages)}
        assert all(flags_of[r.vaddr + k * PAGE_SIZE] == r.flags for r in after.page_runs for k in range(r.pages))


def test_zeroed_pages_leave_the_layout_as_criu_wrote_it(job: RestoreJob, tmp_path: Path) -> None:
    images = read_checkpoint(job.images)
    before = contents(images)
    for number, flags in enumerate(choices(images)):
        reduced = reduce_checkpoint(images, flags, tmp_path / str(number), "zero")
        names = {path.name for path in job.images.glob("*.img")}
        assert {path.name for path in reduced.folder.iterdir()} == names
        for name in names - {images.pages_image.name}:
            assert (reduced.folder / name).read_bytes() == (job.images / name).read_bytes()
        after = read_checkpoint(reduced.folder)
        kept = dict(zip(addresses(images), flags, strict=True))
        assert contents(after) == {a: page if kept[a] else bytes(PAGE_SIZE) for a, page in before.items()}


# Restores a phase, runs it to its region's end, and says what is in its memory and registers there.
STATE = """
import ctypes, hashlib, json, os, signal, sys
sys.path.insert(0, %r)
from checkpoint.linux import PTRACE_ATTACH, PTRACE_GETREGS
from checkpoint.restore import criu_agent as agent
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
spec = json.loads(sys.stdin.buffer.readline())
agent.prepare(spec)
pid, error = agent.restore(spec, 0)
result = {"status": "restore", "detail": error} if error else agent.time_region(spec, pid)
if result["status"] == "ok":
    memory = os.open("/proc/%%d/mem" %% pid, os.O_RDONLY)
    result["pages"] = {str(a): hashlib.sha256(os.pread(memory, 4096, a)).hexdigest() for a in spec["pages"]}
    libc, registers = ctypes.CDLL(None), (ctypes.c_uint64 * 27)()
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace(PTRACE_ATTACH, pid, None, None)
    os.waitpid(pid, 0)
    libc.ptrace(PTRACE_GETREGS, pid, None, ctypes.addressof(registers))
    result["registers"] = list(registers)
agent.kill(pid)
with open(spec["answer"], "w") as file:
    json.dump(result, file)
print("{}", flush=True)
"""


def state_at_the_end(job: RestoreJob, pages: list[int], folder: Path) -> dict[str, Any]:
    folder.mkdir()
    script = folder / "state.py"
    script.write_text(STATE % str(ROOT))
    (folder / "scratch").mkdir()
    spec = restore._spec(job, read_checkpoint(job.images), find_criu(), str(folder / "scratch"), 30.0, None)
    answer = folder / "scratch" / "answer"
    with AgentProcess(script, {**spec, "pages": pages, "answer": str(answer)}) as agent:
        agent.answer(60.0)
    found = json.loads(answer.read_text())
    assert found["status"] == "ok", found
    return dict(found)


@pytest.mark.parametrize("how", ["drop", "zero"])
def test_a_reduced_phase_computes_the_same(how: Reduction, job: RestoreJob, keep: BoolArray, tmp_path: Path) -> None:
    images = read_checkpoint(job.images)
    reduced = dataclasses.replace(job, images=reduce_checkpoint(images, keep, tmp_path / "reduced", how).folder)
    kept = [a for a, flag in zip(addresses(images), keep, strict=True) if flag]
    before = contents(images)
    # Time stamps lie in the page of the event records.
    stamps = {event & -PAGE_SIZE for event in (job.warm_event, job.start_event, job.end_event)}
    compared = [a for a in kept if a not in stamps]
    whole, less = (state_at_the_end(j, compared, tmp_path / n) for j, n in ((job, "w"), (reduced, "r")))
    assert whole["registers"] == less["registers"] and any(whole["registers"])
    assert [hex(int(a)) for a in whole["pages"] if whole["pages"][a] != less["pages"][a]] == []
    # It did compute: memory is no longer what it was at capture.
    assert sum(hashlib.sha256(before[int(a)]).hexdigest() != digest for a, digest in whole["pages"].items()) > 5


def without(address: int, images: ProcessState, touched: TouchedSet) -> BoolArray:
    """As pages_to_keep, but for one page."""
    keep = pages_to_keep(images, touched)
    keep[addresses(images).index(address)] = False
    return keep


@pytest.mark.parametrize("how", ["drop", "zero"])
def test_a_phase_that_misses_a_page_is_kept_whole_and_says_why(
    how: Reduction, job: RestoreJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(images: ProcessState, touched: TouchedSet) -> BoolArray:
        return without(lacking, images, touched)

    folder = job.images.parent
    good = reduce_phase(PhaseToReduce(job, 0.01), find_criu(), how=how, folder=folder)
    assert good.whole == "" and good.folder == "phase-1-reduced" and 0 < good.kept_pages < good.raw_pages
    recorded = np.frombuffer(touched_file(folder, 1).read_bytes(), dtype="<u8")
    assert len(recorded) == good.touched
    lacking = next(int(a) for a in recorded if 0x200000000 <= int(a) < 0x200060000)
    monkeypatch.setattr(probe.pipeline.reduce, "pages_to_keep", broken)
    kept = reduce_phase(PhaseToReduce(job, 0.01), find_criu(), how=how, folder=folder)
    assert kept.folder == "phase-1" and kept.kept_pages == kept.raw_pages == good.raw_pages
    assert f"{lacking:#x}" in kept.whole and "phase 1" in kept.whole
    assert not (folder / "phase-1-reduced").exists()


def test_a_phase_that_cannot_be_observed_is_kept_whole(job: RestoreJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> TouchedSet:
        raise PhaseFailed("phase 1: it went wrong")

    monkeypatch.setattr(probe.pipeline.reduce, "record_touched_set", fails)
    folder = job.images.parent
    kept = reduce_phase(PhaseToReduce(job, 0.01), find_criu(), how="drop", folder=folder)
    assert kept.folder == "phase-1" and "it went wrong" in kept.whole


def test_reduce_none_leaves_the_checkpoint_alone(job: RestoreJob) -> None:
    folder = job.images.parent
    before = {path.name: path.stat().st_mtime_ns for path in job.images.iterdir()}
    kept = reduce_phase(PhaseToReduce(job, 0.01), find_criu(), how="none", folder=folder)
    assert kept.folder == "phase-1" and kept.kept_pages == kept.raw_pages and "--reduce none" in kept.whole
    assert {path.name: path.stat().st_mtime_ns for path in job.images.iterdir()} == before


@pytest.mark.slow
@pytest.mark.parametrize(("capture", "why"), [("direct", "without its untouched pages"), ("criu", "was dropped")])
def test_a_build_ships_such_a_phase_whole(
    capture: str, why: str, builds: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = probe.pipeline.reduce.pages_to_keep

    def broken(images: ProcessState, touched: TouchedSet) -> BoolArray:
        keep = real(images, touched)
        if images.folder.name == "phase-1":
            keep[:] = real(images, TouchedSet(touched.address[:0], touched.written[:0]))
        return keep

    monkeypatch.setattr(probe.pipeline.reduce, "pages_to_keep", broken)
    options = BuildOptions(interval=0.02, runs=1, repeats=1, capture=capture, selection=SelectionOptions(max_phases=2))
    built = build_probe([str(build("sorter", builds)), "1"], tmp_path / "x.probe", options=options)
    by_id = {phase.id: phase.checkpoint for phase in built.manifest.phases}
    assert by_id[1].kept_pages == by_id[1].raw_pages and why in by_id[1].whole
    assert [w for w in built.manifest.warnings if "phase 1 was kept whole" in w]
    others = [checkpoint for number, checkpoint in by_id.items() if number != 1]
    assert others and all(c.kept_pages < c.raw_pages and c.whole == "" for c in others)
    result = run_probe(tmp_path / "x.probe", repeats=1)
    assert all(phase.times for phase in result.phases)


@pytest.mark.parametrize("cut", [1, PAGE_SIZE, 10 * PAGE_SIZE])
def test_cut_off_pages_are_refused_before_criu_sees_them(cut: int, job: RestoreJob, tmp_path: Path) -> None:
    images = read_checkpoint(job.images)
    keep = np.ones(images.pages, dtype=bool)
    broken = reduce_checkpoint(images, keep, tmp_path / "broken", "zero")
    pages = broken.folder / images.pages_image.name
    os.truncate(pages, pages.stat().st_size - cut)
    begun = time.monotonic()
    damaged = dataclasses.replace(job, images=broken.folder)
    with pytest.raises(ProbeFileDamaged, match="page map asks for"):
        time_phase(damaged, find_criu(), repeats=1, scratch=tmp_path)
    with pytest.raises(ProbeFileDamaged, match="page map asks for"):
        observe_touches(damaged, find_criu(), images.page_runs, pages, scratch=tmp_path, margin=0.0)
    assert time.monotonic() - begun < 5.0


MAPPINGS = {
    "hugetlb": "huge pages (hugetlb) at 0x",
    "shared": ", which only direct capture holds",
    "memfd": "shared memory (anonymous or of a memfd) at 0x",
    "sysv": "System V shared memory at 0x",
    "file": "mappings.file mapped shared and writable at 0x",
}


@pytest.mark.parametrize("kind", MAPPINGS)
def test_memory_that_is_shared_or_huge_is_refused_by_name(
    kind: str, builds: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProgramUnsupported) as raised:
        captured_regions(build("mappings", builds, "nopie"), kind, folder=tmp_path / "c")
    assert MAPPINGS[kind] in str(raised.value) and "mappings" in str(raised.value)


FILL = """
import sys
from pathlib import Path
import numpy as np
from checkpoint.errors import StorageError
from checkpoint.criu.images import read_checkpoint
from reducer.reduction import reduce_checkpoint
source, disk, how = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
images = read_checkpoint(source)
try:
    reduce_checkpoint(images, np.ones(images.pages, dtype=bool), disk / "phase", how)
except StorageError as error:
    print(error)
print(sorted(path.name for path in disk.iterdir()))
"""


@pytest.mark.parametrize("how", ["drop", "zero"])
def test_a_full_disk_leaves_no_half_checkpoint(how: str, job: RestoreJob, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = f"mount -t tmpfs -o size=200k small '{disk}' && exec \"$@\""
    prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounted, "sh"]
    command = [*prefix, sys.executable, "-c", FILL, str(job.images), str(disk), how]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    said, left = done.stdout.splitlines()
    assert str(disk) in said and "No space left" in said and "make room" in said
    assert left == "[]"
