# SPDX-License-Identifier: Apache-2.0
"""Reasons not to restore directly, on a node or already when the probe is built: each named."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from direct_runs import as_nobody, mount, open_to_anybody, report_of
from direct_state import FAILED, PARK, flat_state, moved, pages_of, places, plain, state, timed

from checkpoint.compiled import restorer
from checkpoint.criu.entries import read_entries, write_entries
from checkpoint.criu.fields import CoreEntry, TaskCoreEntry, TaskTimersEntry
from checkpoint.criu.images import read_checkpoint
from checkpoint.errors import NodeUnfit
from checkpoint.flat.convert import NotFlat, flatten
from checkpoint.flat.image import NAME, Header, Kind, Mapping, OpenDescriptor, decode, encode
from checkpoint.linux import ADDR_NO_RANDOMIZE, PERSONALITY_QUERY
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.direct_restore import DirectAgent, DirectRefused

__all__ = ["flat_state", "places", "plain", "state"]


# What a node may refuse.


def test_a_missing_copy_is_named(plain: RestoreJob, tmp_path: Path) -> None:
    library = next(path for path in decode(plain.images / NAME).files if "libc" in path)
    job = replace(plain, binds=[(str(tmp_path / "nowhere"), library)])
    with pytest.raises(DirectRefused, match=f"opening the copy of {library}: No such file"):
        timed(job, tmp_path)


def test_a_folder_that_is_not_here_is_any_folder_to_a_phase_without_paths(plain: RestoreJob, tmp_path: Path) -> None:
    job = moved(plain, tmp_path / "images")
    flat = decode(job.images / NAME)
    flat.header.cwd = flat.string(str(tmp_path / "nowhere"))
    place = flat.string(str(tmp_path / "nowhere"))
    flat.descriptors.append(OpenDescriptor(number=9, kind=Kind.PATH, flags=os.O_DIRECTORY, path=place))
    (job.images / NAME).write_bytes(encode(flat))
    assert timed(job, tmp_path).wall > 0
    flat.opened = ["/etc/hostname"]
    (job.images / NAME).write_bytes(encode(flat))
    with pytest.raises(DirectRefused, match="No such file"):
        timed(job, tmp_path)


def test_too_little_address_space_is_named(plain: RestoreJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import checkpoint.restore.direct_restore

    monkeypatch.setattr(checkpoint.restore.direct_restore, "_MEMORY_SLACK", -(10**12))
    original = checkpoint.restore.direct_restore.direct_spec

    def tight(*a: object, **k: object) -> dict[str, object]:
        return {**original(*a, **k), "memory_bytes": 2 << 20}  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint.restore.direct_restore, "direct_spec", tight)
    with pytest.raises(DirectRefused, match=r"mapping .*Cannot allocate memory.*ulimit -v"):
        timed(plain, tmp_path)


def test_an_address_below_the_kernels_minimum_is_named(plain: RestoreJob, tmp_path: Path) -> None:
    flat = decode(plain.images / NAME)
    flat.mappings.insert(0, Mapping(4096, 8192, 0, 0, 3, 2, 0, 1))
    if int(Path("/proc/sys/vm/mmap_min_addr").read_text()) <= 4096:
        pytest.skip("this machine lets everybody map that")

    def as_user() -> tuple[int, int, int, int]:
        return report_of(encode(flat), tmp_path / "pages", tmp_path / "run", stamps=4)

    shutil.copy(pages_of(plain), tmp_path / "pages")
    (tmp_path / "run").mkdir(mode=0o777)
    open_to_anybody(tmp_path)
    (tmp_path / "run").chmod(0o777)
    program = tmp_path / "restorer"
    shutil.copy(restorer(), program)
    program.chmod(0o755)
    import direct_runs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct_runs, "restorer", lambda: program)
        _status, progress, step, error = as_nobody(as_user)
    assert (progress, step, error) == (FAILED, 11, errno.EPERM)


def test_a_file_system_without_execution_is_no_obstacle(plain: RestoreJob, tmp_path: Path) -> None:
    """Libraries and the restorer itself lie on a noexec file system: contents are copied, the restorer is a memfd."""
    folder = tmp_path / "noexec"
    folder.mkdir()
    mount("tmpfs", str(folder), "tmpfs", 8, "size=64m")  # MS_NOEXEC
    try:
        shutil.copy(restorer(), folder / "restorer")
        flat = decode(plain.images / NAME)
        binds = []
        for number, path in enumerate(flat.files):
            shutil.copy(path, folder / str(number))
            binds.append((str(folder / str(number)), path))
        job = replace(plain, binds=binds)
        with DirectAgent(job, folder / "restorer", scratch=tmp_path) as agent:
            assert agent.repeat().wall > 0
        # The guard: a plain mapping is refused there.
        with pytest.raises(PermissionError):
            subprocess.run([folder / "restorer"])
    finally:
        ctypes.CDLL(None).umount2(str(folder).encode(), 2)


def test_a_kernel_without_rseq_is_told_to_the_c_library(flat_state: RestoreJob, tmp_path: Path) -> None:
    """The registration fails for a wrong size; sched_getcpu in the region must then ask the kernel."""
    job = moved(flat_state, tmp_path / "images")
    flat = decode(job.images / NAME)
    assert flat.header.rseq
    flat.header.rseq_size = 8
    (job.images / NAME).write_bytes(encode(flat))
    timed(job, tmp_path)


def test_a_taken_park_is_named(plain: RestoreJob, tmp_path: Path) -> None:
    """Put where the kernel puts every program's stack while addresses are not random."""
    flat = decode(plain.images / NAME)
    flat.header.park = 0x7FFFFFFFF000 - Header.from_buffer_copy(encode(flat)).park_size
    libc = ctypes.CDLL(None)
    before = libc.personality(PERSONALITY_QUERY)
    libc.personality(before | ADDR_NO_RANDOMIZE)
    try:
        status, progress, step, _ = report_of(encode(flat), pages_of(plain), tmp_path / "run")
    finally:
        libc.personality(before)
    assert os.WIFEXITED(status) and (progress, step) == (FAILED, PARK)


# What is refused when the probe is built.


def test_timers_of_posix_are_refused_by_name(plain: RestoreJob, tmp_path: Path) -> None:
    images = moved(plain, tmp_path / "images").images
    path = next(images.glob("core-*.img"))
    (core,) = read_entries(path, "core")
    task = core.message(CoreEntry.tc)
    timers = task.message(TaskCoreEntry.timers) if task else None
    assert task is not None and timers is not None
    timers.set_bytes(TaskTimersEntry.posix, b"\x08\x00")
    task.set_bytes(TaskCoreEntry.timers, timers.encode())
    core.set_bytes(CoreEntry.tc, task.encode())
    write_entries(path, "core", [core])
    with pytest.raises(NotFlat, match="POSIX timers"):
        flatten(read_checkpoint(images), (plain.warm_event, plain.start_event, plain.end_event))


def test_memory_beyond_47_bits_is_refused_by_name(plain: RestoreJob) -> None:
    images = read_checkpoint(plain.images)
    far = replace(images.vmas[-1], start=1 << 50, end=(1 << 50) + 4096, status=1 << 9)
    vmas = tuple(v for v in images.vmas if not v.status & 4)
    with pytest.raises(NotFlat, match="5-level paging"):
        flatten(replace(images, vmas=(*vmas, far)), (plain.warm_event, plain.start_event, plain.end_event))
    assert issubclass(DirectRefused, NodeUnfit)
