# SPDX-License-Identifier: Apache-2.0
"""Programs that no probe can be made of: refused by name, with the exit code of the reason."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import Command
from conftest import MakeProgram
from programs import bad_file
from tracing import compile_small

import probe.pipeline.build
from checkpoint.criu.tool import Criu
from checkpoint.errors import CriuError, Diverged, ProgramUnsupported, Unpredictable
from checkpoint.process.descriptors import refusal_of_phases
from probe import BuildOptions, SelectionOptions, build, run, show, trace
from probe.formats.selection import Selection
from probe.selection.select import select_phases
from probe.selection.substitute import with_representatives
from probe.tracers import outside_looks

QUICK = BuildOptions(interval=0.02, runs=1, selection=SelectionOptions(max_phases=2))

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
        ("team", ("600", "orphan"), 4, ["its first thread ends before the others"]),
        ("team", ("600", "fork"), 4, ["beside its first one starts a process"]),
        ("team", ("600", "execute"), 4, ["a thread beside its first one replaces the program (execve)"]),
        ("team", ("20", "barrier", "300"), 14, [" threads, but", "processors allowed here"]),
        ("team", ("600", "fault"), 6, ["signal 11 (SIGSEGV)"]),
        ("team", ("600", "short"), 4, ["threads were started 1001 times (over 1000): use its thread pool"]),
        ("team", ("200", "barrier", "40"), 14, ["40 threads, but", "processors allowed here"]),
        (
            "crews",
            ("600", "fork"),
            4,
            ["its first thread starts a process: while another thread marks the places, it may not"],
        ),
        ("waiters", ("600", "fork"), 4, ["beside its first one starts a process"]),
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
    assert ("`probe profile` records what a program uses" in said) == (code in (4, 7))
    assert not (tmp_path / "out").exists()


def test_plain_runs_come_behind_what_may_refuse(tmp_path: Path, program: MakeProgram) -> None:
    work = tmp_path / "work"
    with pytest.raises(Diverged, match="did not repeat the traced run"):
        build([str(program("random")), "600"], tmp_path / "out", options=replace(QUICK, interval=0.01), work=work)
    assert (work / "validate.stdout").exists() and not list(work.glob("plain-*"))


def test_what_the_trace_alone_tells_is_said_behind_it(tmp_path: Path, program: MakeProgram) -> None:
    """A program none of whose intervals stands for others: no other run is made."""
    work = tmp_path / "work"
    options = BuildOptions(interval=0.005, selection=SelectionOptions(max_phases=4))
    with pytest.raises(Unpredictable, match="execute mostly other code than those that stand for them"):
        build([str(program("everchanging")), "3"], tmp_path / "out", options=options, work=work)
    assert (work / "trace.stdout").exists() and not (work / "validate.stdout").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("socket", ("2000",), ["a socket (descriptor 3)"]),
        ("holder", ("2000", "fifo"), ["a named pipe (descriptor 3)"]),
        ("holder", ("2000", "inotify"), ["an inotify descriptor (descriptor 3)"]),
        ("holder", ("2000", "timerfd"), ["a timer that ends when the clock is set (descriptor 3)"]),
        ("holder", ("2000", "large"), ["a deleted file of more than 64 MB (descriptor 3, "]),
    ],
)
def test_what_is_held_from_beginning_to_end(
    name: str, arguments: tuple[str, ...], words: list[str], tmp_path: Path, program: MakeProgram
) -> None:
    """Refused when it has been traced: no plain run is made."""
    argv = [str(program(name)), *arguments]
    with pytest.raises(ProgramUnsupported) as refused:
        build(argv, tmp_path / "out", options=QUICK, cwd=str(tmp_path), work=tmp_path / "work")
    said = str(refused.value)
    assert argv[0] in said and "while it runs" in said and [w for w in words if w not in said] == []
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "work" / "trace.stdout").exists() and not (tmp_path / "work" / "plain-0.stdout").exists()


@pytest.mark.slow
def test_a_pipe_from_the_program_that_writes_it(tmp_path: Path, program: MakeProgram) -> None:
    """A worker that reads what its wrapper writes: refused when it has been traced, too, by its own name."""
    worker = f"{{ {program('holder')} 2000 memfd; kill $(cat pid); }}"
    argv = ["sh", "-c", f"{{ sleep 60 & echo $! >pid; wait; }} | {worker}"]
    said = r"holder: while it runs, it holds a pipe \(descriptor 0\), which process \d+ \(\w+\) has too; .* by itself"
    with pytest.raises(ProgramUnsupported, match=said):
        build(argv, tmp_path / "out", options=QUICK, cwd=str(tmp_path), work=tmp_path / "work")
    assert not (tmp_path / "work" / "plain-0.stdout").exists()


def test_what_is_held_for_long_ends_the_run(
    tmp_path: Path, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of a minute is not traced to its end."""
    monkeypatch.setattr(outside_looks, "LASTING_SECONDS", 1.0)
    monkeypatch.chdir(tmp_path)
    begun = time.monotonic()
    with pytest.raises(ProgramUnsupported, match=re.escape("a named pipe (descriptor 3)")):
        trace([str(program("holder")), "60000", "fifo"], tmp_path / "out", tracer="native")
    assert time.monotonic() - begun < 45


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all", "closed"])
@pytest.mark.parametrize("capture", ["direct", "criu"])
def test_what_leads_to_the_program_itself(capture: str, kind: str, tmp_path: Path, program: MakeProgram) -> None:
    """Pipes, one of them full, sockets, epoll sets, deleted files, a file named by the process's number; or no standard
    streams at all."""
    options, argv, work = replace(QUICK, capture=capture), [str(program("inside")), kind, "300"], tmp_path / "work"
    built = build(argv, tmp_path / "out", options=options, cwd=str(tmp_path), work=work)
    again = build(
        argv, tmp_path / "again", options=replace(options, flow=True), cwd=str(tmp_path), work=work, resume=True
    )
    assert not [phase.direct.failure for phase in again.manifest.phases if phase.direct.failure]
    for restorer in ("direct", "criu")[: 1 + (capture == "criu")]:
        result = run(tmp_path / "out", repeats=1, restorer=restorer)
        assert len(result.phases) == len(built.manifest.phases) and all(phase.times for phase in result.phases)


@pytest.mark.slow
def test_criu_captures_what_direct_capture_cannot_hold(
    tmp_path: Path, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody chose the way, and the user is root; a build that goes on later knows how it was captured."""
    argv, work = [str(program("holder")), "600", "posix"], tmp_path / "work"
    with pytest.raises(
        ProgramUnsupported, match=r"direct capture cannot hold POSIX timers \(timer_create\), .* \(phase .*as root"
    ):
        build(argv, tmp_path / "out", options=replace(QUICK, capture="direct"), cwd=str(tmp_path))
    built = build(argv, tmp_path / "out", options=QUICK, cwd=str(tmp_path), work=work)
    said = "checkpoints are captured by CRIU: the program holds POSIX timers (timer_create), which only CRIU captures"
    assert said in built.manifest.notes
    assert all(phase.criu.cpu and not phase.direct.cpu for phase in built.manifest.phases)
    again = build(argv, tmp_path / "again", options=QUICK, cwd=str(tmp_path), work=work, resume=True)
    assert all(phase.criu.cpu for phase in again.manifest.phases)
    monkeypatch.setattr(probe.pipeline.build, "find_criu", no_criu)
    with pytest.raises(ProgramUnsupported, match="POSIX timers"):
        build(argv, tmp_path / "none", options=QUICK, cwd=str(tmp_path))


def no_criu() -> Criu:
    raise CriuError("there is none")


@pytest.mark.slow
def test_another_interval_stands_for_a_phase(
    tmp_path: Path, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket is open in the first half, where the representatives are put."""

    def first_ones(*arguments: Any) -> Selection:
        found = select_phases(*arguments)
        return with_representatives(found, {p.id: max(1, int(p.members[0])) for p in found.phases})

    monkeypatch.setattr("probe.pipeline.select.select_phases", first_ones)
    argv = [str(program("holder")), "600", "early"]
    one = replace(QUICK, selection=SelectionOptions(max_phases=1))
    built = build(argv, tmp_path / "out", options=one, cwd=str(tmp_path), work=tmp_path / "work")
    moved = [note for note in built.manifest.notes if "stands for it" in note]
    assert moved and all("a socket (descriptor 3)" in note for note in moved)
    again = build(argv, tmp_path / "again", options=one, cwd=str(tmp_path), work=tmp_path / "work", resume=True)
    assert [p.representative for p in again.manifest.phases] == [p.representative for p in built.manifest.phases]


def test_all_that_is_at_fault_is_named() -> None:
    faults = {3: ["a socket (descriptor 4)", "a memfd (descriptor 5)"], 1: ["a memfd (descriptor 5)"]}
    said = str(refusal_of_phases("solver", faults))
    assert "a socket (descriptor 4) (phase 3); a memfd (descriptor 5) (phase 1, 3)" in said


_GREEDY = """
#include <unistd.h>
static volatile long done;
__attribute__((noipa)) static void turns(void) { for (int i = 0; i < 200000; i++) done++; }
int main(void)
{
	/* As GNU Common Lisp sizes its heap: how far could it grow? */
	char *heap = sbrk(0);
	int pieces = brk(heap + (1L << 31)) ? 3000 : 1000;
	for (int i = 0; i < pieces; i++)
		turns();
	return 0;
}
"""


@pytest.mark.alone("beside others its runs wait, and are timed by the wall clock")
def test_a_program_that_does_more_with_less_memory(tmp_path: Path) -> None:
    path = compile_small(tmp_path, "greedy", _GREEDY, "-fno-pie", "-no-pie")
    with pytest.raises(Diverged, match=r"takes \d\.\d times as long where our stubs have some of its addresses"):
        build([str(path)], tmp_path / "out", options=QUICK)
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
