# SPDX-License-Identifier: Apache-2.0
"""Probes of programs with threads that wait: a phase holds the first thread alone, and lies where it needs no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from native_profiles import INTERVAL
from programs import build
from small_probe import command
from tracing import program_of, streams_of

from probe.formats.timing import TimedProfile
from probe.pipeline.select import _room_for
from probe.pipeline.validate import validate
from probe.tracers.native import trace


def timed_of(builds: Path, how: str) -> TimedProfile:
    with streams_of() as streams:
        profile = trace(program_of(build("waiters", builds), "600", how), interval=INTERVAL, streams=streams)
    assert profile.helper_threads == 3
    with streams_of() as streams:
        return validate(profile, streams=streams)


def test_no_phase_lies_where_another_thread_answers(builds: Path) -> None:
    timed = timed_of(builds, "ask")
    # It asks 15 times; what is beside is not all, and no warm-up reaches back into it.
    assert 8 <= timed.beside.sum() < 0.8 * timed.intervals
    room = _room_for(timed, 1)
    assert room.any() and not (room & timed.beside).any() and not (room[1:] & timed.beside[:-1]).any()


@pytest.mark.parametrize(("how", "most"), [("idle", 1 / 3), ("tick", 0)])
def test_threads_that_answer_nobody_leave_room(how: str, most: float, builds: Path) -> None:
    """Idle threads run once, when they are started: on a busy machine some intervals later."""
    timed = timed_of(builds, how)
    assert timed.beside.sum() <= most * timed.intervals
    assert set(timed.outside.commands) == {"thread waiters"} and timed.outside.cpu < 0.05 * timed.cpu.sum()


def test_threads_may_load_libraries(builds: Path) -> None:
    timed = timed_of(builds, "load")
    assert timed.agreeing == timed.compared > 0


@pytest.mark.slow(minutes=2)
@pytest.mark.parametrize("how", ["ask", "tick", "calls", "epoll"])
def test_a_whole_probe(how: str, builds: Path, tmp_path: Path) -> None:
    program = str(build("waiters", builds))
    made = command(
        "build", "-q", "-o", "waiters.probe", "--interval", "10ms", "--max-phases", "4", "--runs", "0", "--json",
        "--capture", "criu", "--", program, "1500", how, cwd=tmp_path,
    )  # fmt: skip
    shown = json.loads(made.stdout)
    assert any("threads were seen beside the first one" in note for note in shown["notes"])
    assert any("since CRIU captures no threads for a probe" in note for note in shown["notes"])
    assert shown["threads"] == 1 and (how != "calls" or shown["clock"] == "cpu")
    assert shown["phases"] and not any(phase["only_criu"] for phase in shown["phases"])
    ran = json.loads(command("run", "waiters.probe", "--json", cwd=tmp_path).stdout)
    assert all(phase["status"] == "ok" for phase in ran["phases"])
    assert ran["prediction"]["seconds"] == pytest.approx(shown["et_ref_seconds"], rel=0.3)


def test_criu_takes_no_part(builds: Path, tmp_path: Path) -> None:
    program = str(build("waiters", builds))
    refused = command(
        "build", "-q", "-o", "waiters.probe", "--with-criu", "--interval", "10ms",
        "--", program, "400", cwd=tmp_path, status=4,
    )  # fmt: skip
    assert "leave --with-criu out" in refused.stderr
