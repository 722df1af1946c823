# SPDX-License-Identifier: Apache-2.0
"""Regions of programs whose threads share the work: captured with all threads, restored with all, as any user."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from direct_runs import as_nobody, flat_job, for_anybody, open_to_anybody, report_of
from direct_state import FAILED, TABLE
from programs import build
from regions import captured_regions
from rivals import rivals

from checkpoint.binary.syscall_names import call_number
from checkpoint.capture.stored import read_state
from checkpoint.compiled import restorer
from checkpoint.errors import PhaseFailed, ProbeFileDamaged, ProgramUnsupported
from checkpoint.flat.image import MOST_THREADS, NAME, FlatImage, Header, Table, Thread, checksum, decode, encode
from checkpoint.process.program import Lineage
from checkpoint.process.team import SLOT_BYTES
from checkpoint.restore import direct_restore
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.direct_restore import DirectAgent, DirectRefused

ROUNDS = "60"


def region(builds: Path, folder: Path, how: str, *, threads: int = 2, **env: str) -> RestoreJob:
    (job,) = captured_regions(
        build("team", builds), ROUNDS, how, str(threads), folder=folder, direct=True, threads=threads, env=env
    )
    return job


@pytest.mark.parametrize(
    "how",
    [
        "barrier",
        "static",
        "dynamic",
        "lock",
        "process-shared",
        "sleep",
        "poll",
        "sigwait",
        "alternate",
        "stop",
        "ahead",
        "spin",
    ],
)
def test_all_threads_come_back(how: str, builds: Path, tmp_path: Path) -> None:
    """Each computes on, or the region would not end (tests/programs/team.c)."""
    job = region(builds, tmp_path / "of", how)
    flat = flat_job(job, tmp_path)
    assert flat.header.registers.gs_base == 0
    assert [one.registers.gs_base for one in flat.threads] == [SLOT_BYTES]
    with DirectAgent(job, restorer(), scratch=tmp_path) as agent:
        times = [agent.repeat() for _ in range(2)]
    assert all(0 < time.wall < 5 and time.switches is not None and time.faults is None for time in times)


@pytest.mark.parametrize("how", ["barrier", "static"])
def test_another_process_on_a_threads_processor_is_seen(how: str, builds: Path, tmp_path: Path) -> None:
    """The other thread waits for its processor while the first spins, or sleeps, at the barrier."""
    job = region(builds, tmp_path / "of", how)
    flat_job(job, tmp_path)
    first, other = max(os.sched_getaffinity(0)), min(os.sched_getaffinity(0))
    with rivals(other, 2), DirectAgent(job, restorer(), scratch=tmp_path, cpu=first) as agent:
        times = [agent.repeat() for _ in range(3)]
    # Longer than probe/node/quietness.py lets pass.
    assert all(time.delay is not None and time.delay > 0.02 * (time.warm + time.wall) + 0.002 for time in times)


@pytest.mark.parametrize(("how", "marking"), [("crew", (0,)), ("boss", (0, 0))])
def test_a_region_is_that_of_the_marking_thread(how: str, marking: Lineage, builds: Path, tmp_path: Path) -> None:
    """The first thread waits in pthread_join, or sleeps by the clock, and comes back as one of the others."""
    path, crew = build("crews", builds), "3"
    as_it_ran: dict[str, Any] = {"direct": True, "threads": 3, "marking": (marking,)}
    (job,) = captured_regions(path, ROUNDS, how, crew, folder=tmp_path / "of", **as_it_ran)
    flat = flat_job(job, tmp_path)
    assert flat.header.registers.gs_base == 0
    assert sorted(one.registers.gs_base // SLOT_BYTES for one in flat.threads) == [1, 2, 3, 4][: 2 + len(marking)]
    state = read_state(job.images)
    (stack,) = (vma for vma in state.vmas if vma.start <= state.layout.start_stack < vma.end)
    on_it = [one.slot for one in state.others if stack.start <= one.registers["sp"] < stack.end]
    assert len(on_it) == 1 and not stack.start <= state.registers["sp"] < stack.end
    with DirectAgent(job, restorer(), scratch=tmp_path) as agent:
        assert all(0 < agent.repeat().wall < 5 for _ in range(2))


@pytest.mark.parametrize("how", ["read", "handler"])
def test_a_thread_that_reads_when_the_first_is_stopped(how: str, builds: Path, tmp_path: Path) -> None:
    """By itself, and in a signal handler on a stack of its own. The first has written nothing yet: the call is made
    again where it is restored."""
    job = region(builds, tmp_path / "of", how)
    flat_job(job, tmp_path)
    (other,) = read_state(job.images).others
    assert other.registers["ax"] == call_number("read")
    signals = other.signals
    on_it = signals.stack_address <= other.registers["sp"] < signals.stack_address + signals.stack_size
    assert on_it == (how == "handler") and signals.stack_size == 64 << 10
    with DirectAgent(job, restorer(), scratch=tmp_path) as agent:
        assert all(0 < agent.repeat().wall < 5 for _ in range(2))


def test_a_thread_that_uses_the_gs_base_itself_is_refused(builds: Path, tmp_path: Path) -> None:
    with pytest.raises(ProgramUnsupported, match="uses the GS register itself, by which a probe tells threads apart"):
        region(builds, tmp_path / "of", "gs")


def test_loops_that_are_cancelled_come_back(builds: Path, tmp_path: Path) -> None:
    """One thread ends the loop of all (tests/programs/team.c checks that it did)."""
    job = region(builds, tmp_path / "of", "cancel", OMP_CANCELLATION="true")
    flat_job(job, tmp_path)
    with DirectAgent(job, restorer(), scratch=tmp_path) as agent:
        assert all(0 < agent.repeat().wall < 5 for _ in range(2))


def test_many_more_threads_than_processors_come_back(builds: Path, tmp_path: Path) -> None:
    job = region(builds, tmp_path / "of", "barrier", threads=17)
    flat = flat_job(job, tmp_path, watched=False)
    assert sorted(one.registers.gs_base // SLOT_BYTES for one in flat.threads) == list(range(1, 17))
    with DirectAgent(job, restorer(), scratch=tmp_path) as agent:
        assert agent.repeat().wall > 0


def test_a_thread_that_does_not_come_back_is_seen(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other tests could not fail otherwise: without the other thread the barrier never opens."""
    job = region(builds, tmp_path / "of", "barrier")
    flat = flat_job(job, tmp_path, watched=False)
    flat.threads = []
    monkeypatch.setattr(direct_restore, "region_limit", lambda job: 2.0)
    (job.images / NAME).write_bytes(encode(flat))
    with pytest.raises(PhaseFailed), DirectAgent(job, restorer(), scratch=tmp_path) as agent:
        agent.repeat()


@pytest.mark.parametrize("how", ["robust", "priority"])
def test_a_lock_that_the_kernel_knows_the_owner_of_is_refused(how: str, builds: Path, tmp_path: Path) -> None:
    """One thread holds it, or waits for it."""
    with pytest.raises(ProgramUnsupported, match="a robust or priority-inheriting lock in use"):
        region(builds, tmp_path / "of", how)


def test_a_thread_that_faults_fails_its_phase(team_region: RestoreJob, tmp_path: Path) -> None:
    """Beside the first. The error says so at once, and nothing is left."""
    folder = tmp_path / "images"
    shutil.copytree(team_region.images, folder)
    flat = decode(folder / NAME)
    flat.threads[0].registers.ip = 0
    (folder / NAME).write_bytes(encode(flat))
    job = replace(team_region, images=folder)
    with (
        DirectAgent(job, restorer(), scratch=tmp_path) as agent,
        pytest.raises(PhaseFailed, match=r"signal 11|SIGSEGV"),
    ):
        agent.repeat()
    assert not list(tmp_path.glob("phase-*"))


@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "OMP_DYNAMIC", "OMP_CANCELLATION", "OMP_NESTED"])
def test_openmp_may_be_told_otherwise(name: str, builds: Path, tmp_path: Path) -> None:
    """Bound to processors, free to take fewer, cancellable, nested."""
    job = region(builds, tmp_path / "of", "static", **{name: "true"})
    flat_job(job, tmp_path)
    with DirectAgent(job, restorer(), scratch=tmp_path) as agent:
        assert 0 < agent.repeat().wall < 5


@contextmanager
def for_nobody(builds: Path, job: RestoreJob, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A restorer and a folder that anybody may use."""
    open_to_anybody(job.images.parent)
    open_to_anybody(builds)
    tmp_path.chmod(0o777)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(0o777)
    for_anybody(tmp_path / "code")
    program = tmp_path / "restorer"
    shutil.copy(restorer(), program)
    program.chmod(0o755)
    yield program, scratch


@pytest.mark.parametrize("may_start_threads", [True, False])
def test_an_ordinary_user_needs_no_more_than_a_few_threads(
    may_start_threads: bool, builds: Path, tmp_path: Path
) -> None:
    job = region(builds, tmp_path / "of", "barrier")
    flat_job(job, tmp_path, watched=False)
    with for_nobody(builds, job, tmp_path) as (program, scratch):

        def restored() -> str:
            direct_restore._AGENT = tmp_path / "code" / "checkpoint" / "restore" / "direct_agent.py"
            plain = direct_restore.direct_spec

            def spec_of(*arguments: Any) -> dict[str, Any]:
                # As if `ulimit -u` left room for none.
                return plain(*arguments) | ({} if may_start_threads else {"threads": 0})

            direct_restore.direct_spec = spec_of
            try:
                with DirectAgent(job, program, scratch=scratch) as agent:
                    return f"{agent.repeat().wall > 0}"
            except DirectRefused as error:
                return str(error)

        said = as_nobody(restored)
    assert said == "True" if may_start_threads else "starting thread 0" in said and "ulimit -u" in said


def damaged(flat: FlatImage, how: str) -> bytes:
    """The image with a table of threads that a build would not write."""
    first = flat.threads[0]
    if how == "two threads on one stack":
        flat.threads = [first, Thread.from_buffer_copy(bytes(first))]
    elif how == "the first one's stack":
        first.registers.sp = flat.header.registers.sp
    elif how == "clear_tid outside":
        first.clear_tid = 0x123456789000
    elif how == "rseq outside":
        first.rseq = 0x123456789000
    data = bytearray(encode(flat))
    header = Header.from_buffer_copy(data)
    table = Table.from_buffer_copy(data, header.header_size)
    if how == "2^32 threads":
        table.count = 1 << 32
    elif how == "more threads than there may be":
        table.count = MOST_THREADS + 1
    elif how == "a table in the header":
        table.offset = 8
    data[header.header_size : header.header_size + 16] = bytes(table)
    if how == "no room in the park":
        header.park_size -= 4096
    header.checksum = checksum(bytes(header)[Header.version.offset :] + bytes(data[header.header_size :]))
    data[: header.header_size] = bytes(header)
    return bytes(data)


@pytest.fixture(scope="module")
def team_region(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> RestoreJob:
    folder = tmp_path_factory.mktemp("team")
    job = region(builds, folder / "of", "barrier")
    flat_job(job, folder, watched=False)
    return job


@pytest.mark.parametrize(
    "how",
    [
        "two threads on one stack", "the first one's stack", "clear_tid outside", "rseq outside", "2^32 threads",
        "more threads than there may be", "a table in the header", "no room in the park",
    ],
)  # fmt: skip
def test_tables_of_threads_made_to_harm_are_refused(how: str, team_region: RestoreJob, tmp_path: Path) -> None:
    data = damaged(decode(team_region.images / NAME), how)
    status, progress, step, _ = report_of(data, read_state(team_region.images).pages_image, tmp_path / "run")
    assert os.WIFEXITED(status) and (progress, step) == (FAILED, TABLE)
    if how in ("2^32 threads",):
        (tmp_path / "direct.img").write_bytes(data)
        with pytest.raises(ProbeFileDamaged, match="a table leaves it"):
            decode(tmp_path / "direct.img")


def test_more_threads_than_are_restored_are_not_written(team_region: RestoreJob) -> None:
    flat = decode(team_region.images / NAME)
    flat.threads *= MOST_THREADS + 1
    with pytest.raises(ValueError, match="257 threads beside the first; at most 256"):
        encode(flat)


def test_the_state_of_each_thread_is_kept(team_region: RestoreJob) -> None:
    state = read_state(team_region.images)
    (other,) = state.others
    assert other.slot == 1 and other.comm == "team" and other.thread.clear_tid and other.registers["fs_base"]
    assert len(state.tasks[0].threads) == 2
