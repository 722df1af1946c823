# SPDX-License-Identifier: Apache-2.0
"""A thread that is to mark, and stands until the first thread is stopped for it: what may come in between."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from programs import build
from tracing import SECONDS, program_of, streams_of

from checkpoint.errors import ProgramUnsupported
from checkpoint.process.ptrace import registers_of
from checkpoint.process.team import Team
from checkpoint.process.tracee import Tracee, What
from checkpoint.process.waiting import process_state
from probe.tracers.team import refuse_orphans


@contextmanager
def due(builds: Path, how: str) -> Iterator[tuple[Tracee, Team, int]]:
    """A program whose second thread has started the one that is to mark; its number. At the end nothing is left."""
    program = replace(program_of(build("crews", builds), "60", how), threads=2, marking=((0, 0),))
    with streams_of() as streams, Tracee.start(program, streams) as tracee:
        team = tracee.team
        assert team is not None
        tracee.resume()
        while team.starts < 2:
            assert tracee.wait(0.001).what is What.TIMEOUT
        (number,) = {one for one in team.stopped() if team.slot(one) == 2} - {tracee.pid}
        assert process_state(number) == "t" and tracee.marking == tracee.pid
        yield tracee, team, number
    assert not Path(f"/proc/{tracee.pid}").exists() and not Path(f"/proc/{number}").exists()


@pytest.fixture
def never_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the first thread were never seen to stop."""
    monkeypatch.setattr(Team, "_serve", lambda *_: None)


def test_it_stands_while_the_first_thread_waits_in_a_vfork(builds: Path) -> None:
    """Which stops for nobody until its child has ended. Then the other marks."""
    with due(builds, "boss-vfork") as (tracee, team, number):
        assert tracee.wait(0.1).what is What.TIMEOUT
        assert process_state(number) == "t" and tracee.marking == tracee.pid
        while tracee.marking == tracee.pid:
            assert tracee.wait(0.001).what is What.TIMEOUT
        assert tracee.marking == number and registers_of_zero(tracee, number)
        while tracee.wait(SECONDS).what is not What.EXITING:
            tracee.resume()
        assert tracee.marking == tracee.pid and len(team.started) == 5
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.ENDED and tracee.status == 0


def registers_of_zero(tracee: Tracee, number: int) -> bool:
    """Whether a thread counts in the first slot."""
    tracee.request_pause()
    assert tracee.wait(SECONDS).what is What.PAUSED
    found = registers_of(number).gs_base == 0
    tracee.resume()
    return found


@pytest.mark.usefixtures("never_served")
def test_it_ends_where_the_first_thread_replaces_the_program(builds: Path) -> None:
    with due(builds, "boss-execute") as (tracee, team, number):
        assert tracee.wait(SECONDS).what is What.EXECUTED and tracee.marking == tracee.pid
        assert not team.watched and team._due is None and not Path(f"/proc/{number}").exists()
        tracee.run_to_entry()
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.EXITING
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.ENDED and tracee.status == 0


@pytest.mark.usefixtures("never_served")
def test_a_first_thread_that_ends_before_it_is_refused(builds: Path) -> None:
    with due(builds, "boss-leave") as (tracee, _, number):
        assert tracee.wait(SECONDS).what is What.EXITING
        assert process_state(number) == "t"
        with pytest.raises(ProgramUnsupported, match="its first thread ends before the others"):
            refuse_orphans(tracee)


@pytest.mark.parametrize("whom", ["first", "due"])
def test_it_is_killed_with_its_process(whom: str, builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve = Team._serve
    monkeypatch.setattr(Team, "_serve", lambda *_: None)
    with due(builds, "boss") as (tracee, team, number):
        os.kill(tracee.pid if whom == "first" else number, signal.SIGKILL)
        monkeypatch.setattr(Team, "_serve", serve)
        while (occurrence := tracee.wait(SECONDS)).what is not What.ENDED:
            assert occurrence.what is What.EXITING
            tracee.resume()
        assert os.WTERMSIG(tracee.status) == signal.SIGKILL and team._due is None
