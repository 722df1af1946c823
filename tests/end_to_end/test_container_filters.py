# SPDX-License-Identifier: Apache-2.0
"""Builds and runs where single system calls fail: by filters of containers, or on file systems that lack something."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from command import Command
from conftest import MakeProgram
from direct_runs import as_user, flat_job, refuse_calls
from direct_state import timed
from filtered import filtered
from regions import captured_regions

from checkpoint.binary.syscall_names import call_number
from checkpoint.capture.stored import read_state
from probe.pipeline.reduce import PhaseToReduce, reduce_phase


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("ptrace", "is refused (kernel.yama.ptrace_scope, or a container's filter)"),
        ("personality", "personality(ADDR_NO_RANDOMIZE) is refused here; run outside the container's filter"),
    ],
)
def test_a_build_that_cannot_do_without_names_the_call(
    call: str, says: str, command: Command, tmp_path: Path, program: MakeProgram
) -> None:
    arguments = ("-q", "-o", tmp_path / "out", "--", program("nbody"), "100")
    said = command.refused(8, "build", *arguments, prefix=filtered(call))
    assert call in said and says in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_build_goes_another_way(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    """Without process_vm_readv, userfaultfd, namespaces and hard links; and a run without ptrace, too."""
    refused = ("process_vm_readv", "userfaultfd", "unshare", "link")
    options = ("--interval", "20ms", "--max-phases", "2", "--budget", "1", "--capture", "direct")
    path = tmp_path / "out.probe"
    arguments = ("--json", *options, "-o", path, "--", program("nbody"), "60")
    done = command("build", *arguments, prefix=filtered(*refused))
    assert done.returncode == 0, done.stderr
    built = json.loads(done.stdout)
    assert any("userfaultfd is refused here (a container's filter?)" in warning for warning in built["warnings"])
    assert not any("kept whole" in warning for warning in built["warnings"])
    result = command.json("run", "--repeat", "1", path, prefix=filtered("ptrace", *refused))
    assert {(phase["status"], phase["restorer"]) for phase in result["phases"]} == {("ok", "direct")}


def test_pages_are_copied_where_process_vm_readv_is_refused(tmp_path: Path, program: MakeProgram) -> None:
    path = program("traps")

    def captured(folder: Path) -> int:
        (job,) = captured_regions(path, "unreadable", folder=folder, direct=True)
        flat_job(job, tmp_path, watched=False)
        assert timed(job, tmp_path).wall > 0
        return read_state(job.images).pages

    pages = as_user(0, lambda: captured(tmp_path / "filtered"), lambda: refuse_calls(call_number("process_vm_readv")))
    assert pages == captured(tmp_path / "free")


def test_a_filter_that_refuses_filters_is_named(tmp_path: Path, program: MakeProgram) -> None:
    """What the restorer could not do is said in words."""
    (job,) = captured_regions(program("traps"), "unforked", folder=tmp_path / "work", direct=True)

    def whole() -> str:
        return reduce_phase(PhaseToReduce(job, 0.001), None, how="drop", folder=tmp_path).whole

    said = as_user(0, whole, lambda: refuse_calls(call_number("seccomp")))
    assert "confining it (no_new_privs, landlock or seccomp): Operation not permitted" in said
    assert "a container's filter" in said


def test_a_work_folder_without_locks_is_named(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    """What NFS without its lock server, or Lustre without -o flock, says to flock."""
    arguments = ("-q", "-o", tmp_path / "out", "--work", tmp_path / "work", "--", program("nbody"), "100")
    said = command.refused(10, "build", *arguments, prefix=filtered("flock", error=errno.ENOLCK))
    assert f"{tmp_path / 'work'}: its file system takes no locks (No locks available); give --work" in said
