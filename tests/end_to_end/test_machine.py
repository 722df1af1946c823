# SPDX-License-Identifier: Apache-2.0
"""Refusals by the machine: privileges, CRIU, room on the disk, folders. Each by its own exit code."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from command import Command, criu_script, in_mounts, small_disk
from conftest import MakeProgram, Sample
from direct_runs import for_anybody, python_for_anybody

QUICK = ("--interval", "20ms", "--max-phases", "2", "-q")

WITHOUT_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]
"""Root as in a container: the number alone, without what it is for."""

FAILING = """
for last; do :; done
case " $* " in
*" --version "*) exec $REAL --version ;;
*" %s "*)
    while [ $# -gt 0 ]; do case $1 in -D) images=$2 ;; -W) work=$2 ;; -o) log=$2 ;; esac; shift; done
    cat > "${work:-$images}/$log" <<END
Error (criu/util.c:1): rlimit: Can't setup RLIMIT_NOFILE for self
Warn  (criu/kerndat.c:2): something harmless
Error (criu/files-reg.c:3): Can't lookup mount=42 for fd=7 path=/some/file
Error (criu/cr-dump.c:4): Dumping FAILED.
Error (criu/cr-restore.c:5): Restoring FAILED.
END
    exit 1 ;;
*) exec $REAL "$@" ;;
esac
"""


@pytest.fixture
def readable(sample: Sample, open_folder: Path) -> Path:
    """The sample where everybody may read it."""
    path = open_folder / "sample.probe"
    shutil.copyfile(sample.path, path)
    path.chmod(0o644)
    return path


def test_criu_needs_privileges_to_build(command: Command, open_folder: Path) -> None:
    options = (*QUICK, "--capture", "criu", "-o", open_folder / "out")
    said = command.refused(8, "build", *options, "--", "/bin/true", nobody=True)
    assert "root" in said and "sudo" in said


def test_running_with_criu_needs_privileges(command: Command, readable: Path) -> None:
    assert "root" in command.refused(8, "run", "-q", "--restorer", "criu", readable, nobody=True)


@pytest.mark.timed
@pytest.mark.parametrize("options", [[], ["--restorer", "direct"], ["--only-recorded-calls", "--touch-in-order"]])
def test_anybody_can_run_a_probe(
    options: list[str], sample: Sample, command: Command, readable: Path, open_folder: Path
) -> None:
    """An ordinary user, and no CRIU on the machine."""
    code = for_anybody(open_folder / "code")
    environment = criu_script(open_folder / "none", "exit 127")
    environment |= {"CODE_FOR_ANYBODY": str(code), "PYTHON_FOR_ANYBODY": python_for_anybody()}
    result = command.json("run", "--repeat", "2", *options, readable, nobody=True, environment=environment)
    assert [(p["status"], p["restorer"]) for p in result["phases"]] == [("ok", "direct")] * len(result["phases"])
    assert 0.5 < result["prediction"]["seconds"] / sample.described["et_ref_seconds"] < 2
    assert [w for w in result["warnings"] if "landlock" in w or "filter" in w] == []


def test_root_without_capabilities(command: Command, sample: Sample) -> None:
    for _ in range(3):  # the namespaces are refused before or after the agent's instructions are written
        said = command.refused(8, "run", "-q", "--restorer", "criu", sample.path, prefix=WITHOUT_CAPABILITIES)
        assert "not permitted" in said
    done = command("run", "-q", "--repeat", "1", sample.path, prefix=WITHOUT_CAPABILITIES)
    assert done.returncode == 0, done.stderr


def test_tracing_needs_no_privileges(command: Command, open_folder: Path, program: MakeProgram) -> None:
    path = open_folder / "nbody"
    shutil.copy(program("nbody"), path)
    output = open_folder / "out.profile"
    arguments = ["trace", "--interval", "10ms", "-q", "-o", output, "--", path, "100"]
    cache = {"XDG_CACHE_HOME": str(open_folder / "cache")}
    done = command(*arguments, nobody=True, cwd=open_folder, environment=cache)
    assert done.returncode == 0, done.stderr
    assert output.stat().st_uid == 65534 and output.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("action", ["build", "run"])
def test_no_criu(action: str, sample: Sample, command: Command, tmp_path: Path) -> None:
    arguments = (
        ["run", "--restorer", "criu", sample.path]
        if action == "run"
        else ["build", *QUICK, "--capture", "criu", "-o", tmp_path / "out", "--", *sample.argv]
    )
    # The folders that are searched besides PATH are empty too.
    prefix = in_mounts(*(f"mount -t tmpfs none {d}" for d in ("/usr/local/sbin",) if Path(d).is_dir()))
    missing = criu_script(tmp_path / "none", "exit 127")
    said = command.refused(9, *arguments, environment=missing, prefix=prefix)
    assert "CRIU >= 4.1 is needed" in said and "probe doctor --fix" in said
    old = criu_script(tmp_path / "old", 'echo "Version: 3.17.1"')
    said = command.refused(9, *arguments, environment=old, prefix=prefix)
    assert "the system CRIU is 3.17.1" in said and "no private CRIU" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_failing_criu_is_quoted(sample: Sample, command: Command, tmp_path: Path) -> None:
    dumping = criu_script(tmp_path / "dumping", FAILING % "dump")
    restoring = criu_script(tmp_path / "restoring", FAILING % "restore")
    build = ["build", *QUICK, "--capture", "criu", "-o", tmp_path / "out", "--", sample.argv[0], "80"]
    for arguments, environment in ((build, dumping), (["run", "-q", "--restorer", "criu", sample.path], restoring)):
        said = command.refused(9, *arguments, environment=environment)
        assert "Can't lookup mount=42 for fd=7 path=/some/file" in said
        assert "RLIMIT_NOFILE" not in said and "FAILED" not in said
        assert not (tmp_path / "out").exists()


def test_output_folders(command: Command, sample: Sample, tmp_path: Path, open_folder: Path) -> None:
    program = ["--", *sample.argv]
    for action in ("build", "trace"):
        said = command.refused(10, action, "-q", "-o", tmp_path / "absent" / "out", *program)
        assert f"{tmp_path / 'absent'}: no such folder" in said
        said = command.refused(10, action, "-q", "-o", tmp_path, *program)
        assert f"{tmp_path}: is a folder" in said
        said = command.refused(10, action, "-q", "-o", sample.path / "out", *program)
        assert str(sample.path) in said
    locked = open_folder / "locked"
    locked.mkdir(mode=0o755)
    said = command.refused(10, "trace", "-q", "-o", locked / "out", "--", "/bin/true", nobody=True)
    assert f"{locked}: cannot be written" in said
    read_only = in_mounts(f"mount --bind '{locked}' '{locked}'", f"mount -o remount,bind,ro '{locked}'")
    said = command.refused(10, "build", "-q", "-o", locked / "out", *program, prefix=read_only)
    assert f"{locked}: cannot be written" in said


def test_input_that_is_not_there(command: Command, tmp_path: Path, sample: Sample) -> None:
    assert "absent.probe" in command.refused(10, "run", tmp_path / "absent.probe")
    assert "absent.probe" in command.refused(10, "show", tmp_path / "absent.probe")
    done = command("build", "--stdin", tmp_path / "absent", "-o", tmp_path / "out", "--", *sample.argv)
    assert done.returncode == 2 and "absent" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("kilobytes", "stage"), [(8, "trace"), (5_000, "capture"), (10_000, "capture")])
def test_a_full_disk_under_the_work_folder(
    kilobytes: int, stage: str, command: Command, tmp_path: Path, program: MakeProgram
) -> None:
    """A checkpoint of the wavefront takes 6.4 MB, all of it touched: reduced it takes as much again."""
    small = tmp_path / "small"
    small.mkdir()
    arguments = ["build", "--interval", "20ms", "--max-phases", "1", "-o", tmp_path / "out", "--work", small / "work"]
    arguments += ["--", program("sweep"), "2"]
    done = command(*arguments, prefix=small_disk(small, kilobytes))
    begun = [line for line in done.stderr.splitlines() if line.endswith("...")]
    assert (done.returncode, begun[-1]) == (10, f"{stage} ..."), done.stderr
    assert re.search("disk is full|No space left|no room for a copy", done.stderr) and str(small) in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_full_disk_under_a_run(command: Command, sample: Sample) -> None:
    said = command.refused(10, "run", "-q", sample.path, prefix=small_disk(command.temporary, 200))
    assert "No space left" in said or "disk is full" in said
    assert str(command.temporary) in said


def test_a_program_that_fills_the_disk(command: Command, tmp_path: Path) -> None:
    chatty = tmp_path / "chatty.sh"
    chatty.write_text("#!/bin/dash\ni=0\nwhile [ $i -lt 20000 ]; do i=$((i+1)); echo number $i; done\nexit 0\n")
    chatty.chmod(0o755)
    small = tmp_path / "small"
    small.mkdir()
    done = command(
        "build", *QUICK, "-o", tmp_path / "out", "--work", small / "work", "--", chatty, prefix=small_disk(small, 64)
    )
    assert done.returncode == 10 and re.search("disk is full|No space left", done.stderr), done.stderr
