# SPDX-License-Identifier: Apache-2.0
"""A thread whose next place a run waits for does something else first: it comes there, or a refusal says what it did.

Each is the first thread, one that it starts, or one that another has started (tests/programs/astray.c). That nothing is
left behind is seen to by tests/conftest.py.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import regions
from programs import build
from regions import captured_regions
from tracing import SECONDS, program_of, streams_of

from checkpoint.binary.syscall_names import call_number
from checkpoint.capture.stored import read_state
from checkpoint.errors import Diverged, ProbeError, ProgramFailed, ProgramUnsupported
from checkpoint.process import team as team_module
from checkpoint.process.children import Child
from checkpoint.process.program import Lineage, Program
from checkpoint.process.team import SLOT_BYTES, Team
from checkpoint.process.tracee import Tracee, What
from checkpoint.process.waiting import threads_of
from checkpoint.restore.criu_restore import RestoreJob
from probe.pipeline import capture as capture_module
from probe.pipeline.runs import standing
from probe.pipeline.runs.stamped import stamped_run
from probe.tracers import team as team_tracer

MARKING: dict[str, tuple[Lineage, ...]] = {"first": (), "crew": ((0,),), "boss": ((0, 0),)}

REPLACES = r"a thread beside its first one replaces the program \(execve\). in a probe only the first may"

every = pytest.mark.parametrize("who", MARKING)


def region(builds: Path, folder: Path, how: str, who: str) -> RestoreJob:
    marking = cast(Any, MARKING[who])
    (job,) = captured_regions(
        build("astray", builds), how, who, folder=folder, direct=True, threads=2, marking=marking
    )  # fmt: skip
    return job


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of 0.1 s: who waits for what never comes has some seconds."""
    monkeypatch.setattr(capture_module, "DUMP_SECONDS", 5.0)
    monkeypatch.setattr(regions, "SECONDS", 0.25)


@every
@pytest.mark.parametrize("how", ["fork", "vfork", "stop", "stop-itself"])
def test_it_comes_to_its_place_all_the_same(how: str, who: str, builds: Path, tmp_path: Path) -> None:
    state = read_state(region(builds, tmp_path, how, who).images)
    assert state.registers["gs_base"] == 0 and state.signals.pending == ()
    assert all(one.registers["gs_base"] == one.slot * SLOT_BYTES > 0 for one in state.others)


@every
@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        (
            "leave",
            ProbeError,
            r"first thread ends before the others|of phases \[1\] \(about to exit\)",
        ),
        (
            "fault",
            ProgramFailed,
            r"was killed by signal 11 \(SIGSEGV\) in the capture run, before it reached the markers of phases \[1\]",
        ),
        ("execute", ProbeError, r"replaces the program \(execve\). in a probe only the first may|phases \[1\] \(about"),
        ("vfork-there", Diverged, r"a process that it starts \(vfork\) reaches the markers of phases \[1\] in its"),
    ],
)
def test_why_it_does_not_come_to_its_place(
    how: str,
    error: type[ProbeError],
    said: str,
    who: str,
    builds: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if how == "execute":
        request.getfixturevalue("soon")
    begun = time.monotonic()
    with pytest.raises(error, match=said) as raised:
        region(builds, tmp_path, how, who)
    assert time.monotonic() - begun < 5
    if how in ("execute", "leave"):
        assert isinstance(raised.value, Diverged if (who == "first") == (how == "execute") else ProgramUnsupported)


def disturb(monkeypatch: pytest.MonkeyPatch, how: Callable[[Tracee], None], at: str = "capture_process") -> None:
    """Do something to the program when it stands at its place."""
    plain = getattr(standing, at)

    def disturbed(tracee: Tracee, *arguments: Any) -> Any:
        how(tracee)
        return plain(tracee, *arguments)

    monkeypatch.setattr(standing, at, disturbed)


@every
@pytest.mark.parametrize("each", [False, True])
def test_it_is_stopped_from_outside_at_its_place(
    each: bool, who: str, builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process, or each of its threads. Whoever runs first takes it: the code that asks the kernel."""
    tgkill = ctypes.CDLL(None).syscall

    def stop(tracee: Tracee) -> None:
        if not each:
            os.kill(tracee.pid, signal.SIGSTOP)
            return
        for number in threads_of(tracee.pid):
            assert tgkill(call_number("tgkill"), tracee.pid, number, signal.SIGSTOP) == 0

    disturb(monkeypatch, stop)
    state = read_state(region(builds, tmp_path, "none", who).images)
    assert state.signals.pending == () and all(one.signals.pending == () for one in state.others)


@every
@pytest.mark.parametrize("when", ["now", "before", "long before", "before all is looked at"])
def test_it_is_killed_at_its_place(
    when: str, who: str, builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads have not taken note yet, stand at their ends, or are gone, and the memory that is to be set right."""

    def kill(tracee: Tracee) -> None:
        os.kill(tracee.pid, signal.SIGKILL)
        if when != "now":
            time.sleep(0.05)
        while when not in ("now", "before") and tracee.status is None:
            tracee.resume()
            assert tracee.wait(SECONDS).what in (What.EXITING, What.ENDED)

    disturb(monkeypatch, kill, "locks_in_use" if when == "before all is looked at" else "capture_process")
    with pytest.raises(ProgramFailed, match="was killed from outside while it was stopped"):
        region(builds, tmp_path, "none", who)


@every
def test_it_is_killed_when_it_is_to_make_a_call(who: str, builds: Path) -> None:
    program = replace(program_of(build("astray", builds), "none", who, "4000"), threads=2, marking=MARKING[who])
    with streams_of() as streams, Tracee.start(program, streams) as tracee:
        tracee.resume()
        while who != "first" and tracee.marking == tracee.pid:
            assert tracee.wait(0.005).what is What.TIMEOUT
        tracee.request_pause()
        assert tracee.wait(SECONDS).what is What.PAUSED
        os.kill(tracee.pid, signal.SIGKILL)
        with pytest.raises(ProgramFailed, match="was killed from outside while it was stopped"):
            tracee.system_call(call_number("getpid"))


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that go on behind the end of the first are told so without a second's patience."""
    monkeypatch.setattr(team_tracer, "_ENDING_SECONDS", 0.1)


def timed(builds: Path, how: str, who: str) -> None:
    program = replace(program_of(build("astray", builds), how, who, "400"), threads=2, marking=MARKING[who])
    with streams_of() as streams:
        stamped_run(cast(Any, SimpleNamespace(program=program, exit_status=0)), [], streams=streams)


@pytest.mark.parametrize(
    ("how", "who", "said"),
    [
        ("execute", "crew", REPLACES),
        ("execute", "boss", REPLACES),
        ("leave", "first", "its first thread ends before the others"),
    ],
)
def test_what_ends_the_timing_run_early_is_said(how: str, who: str, said: str, builds: Path, soon: None) -> None:
    with pytest.raises(ProgramUnsupported, match=said):
        timed(builds, how, who)


@contextmanager
def held(builds: Path, how: str) -> Iterator[tuple[Tracee, Team]]:
    """A thread that is due stands before its first instruction, since the first one waits in a vfork."""
    program: Program = replace(program_of(build("astray", builds), how, "boss"), threads=2, marking=((0, 0),))
    with streams_of() as streams, Tracee.start(program, streams) as tracee:
        assert tracee.team is not None
        tracee.resume()
        while tracee.team.starts < 3:
            assert tracee.wait(0.005).what is What.TIMEOUT
        assert tracee.marking == tracee.pid
        yield tracee, tracee.team


def test_it_marks_once_the_first_has_come_back_from_a_vfork(builds: Path) -> None:
    with held(builds, "held-briefly") as (tracee, _):
        while tracee.marking == tracee.pid:
            assert tracee.wait(0.005).what is What.TIMEOUT
        assert tracee.wait(SECONDS).what is What.EXITING
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.ENDED and tracee.status == 0


def test_a_first_thread_that_waits_for_the_one_that_waits_for_it(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a process that it has started with vfork: without us it would go on."""
    monkeypatch.setattr(team_module, "_STOP_SECONDS", 0.5)
    with held(builds, "held") as (tracee, _), pytest.raises(ProgramFailed, match="do not all stop within"):
        tracee.wait(SECONDS)


@pytest.mark.parametrize(("how", "status"), [("held-end", 3 << 8), ("held", signal.SIGKILL)])
def test_the_run_ends_while_it_is_held(how: str, status: int, builds: Path) -> None:
    with held(builds, how) as (tracee, _):
        if how == "held":
            os.kill(tracee.pid, signal.SIGKILL)
        assert tracee.wait(SECONDS).what is What.EXITING
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.ENDED and tracee.status == status


def test_another_replaces_the_program_while_it_is_held(builds: Path) -> None:
    with held(builds, "held-execute") as (tracee, _):
        assert tracee.wait(SECONDS).what is What.EXITING
        tracee.resume()
        with pytest.raises(ProgramUnsupported, match=REPLACES):
            tracee.wait(SECONDS)


@pytest.mark.parametrize("late", ["_let_go", "_begin"])
@pytest.mark.parametrize("who", ["crew", "boss"])
def test_it_replaces_the_program_while_another_is_started(
    late: str, who: str, builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soon: None
) -> None:
    """The first thread, let go just then, leaves its last stop unseen; the new one never gets a base of its own."""
    plain = getattr(Team, late)

    def slow(team: Team, child: Child, *arguments: int) -> None:
        if late == "_begin" or child.pid == team._pid:
            time.sleep(0.05)
        plain(team, child, *arguments)

    monkeypatch.setattr(Team, late, slow)
    with pytest.raises(ProgramUnsupported, match=REPLACES):
        region(builds, tmp_path, "execute", who)


def test_it_is_left_while_it_is_held(builds: Path) -> None:
    with held(builds, "held"):
        pass
