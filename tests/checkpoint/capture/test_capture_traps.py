# SPDX-License-Identifier: Apache-2.0
"""Processes that are hard to capture directly: each restored with all that its region asks for, or refused by name."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from direct_runs import as_nobody, flat_job, open_to_anybody
from direct_state import timed
from programs import build
from regions import captured_regions

from checkpoint.capture.conditions import check_traceable
from checkpoint.capture.page_copy import require_room
from checkpoint.capture.stored import read_state
from checkpoint.criu.tool import find_criu
from checkpoint.errors import PrivilegeMissing, ProgramUnsupported, StorageError
from checkpoint.flat.convert import NotFlat
from checkpoint.restore.criu_restore import CriuAgent, RestoreJob
from probe.pipeline.reduce import PhaseToReduce, reduce_phase


def captured(scenario: str, builds: Path, folder: Path) -> RestoreJob:
    (job,) = captured_regions(build("traps", builds), scenario, folder=folder / "work", direct=True)
    return job


@pytest.mark.parametrize(
    "scenario",
    ["unreadable", "sparse", "scattered", "advised", "unforked", "profiled", "nondumpable", "handler", "paged"],
)
def test_what_its_region_asks_for_is_there(scenario: str, builds: Path, tmp_path: Path) -> None:
    job = captured(scenario, builds, tmp_path)
    flat_job(job, tmp_path, watched=False)
    assert timed(job, tmp_path).wall > 0
    reduced = reduce_phase(PhaseToReduce(job, 0.001), None, how="drop", folder=tmp_path)
    assert reduced.whole == "" and reduced.kept_pages <= reduced.raw_pages


def test_only_what_there_is_of_many_addresses_is_copied(builds: Path, tmp_path: Path) -> None:
    assert read_state(captured("sparse", builds, tmp_path).images).pages < 200


def test_a_pending_signal_is_held_or_named(builds: Path, tmp_path: Path) -> None:
    """Directly it is sent again; CRIU's checkpoints of it are refused."""
    assert [one.number for one in read_state(captured("pending", builds, tmp_path).images).queued] == [10]
    with pytest.raises(ProgramUnsupported, match=r"pending signal 10 \(SIGUSR1\)"):
        captured_regions(build("traps", builds), "pending", folder=tmp_path / "criu")


def test_another_process_is_named(builds: Path, tmp_path: Path) -> None:
    with pytest.raises(ProgramUnsupported, match=r"2 processes \(child \d+\)"):
        captured("child", builds, tmp_path)


@pytest.mark.parametrize("direct", [False, True])
def test_a_child_that_has_ended_is_left_out(direct: bool, builds: Path, tmp_path: Path) -> None:
    """By CRIU it is there when the phase is restored, and makes no difference either."""
    (job,) = captured_regions(build("traps", builds), "zombie", folder=tmp_path / "work", direct=direct)
    assert len(read_state(job.images).tasks) == 1
    if not direct:
        with CriuAgent(job, find_criu(), scratch=tmp_path) as agent:
            assert agent.repeat().wall > 0
    flat_job(job, tmp_path)
    assert timed(job, tmp_path).wall > 0


def test_a_posix_timer_is_named(builds: Path, tmp_path: Path) -> None:
    job = captured("posix", builds, tmp_path)
    with pytest.raises(NotFlat, match="POSIX timers"):
        flat_job(job, tmp_path, watched=False)
    reduced = reduce_phase(PhaseToReduce(job, 0.001), None, how="drop", folder=tmp_path)
    assert "POSIX timers" in reduced.whole


def test_a_disk_without_room_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"phase 3: no room for a copy of the process .* larger disk"):
        require_room(tmp_path, 1 << 50, "phase 3")


def test_a_policy_that_forbids_tracing_is_named(tmp_path: Path) -> None:
    (tmp_path / "scope").write_text("2\n")
    open_to_anybody(tmp_path)
    check_traceable("prog", "/bin/true", tmp_path / "scope")

    def as_user() -> str:
        try:
            check_traceable("prog", "/bin/true", tmp_path / "scope")
        except PrivilegeMissing as error:
            return str(error)
        return ""

    assert as_nobody(as_user) == (
        "prog: users may not trace programs here (yama ptrace_scope 2): ask for 1, or build as root"
    )


def test_file_capabilities_are_named(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"")
    # struct vfs_cap_data, version 2: CAP_NET_RAW permitted
    os.setxattr(program, "security.capability", struct.pack("<5I", 0x02000000, 1 << 13, 0, 0, 0))
    open_to_anybody(tmp_path)

    def as_user() -> str:
        try:
            check_traceable("prog", str(program), Path("/nowhere"))
        except ProgramUnsupported as error:
            return str(error)
        return ""

    assert "prog: has file capabilities, which it loses when traced" in as_nobody(as_user)
