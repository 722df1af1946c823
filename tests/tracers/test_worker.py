# SPDX-License-Identifier: Apache-2.0
"""The process that does the work of a wrapper: real shell scripts and launchers, chosen from or refused."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from programs import build
from tracing import program_of, streams_of

import probe.tracers.worker as module
from checkpoint.errors import Diverged, ProgramFailed, ProgramUnsupported
from checkpoint.process.program import Program, Worker
from checkpoint.process.tracee import Tracee
from probe.tracers.lives import WorkedByChildren
from probe.tracers.worker import WorkerChoice, find_worker, is_wrapper

Write = Callable[..., Program]


@pytest.fixture
def script(tmp_path: Path, builds: Path) -> Write:
    """script(LINES, FIRST): a script in which `helpers` is the program of that name."""
    helpers = build("helpers", builds)

    def written(lines: str, first: str = "#!/bin/sh") -> Program:
        path = tmp_path / "run"
        path.write_text(f"{first}\n{lines}\n".replace("helpers", str(helpers)))
        path.chmod(0o755)
        return program_of(path)

    return written


def found(program: Program, choice: WorkerChoice | None = None) -> Worker | None:
    with streams_of() as streams:
        return find_worker(program, streams, choice or WorkerChoice())


@pytest.mark.parametrize(
    ("first", "wrapper"),
    [
        ("#!/bin/sh", True),
        ("#! /usr/bin/env bash", True),
        ("#!/usr/bin/env -S dash -e", True),
        ("#!/usr/bin/python3", False),
        ("#!/usr/bin/env python3", False),
    ],
)
def test_a_shell_starts_programs(first: str, wrapper: bool, script: Write) -> None:
    assert is_wrapper(script("true", first)) is wrapper


def test_shells_themselves(builds: Path) -> None:
    assert is_wrapper(program_of(Path("/bin/sh"), "-c", "true"))
    assert not is_wrapper(program_of(build("short", builds)))


def test_the_worker_is_the_one_with_most_time(script: Write, builds: Path, tmp_path: Path) -> None:
    helpers = str(build("helpers", builds))
    program = script("helpers 20 start\ncd /\nhelpers 200 system 50 >/dev/null\nhelpers 20 start")
    worker = found(program)
    assert worker == Worker(helpers, 1, (helpers, "200", "system", "50"), "/")


def test_a_script_that_ends_as_its_worker(script: Write, builds: Path) -> None:
    worker = found(script("helpers 20 start\nexec helpers 200 start"))
    assert worker is not None and (worker.ordinal, worker.argv[1]) == (1, "200")


def test_a_script_that_computes_itself(script: Write) -> None:
    assert found(script("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; uname")) is None


def test_several_workers_are_named_and_chosen_from(script: Write, builds: Path) -> None:
    program = script("helpers 100 start\nhelpers 101 start\nhelpers 102 start")
    with pytest.raises(ProgramUnsupported, match=r"with --worker N.* 1: .*100 start .*, 2: .*101.*, 3: .*102"):
        found(program)
    for number in (1, 3):
        worker = found(program, WorkerChoice(number=number))
        assert worker is not None and (worker.ordinal, worker.argv[1]) == (number - 1, str(99 + number))
    with pytest.raises(ProgramUnsupported, match="--worker 4: there are 1: "):
        found(program, WorkerChoice(number=4))


def test_a_worker_by_its_program(script: Write, tmp_path: Path, builds: Path) -> None:
    other = tmp_path / "other"
    shutil.copy(build("helpers", builds), other)
    program = script(f"{other} 60 start\nhelpers 200 start")
    for name in (str(other), "other"):
        worker = found(program, WorkerChoice(program=name))
        assert worker is not None and worker.executable == str(other)
    launcher = tmp_path / "launcher"
    launcher.write_text(f"#!/bin/sh\nexec {other} 40 start\n")
    launcher.chmod(0o755)
    worker = found(script(f"helpers 200 start\n{launcher}"), WorkerChoice(program="launcher"))
    assert worker is not None and worker.executable == str(other)
    with pytest.raises(ProgramUnsupported, match="--program /bin/absent: not executed; there are 1: "):
        found(program, WorkerChoice(program="/bin/absent"))


def test_two_workers_at_once(script: Write) -> None:
    with pytest.raises(ProgramUnsupported, match="compute at the same time"):
        found(script("helpers 200 start &\nhelpers 220 start\nwait"))
    with pytest.raises(ProgramUnsupported, match="compute at the same time"):
        found(script("helpers 200 start &\nhelpers 220 start\nwait"), WorkerChoice(number=2))


def test_many_short_workers(script: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JUDGED_SECONDS", 0.0)
    with pytest.raises(ProgramUnsupported, match=r"executes \d\d\d programs, none of which has more than \d%"):
        found(script("i=0; while [ $i -lt 5000 ]; do helpers 2 start; i=$((i+1)); done"))


def test_copies_that_work_are_refused(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the program itself was chosen."""
    helpers = build("helpers", builds)
    with pytest.raises(WorkedByChildren, match=r"9\d% of its CPU time is that of processes it starts \(1: "):
        found(program_of(helpers, "300", "wrapper"))
    assert found(program_of(helpers, "300", "wrapper"), WorkerChoice(number=1)) is None
    monkeypatch.setattr(module, "JUDGED_SECONDS", 0.3)
    begun = time.monotonic()
    with pytest.raises(WorkedByChildren):
        found(program_of(helpers, "60000", "wrapper"))
    assert time.monotonic() - begun < 20


def test_a_worker_beside_copies_that_work(script: Write, builds: Path) -> None:
    worker = found(script("(i=0; while [ $i -lt 500000 ]; do i=$((i+1)); done)\nhelpers 100 start"))
    assert worker is not None and worker.executable == str(build("helpers", builds))


def test_a_worker_that_goes_on(script: Write) -> None:
    with pytest.raises(ProgramUnsupported, match="ended, and processes that it started go on"):
        found(script("helpers 20000 start &"))


def test_a_wrapper_that_fails(script: Write) -> None:
    with pytest.raises(ProgramFailed, match="SIGKILL"):
        found(script("kill -9 $$"))


def test_a_worker_that_is_not_started_again(script: Write, builds: Path) -> None:
    worker = Worker(str(build("helpers", builds)), 2, ("helpers",), "/")
    program = replace(script("helpers 20 start\nhelpers 20 start"), worker=worker)
    with streams_of() as streams, pytest.raises(Diverged, match="2 times, and not 3 as before"):
        Tracee.start(program, streams)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("env -i helpers 20 start", "takes GLIBC_TUNABLES out"),
        ("set -m; helpers 20 start | sleep 0.5", "process group with others"),
    ],
)
def test_a_wrapper_that_changes_how_its_worker_runs(line: str, words: str, script: Write, builds: Path) -> None:
    program = script(line, "#!/bin/bash")
    program = replace(program, worker=Worker(str(build("helpers", builds)), 0, ("helpers",), "/"))
    with streams_of() as streams, pytest.raises(ProgramUnsupported, match=words):
        Tracee.start(program, streams)
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(builds).encode() in _contents(p)]
    assert left == []


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("line", ["helpers 20 start", "set -m; helpers 20 start", "setsid --wait helpers 20 start"])
def test_a_worker_leads_a_session_of_its_own(line: str, script: Write, builds: Path) -> None:
    program = replace(script(line, "#!/bin/bash"), worker=Worker(str(build("helpers", builds)), 0, ("helpers",), "/"))
    with streams_of() as streams, Tracee.start(program, streams) as tracee:
        assert os.getsid(tracee.pid) == tracee.pid
