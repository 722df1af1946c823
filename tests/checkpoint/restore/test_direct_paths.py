# SPDX-License-Identifier: Apache-2.0
"""Files that a phase uses by their paths: recorded, seen in a view of their own, changed nowhere else."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from direct_runs import as_nobody, flat_job, for_anybody, open_to_anybody
from direct_state import no_namespaces, timed
from programs import build
from regions import captured_regions

from checkpoint.binary.syscall_names import call_number
from checkpoint.compiled import restorer
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.direct_restore import DirectAgent, DirectRefused
from checkpoint.restore.known_calls import plain_path
from reducer.member_table import is_plain_absolute


@pytest.fixture
def by_path(builds: Path, tmp_path: Path) -> RestoreJob:
    folder = tmp_path / "paths"
    folder.mkdir()
    (folder / "input").write_text("hello")
    (job,) = captured_regions(
        build("paths", builds), f"{folder}/../paths//input", str(folder / "made"), folder=folder
    )  # fmt: skip
    (folder / "made.moved").unlink(missing_ok=True)
    return job


def test_paths_are_recorded_as_the_kernel_takes_them(tmp_path: Path) -> None:
    """Probes hold files by plain paths; interpreters and compilers open many with `..` in them."""
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "inner")
    (tmp_path / "real" / "name").symlink_to("inner")
    found = [plain_path(f"{tmp_path}/{path}") for path in ("./a//b", "link/../name/c", "link/./c", "x/", "real/..")]
    assert found == [f"{tmp_path}/{path}" for path in ("a/b", "real/name/c", "link/c", "x")] + [str(tmp_path)]
    assert plain_path("//etc/../etc/hosts") == "/etc/hosts" and plain_path("/..") == "/"
    assert all(is_plain_absolute(path) for path in found)


def test_files_opened_and_changed_in_a_region_are_recorded(by_path: RestoreJob, tmp_path: Path) -> None:
    flat = flat_job(by_path, tmp_path)
    assert flat.opened == [str(tmp_path / "paths" / "input")] and flat.header.changes_paths
    assert {call_number("open"), call_number("openat")} & set(flat.calls) and call_number("rename") in flat.calls


def test_changes_stay_in_a_view_of_their_own(by_path: RestoreJob, tmp_path: Path) -> None:
    folder = tmp_path / "paths"
    flat_job(by_path, tmp_path)
    before = sorted(folder.iterdir())
    with DirectAgent(by_path, restorer(), scratch=tmp_path) as agent:
        agent.repeat()
        agent.repeat()
    assert sorted(folder.iterdir()) == before


def test_a_file_that_is_not_here_comes_from_the_probe(by_path: RestoreJob, tmp_path: Path) -> None:
    flat_job(by_path, tmp_path)
    original = tmp_path / "paths" / "input"
    original.rename(tmp_path / "copy")
    job = replace(by_path, binds=[(str(tmp_path / "copy"), str(original))])
    assert timed(job, tmp_path).wall > 0


def test_an_ordinary_user_gets_a_view_too(by_path: RestoreJob, builds: Path, tmp_path: Path) -> None:
    flat_job(by_path, tmp_path)
    open_to_anybody(builds)
    code = for_anybody(tmp_path / "code")
    open_to_anybody(tmp_path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(0o777)
    (tmp_path / "paths").chmod(0o777)
    program = tmp_path / "restorer"
    shutil.copy(restorer(), program)
    program.chmod(0o755)
    before = sorted((tmp_path / "paths").iterdir())
    by_path = replace(by_path, folders=(str(tmp_path / "paths"),))

    def restored() -> float:
        import checkpoint.restore.direct_restore

        checkpoint.restore.direct_restore._AGENT = code / "checkpoint" / "restore" / "direct_agent.py"
        with DirectAgent(by_path, program, scratch=scratch) as agent:
            agent.repeat()
            return agent.repeat().wall

    assert as_nobody(restored) > 0
    assert sorted((tmp_path / "paths").iterdir()) == before


def test_a_user_without_namespaces_is_told_what_the_phase_needs(by_path: RestoreJob, tmp_path: Path) -> None:
    flat_job(by_path, tmp_path)
    open_to_anybody(tmp_path)
    tmp_path.chmod(0o777)

    program = restorer()

    def refused() -> str:
        try:
            DirectAgent(by_path, program, scratch=tmp_path)
        except DirectRefused as error:
            return str(error)
        return "not refused"

    said = as_nobody(refused, no_namespaces)
    assert "it creates, changes or removes files" in said and "no user namespaces" in said
