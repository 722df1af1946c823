# SPDX-License-Identifier: Apache-2.0
"""Time of children apart from a program's own, and programs whose children leave no room for phases."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_profiles import INTERVAL, column_of, totals
from programs import build, symbols
from tracees import started
from tracing import SECONDS, program_of, streams_of

from checkpoint.errors import ProgramUnsupported
from checkpoint.process.children import Child
from checkpoint.process.threads import WorkingThreads
from checkpoint.process.tracee import What
from probe.tracers import other_processes
from probe.tracers.lives import Lives, WorkedByChildren, covered, longest_first, named
from probe.tracers.native import trace
from probe.tracers.other_processes import judge_threads

LIVES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(0, 5)), max_size=12)


def children(lives: list[tuple[int, int, int]]) -> list[Child]:
    return [
        Child(n, None, False, float(began), ended=float(began + length), gone=float(began + length + unreaped))
        for n, (began, length, unreaped) in enumerate(lives)
    ]


@given(LIVES)
def test_the_time_beside_children_is_found(lives: list[tuple[int, int, int]]) -> None:
    found = Lives.of(children(lives), 100.0)
    edges = np.arange(0.0, 76.0)
    alive = [any(began <= k < began + length for began, length, _ in lives) for k in range(75)]
    present = [any(began <= k < began + length + more for began, length, more in lives) for k in range(75)]
    assert covered(found.lived, edges).astype(bool).tolist() == alive
    assert found.beside(edges).tolist() == present
    assert covered(found.lived, edges[::5]).sum() == pytest.approx(sum(alive))


@given(LIVES, st.lists(st.floats(0, 1), min_size=75, max_size=75))
def test_a_program_has_what_children_leave_and_what_it_computes(
    lives: list[tuple[int, int, int]], cpu: list[float]
) -> None:
    found, edges, own = Lives.of(children(lives), 100.0), np.arange(0.0, 76.0), np.array(cpu)
    seconds = found.own_seconds(edges, own)
    alone = ~covered(found.lived, edges).astype(bool)
    assert (seconds[alone] == 1.0).all() and (seconds > 0).all() and (seconds <= 1.0).all()
    assert seconds[~alone] == pytest.approx(np.maximum(own[~alone], 1e-9))


def test_children_that_have_not_ended_live_until_now() -> None:
    lives = Lives.of([Child(1, None, False, 2.0, ended=3.0), Child(2, None, False, 5.0)], 7.0)
    assert lives.lived.tolist() == lives.present.tolist() == [[2.0, 3.0], [5.0, 7.0]]


def test_a_child_that_has_ended_is_beside_where_it_is_waited_for() -> None:
    lives = Lives.of([Child(1, None, False, 2.0, ended=3.0, kept=8.5, gone=9.5)], 20.0)
    assert lives.lived.tolist() == [[2.0, 3.0]] and lives.present.tolist() == [[2.0, 3.0], [8.5, 9.5]]


def test_processes_are_named_by_how_long_they_live() -> None:
    found = [Child(n, None, False, 0.0, command=c, ended=float(n)) for n, c in enumerate("abcda", 1)]
    found.append(Child(9, None, False, 3.0, command="e"))
    assert longest_first(found)[:3] == ["e", "a", "d"]
    assert named(longest_first(found)) == "6: e, a, d and 2 others"


# -- programs


@pytest.mark.parametrize("mode", ["start", "system", "fork", "beside", "loop", "zombies", "later"])
def test_a_program_with_children_is_traced(mode: str, builds: Path) -> None:
    path = build("helpers", builds)
    with streams_of() as streams:
        program = program_of(path, "200", mode, "4" if mode == "loop" else "50")
        profile = trace(program, interval=INTERVAL, streams=streams)
    column = column_of(profile, path, symbols(path)["site_work"])
    assert column is not None and totals(profile)[column] == 200_000
    assert profile.processes == {"start": 2, "system": 6, "fork": 3, "loop": 0}.get(mode, 1)


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        ("wrapper", ProgramUnsupported, r"9\d% of its CPU time is that of processes it starts \(1: "),
        ("forever", ProgramUnsupported, "live beside it nearly all the time"),
        ("daemon", ProgramUnsupported, "ended, and processes that it started go on"),
        ("clone", ProgramUnsupported, "started a process that shares its memory"),
    ],
)
def test_children_that_leave_no_room(mode: str, error: type[Exception], words: str, builds: Path) -> None:
    # So long that what starts them takes less than a tenth.
    arguments = {"daemon": "3000", "wrapper": "1000"}.get(mode, "200")
    with streams_of() as streams, pytest.raises(error, match=words):
        trace(program_of(build("helpers", builds), arguments, mode), interval=INTERVAL, streams=streams)


@pytest.mark.timed
def test_children_in_every_interval(builds: Path) -> None:
    with (
        streams_of() as streams,
        pytest.raises(ProgramUnsupported, match=r"in each of its \d+ intervals lives"),
    ):
        trace(program_of(build("helpers", builds), "400", "system", "10"), interval=0.05, streams=streams)


def test_a_child_that_never_ends_is_refused_soon(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at the run's end, a minute later."""
    monkeypatch.setattr(other_processes, "JUDGED_SECONDS", 0.3)
    monkeypatch.setattr(other_processes, "_LEAST_SECONDS", 0.3)
    with streams_of() as streams, pytest.raises(ProgramUnsupported, match="nearly all the time"):
        trace(program_of(build("helpers", builds), "20000", "forever"), interval=INTERVAL, streams=streams)


def test_children_that_never_let_it_run_are_refused_soon(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No interval ends while the program itself executes nothing."""
    monkeypatch.setattr(other_processes, "JUDGED_SECONDS", 0.3)
    monkeypatch.setattr(other_processes, "_LEAST_SECONDS", 0.3)
    begun = time.monotonic()
    with streams_of() as streams, pytest.raises(WorkedByChildren) as raised:
        trace(program_of(build("helpers", builds), "60000", "wrapper"), interval=INTERVAL, streams=streams)
    assert not raised.value.so_far and time.monotonic() - begun < 20


def test_children_that_work_alone_are_suspected_at_once(builds: Path) -> None:
    """By the time that `JUDGED_SECONDS` have passed it would be a refusal."""
    with streams_of() as streams, pytest.raises(WorkedByChildren, match=r"9\d%|100%") as raised:
        trace(program_of(build("helpers", builds), "60000", "wrapper"), interval=INTERVAL, streams=streams, soon=True)
    assert raised.value.so_far


@pytest.mark.parametrize("arguments", [("600", "fork", "100"), ("600", "ahead", "100"), ("3000", "beside")])
def test_children_that_do_not_work_alone_are_not_suspected(arguments: tuple[str, ...], builds: Path) -> None:
    """Some work for a while, one beside the program."""
    with streams_of() as streams:
        program = program_of(build("helpers", builds), *arguments)
        assert trace(program, interval=INTERVAL, streams=streams, soon=True).processes > 0


def test_a_child_that_sleeps_is_not_suspected(builds: Path) -> None:
    with streams_of() as streams, pytest.raises(ProgramUnsupported, match="live beside it nearly all the time"):
        trace(program_of(build("helpers", builds), "1500", "forever"), interval=INTERVAL, streams=streams, soon=True)


def test_threads_that_are_started_anew_are_told_from_a_crowd(builds: Path) -> None:
    """Eight crews of two each, one after the other."""
    with started(build("crews", builds), "80", "crews") as tracee:
        tracee.resume()
        while tracee.wait(SECONDS).what is not What.ENDED:
            tracee.resume()
        said = r"beside its first one \(16: thread crews; at most 2 at the same time\)"
        with pytest.raises(WorkingThreads, match=said) as raised:
            judge_threads(tracee)
    assert raised.value.threads == 2
    with started(build("crews", builds), "20", "crew") as tracee:
        tracee.resume()
        while tracee.wait(SECONDS).what is not What.ENDED:
            tracee.resume()
        with pytest.raises(WorkingThreads, match=r"beside its first one \(2: thread crews\);"):
            judge_threads(tracee)
