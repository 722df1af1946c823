# SPDX-License-Identifier: Apache-2.0
"""Two runs of a phase are watched at the same time where that can be done, else one after the other."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, cast

import pytest

from checkpoint.flow.flow import Calls, Flow, Plan
from checkpoint.flow.watching import FlowWatcher
from checkpoint.restore.watched_phase import answering_child
from probe.flow import both_flows
from probe.flow.both_flows import watch_both

CPU = max(os.sched_getaffinity(0))
PLENTY = 1 << 50


class Watcher:
    """Notes what is asked of it. `roomy`: which runs find room for copies."""

    def __init__(self, *roomy: bool) -> None:
        self.said: list[str] = []
        self.cpus: list[int | None] = []
        self.affinity: list[set[int]] = []
        self._roomy = list(roomy)

    def _name(self, plan: Plan) -> str:
        return "other" if plan.contents else "own"

    def _flow(self, plan: Plan) -> Flow:
        return Flow({}, Calls.of([], True), in_copies=plan.in_copies and (not self._roomy or self._roomy.pop(0)))

    def watch(self, plan: Plan) -> Flow:
        self.said.append(self._name(plan))
        return self._flow(plan)

    @contextlib.contextmanager
    def begun(self, plan: Plan, *, cpu: int | None = None) -> Iterator[Callable[[], Flow]]:
        self.said.append(f"{self._name(plan)} begins")
        self.cpus.append(cpu)
        self.affinity.append(os.sched_getaffinity(0))

        def flow() -> Flow:
            self.said.append(f"{self._name(plan)} ends")
            return self._flow(plan)

        yield flow


def both(watcher: Watcher, cpu: int | None = CPU, check: Callable[[Flow], None] = lambda _: None) -> tuple[Flow, Flow]:
    plan = Plan(in_copies=True)
    return watch_both(
        cast(FlowWatcher, watcher), plan, lambda: iter(()), cpu=cpu, size=1 << 20, check=check,
        meanwhile=lambda: watcher.said.append("meanwhile"),
    )  # fmt: skip


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As seen by a process that keeps off the one it measures on."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor")
    monkeypatch.setattr(both_flows, "available_memory", lambda: PLENTY)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before - {CPU})
    yield
    os.sched_setaffinity(0, before)


def test_both_run_at_the_same_time_on_two_processors(two_processors: None) -> None:
    watcher = Watcher()
    off = os.sched_getaffinity(0)
    both(watcher)
    assert watcher.said == ["own begins", "other begins", "meanwhile", "own ends", "other ends"]
    assert watcher.cpus == [None, min(off)] and watcher.affinity == [off | {CPU}] * 2
    assert os.sched_getaffinity(0) == off


def test_steps_are_noted_in_the_same_way(two_processors: None) -> None:
    """The second finds no room for copies: both are made again, without, and nothing is written again."""
    watcher = Watcher(True, False)
    real, other = both(watcher)
    assert real.in_copies == other.in_copies is False
    assert watcher.said.count("meanwhile") == 1 and watcher.said.count("own begins") == 2


@pytest.mark.parametrize("available", [0, 3 << 20])
def test_without_memory_for_both_one_follows_the_other(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    monkeypatch.setattr(both_flows, "available_memory", lambda: available)
    watcher = Watcher()
    both(watcher)
    assert watcher.said == ["own", "other", "meanwhile"]


def test_on_one_processor_one_follows_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(both_flows, "available_memory", lambda: PLENTY)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {CPU})
    watcher = Watcher()
    both(watcher)
    assert watcher.said == ["own", "other", "meanwhile"]


def test_what_is_not_as_recorded_ends_both(two_processors: None) -> None:
    def refuse(_: Flow) -> None:
        raise ValueError("differs")

    watcher, off = Watcher(), os.sched_getaffinity(0)
    with pytest.raises(ValueError, match="differs"):
        both(watcher, check=refuse)
    assert "other ends" not in watcher.said and os.sched_getaffinity(0) == off


def test_a_child_whose_answer_nobody_wants_is_ended(tmp_path: Path) -> None:
    def act(writer: int, _: int) -> NoReturn:
        (tmp_path / "begun").write_text(str(os.getpid()))
        (tmp_path / "begun").rename(tmp_path / "number")
        os.write(writer, b"so far")
        time.sleep(3600)
        os._exit(0)

    with contextlib.suppress(KeyError), answering_child(act):
        while not (tmp_path / "number").exists():
            time.sleep(0.01)
        raise KeyError
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "number").read_text()), 0)


def test_two_children_answer_as_much_as_they_like() -> None:
    """More than a pipe holds, and the second one first."""

    def act(writer: int, _: int) -> NoReturn:
        with os.fdopen(writer, "wb") as out:
            out.write(b"x" * (1 << 20))
        os._exit(0)

    with answering_child(act) as first, answering_child(act) as second:
        assert len(second()) == len(first()) == 1 << 20
