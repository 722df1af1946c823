# SPDX-License-Identifier: Apache-2.0
"""Programs that no probe can be made of: refused by name, with the exit code of the reason."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from command import Command
from conftest import MakeProgram
from programs import bad_file

from checkpoint.errors import ProgramUnsupported
from probe import BuildOptions, SelectionOptions, build, show

REFUSED = {
    "notelf": "not an ELF program",
    "empty": "not an ELF program",
    "elf32": "32-bit",
    "aarch64": "not for x86-64",
    "truncated": "refuses to execute",
    "nointerpreter": "/nonexistent/interpreter",
    "noexec": "not executable",
    "folder": "a folder",
}


@pytest.mark.parametrize(("action", "kind"), [*(("build", kind) for kind in REFUSED), ("trace", "elf32")])
def test_what_cannot_be_run_is_refused(action: str, kind: str, command: Command, tmp_path: Path) -> None:
    path = bad_file(kind, tmp_path)
    output = tmp_path / "out"
    said = command.refused(3, action, "-q", "-o", output, "--", path)
    assert REFUSED[kind] in said and str(path) in said
    assert not output.exists()


def test_a_program_that_is_not_there(command: Command, tmp_path: Path) -> None:
    said = command.refused(3, "build", "-q", "-o", tmp_path / "out", "--", tmp_path / "absent")
    assert "not found" in said and "absent" in said
    assert "not found" in command.refused(3, "build", "-q", "-o", tmp_path / "out", "--", "no-such-program")


def test_a_setuid_program(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    path = tmp_path / "privileged"
    shutil.copyfile(program("short"), path)
    path.chmod(0o4755)
    assert "setuid" in command.refused(4, "build", "-q", "-o", tmp_path / "out", "--", path)


def test_a_missing_library(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    path = tmp_path / "farlib"
    shutil.copy(program("farlib"), path)
    assert "library" in command.refused(6, "trace", "-q", "-o", tmp_path / "out", "--", path)


@pytest.mark.parametrize(
    ("name", "arguments", "code", "words"),
    [
        ("short", (), 5, ["--interval"]),
        ("crash", ("200",), 6, ["signal 11 (SIGSEGV)"]),
        ("abort", ("200",), 6, ["signal 6 (SIGABRT)"]),
        ("fail", ("20",), 6, ["exited with status 3 before there was enough to trace", "fail: as asked"]),
        ("threads", ("200",), 4, ["started a thread", "OMP_NUM_THREADS"]),
        ("forker", ("200",), 4, ["of its CPU time is that of processes it starts", "--program"]),
        ("helpers", ("200", "forever"), 4, ["live beside it nearly all the time"]),
        ("helpers", ("200", "clone"), 4, ["started a process that shares its memory"]),
        ("helpers", ("3000", "daemon"), 4, ["ended, and processes that it started go on", "foreground"]),
        ("selfcheck", ("300",), 7, ["traced"]),
        ("random", ("600",), 7, ["random"]),
        ("random", ("600", "loud"), 7, []),
    ],
)
def test_what_a_run_shows(
    name: str,
    arguments: tuple[str, ...],
    code: int,
    words: list[str],
    command: Command,
    tmp_path: Path,
    program: MakeProgram,
) -> None:
    path = program(name)
    said = command.refused(code, "build", "-q", "--interval", "10ms", "-o", tmp_path / "out", "--", path, *arguments)
    assert name in said
    assert [w for w in words if w not in said] == []
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("socket", ("200",), "a socket (descriptor"),
        ("pipe", ("200",), "a pipe (descriptor"),
        ("shm", ("200",), "a memfd (descriptor 3)"),
        ("holder", ("200", "deleted"), "a deleted file (descriptor 3"),
        ("holder", ("200", "mapped"), "deleted file"),
        ("holder", ("200", "fifo"), "a named pipe"),
    ],
)
def test_what_a_phase_holds(
    name: str, arguments: tuple[str, ...], words: str, tmp_path: Path, program: MakeProgram
) -> None:
    quick = BuildOptions(interval=0.02, runs=1, selection=SelectionOptions(max_phases=2))
    argv = [str(program(name)), *arguments]
    with pytest.raises(ProgramUnsupported, match=re.escape(words)) as refused:
        build(argv, tmp_path / "out", options=quick, cwd=str(tmp_path))
    assert argv[0] in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_exit_status_by_convention(tmp_path: Path, program: MakeProgram) -> None:
    """A status that all runs agree on, and output that a tracer changes, are told and refuse nothing."""
    quick = BuildOptions(interval=0.02, runs=1, selection=SelectionOptions(max_phases=2))
    built = build([str(program("verdict")), "300", "-"], tmp_path / "out", options=quick, cwd=str(tmp_path))
    assert "every run exited with status 10" in built.manifest.notes
    assert any("stderr: 1 lines differ from plain runs' in numbers alone" in note for note in built.manifest.notes)
    assert not any("exited" in warning or "stderr" in warning for warning in built.manifest.warnings)
    assert show(built.path)["notes"] == list(built.manifest.notes)


def test_exit_statuses_that_alternate(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    arguments = ["--interval", "10ms", "-o", tmp_path / "out", "--", program("verdict"), "200", tmp_path / "runs"]
    said = command.refused(7, "build", "-q", *arguments)
    assert "exited with status 20, the traced run with status 10" in said
    assert not (tmp_path / "out").exists()


def test_the_program_may_be_in_path(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    folder = program("nbody").parent
    path = f"{folder}:{os.environ['PATH']}"
    done = command("trace", "-o", tmp_path / "p", "--interval", "10ms", "--", "nbody", "60", environment={"PATH": path})
    assert done.returncode == 0 and "intervals" in done.stdout
