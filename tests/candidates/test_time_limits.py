# SPDX-License-Identifier: Apache-2.0
"""Nodes of ill will, each with a time limit that is known beforehand: the command ends in time and asks once."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from candidate_runs import Listening
from scripted_nodes import Message, Scripted, Talk, instead
from small_probe import small_probe

from checkpoint.errors import NodeMisbehaved, NodeUnreachable
from checkpoint.restore.criu_restore import RESTORE_SECONDS, region_seconds
from probe.candidates import connections
from probe.candidates import remote as probing
from probe.candidates.agent_client import Answer, Orders
from probe.candidates.remote import CandidateResult
from probe.candidates.time_limit import TimeLimit, run_seconds

_LIMIT = 1.0


@pytest.fixture(scope="module")
def talk(builds: Path) -> Talk:
    return Talk(small_probe(builds).path)


class Ill(Scripted):
    """A node that speaks every `pause` seconds until the connection is closed; it takes nothing where `deaf`."""

    def __init__(
        self, said: Iterator[bytes | Message | None], pause: float, closed: threading.Event, deaf: bool
    ) -> None:
        super().__init__(said)
        self._pause, self._closed, self._deaf = pause, closed, deaf

    def send(self, data: bytes, seconds: float) -> None:
        if self._deaf and self._closed.wait(seconds):
            raise NodeUnreachable("closed")
        super().send(data, seconds)

    def receive(self, most: int, seconds: float) -> bytes | None:
        if self._closed.wait(min(self._pause, seconds)):
            raise NodeUnreachable("closed")
        return super().receive(most, seconds) if self._pause <= seconds else None


def asked(
    talk: Talk, patch: pytest.MonkeyPatch, said: Callable[[], Iterator[Any]], *, pause: float = 0.02,
    deaf: bool = False, orders: Orders | None = None,
) -> tuple[CandidateResult, int, float, Listening]:  # fmt: skip
    """What comes of one such node, how often it was connected to, the seconds it took, and what was shown."""
    made: list[threading.Event] = []
    watcher = Listening()

    class Connected:
        notes = ()

        def __init__(self) -> None:
            self._closed = threading.Event()
            made.append(self._closed)

        def start(self, command: str) -> contextlib.AbstractContextManager[Scripted]:
            return contextlib.nullcontext(Ill(said(), pause, self._closed, deaf))

        def close(self) -> None:
            self._closed.set()

    patch.setattr(connections, "connect", lambda *_: contextlib.nullcontext(Connected()))
    patch.setattr(probing, "_PAUSE_SECONDS", 0.0)
    begun = time.monotonic()
    orders = orders or replace(talk.orders, limit_seconds=_LIMIT, silence_seconds=60.0)
    (found,) = probing.run_on(talk.path, ["node"], orders=orders, watcher=lambda _: watcher)
    return found, len(made), time.monotonic() - begun, watcher


_ALIVE: Message = {"event": "alive"}


@pytest.mark.parametrize("taken", [0, 2, 3])
@pytest.mark.parametrize("then", ["silent", "alive", "waiting", "letters", "deaf"])
def test_whatever_a_node_does_the_command_ends_in_time(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, taken: int, then: str
) -> None:
    def said() -> Iterator[Any]:
        yield from talk.honest()[:taken]
        if then == "waiting" and taken >= 2:
            yield {"event": "waiting", "holder": "nobody"}
        yield from itertools.repeat(b"x" if then == "letters" else _ALIVE)

    pause = 90.0 if then == "silent" else 0.25
    found, _, seconds, watcher = asked(talk, monkeypatch, said, pause=pause, deaf=then == "deaf")
    assert found.error is not None and found.error.exit_code in (17, 19), found.error
    assert seconds < 2 * _LIMIT, found.error
    assert watcher.said[0] == f"at most {_LIMIT:.0f} s"
    if then != "letters" and taken >= 1:
        assert "--node-limit" in str(found.error), found.error


def test_a_node_that_breaks_off_again_and_again_has_one_limit_for_all_of_it(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time it asks for a byte more than before, which looks like progress."""

    def said() -> Iterator[Any]:
        yield from talk.honest()[:3]
        yield from itertools.repeat(_ALIVE, 3)

    found, connected, seconds, _ = asked(talk, monkeypatch, said, pause=0.1)
    assert connected > 1 and seconds < 2 * _LIMIT
    assert found.error is not None and "--node-limit" in str(found.error)


def test_a_silent_node_is_not_asked_again(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = replace(talk.orders, silence_seconds=0.5)
    for taken in (2, 3):
        found, connected, seconds, _ = asked(
            talk, monkeypatch, lambda n=taken: iter(talk.honest()[:n]), pause=0.01, orders=orders
        )  # fmt: skip
        # It ends: that may be a bad link, and is tried again.
        assert found.error is not None and connected > 1

        def said(n: int = taken) -> Iterator[Any]:
            yield from talk.honest()[:n]
            yield None

        found, connected, seconds, _ = asked(talk, monkeypatch, said, pause=0.01, orders=orders)
        assert found.error is not None and "nothing was heard" in str(found.error)
        assert connected == 1 and seconds < 5


def test_the_limit_follows_from_the_probes_own_times(talk: Talk) -> None:
    answer, size = Answer(), talk.path.stat().st_size
    limit = TimeLimit(talk.manifest, size, talk.orders, answer)
    honest = run_seconds([p for p in talk.manifest.phases if p.can_run], talk.orders.repeats)
    assert 0.1 * len(talk.phases) * talk.orders.repeats < honest < 10
    assert limit.most == pytest.approx(60 + 10 * honest + size / 125_000)
    # Of a node that takes nothing no time for sending is due.
    assert limit.left == pytest.approx(60 + 10 * honest, abs=1)
    answer.sent_members = 100 * size
    assert limit.left == pytest.approx(limit.most, abs=1)
    answer.waited = True
    assert limit.left == pytest.approx(limit.most + talk.orders.lock_seconds, abs=1)
    given = TimeLimit(talk.manifest, size, replace(talk.orders, limit_seconds=7.0), answer)
    assert given.most == 7 and given.left == pytest.approx(7, abs=1)


def test_times_that_no_agent_would_have_waited_for_are_refused(talk: Talk) -> None:
    phase = next(p for p in talk.manifest.phases if p.id == talk.phases[0])
    most = region_seconds(phase.expected_seconds)
    assert most == 30
    for times in (
        [1e6, 1.0, 1.0, 1.0], [1.0, 1e6, 1.0, 1.0], [1.0, 1.0, 1e6, 1.0], [1.0, 1.0, 1.0, 1e6],
        [1.2 * most, 1.0, 0.0, 1.0], [0.7 * most, 1.0, 0.7 * most, 1.0], [1.0, 1.0, 1.0, 1.2 * RESTORE_SECONDS],
        [1.0, 1.2 * most, 1.0, 1.0, 1.1 * most, 7], [1.0, 1.0, 1.0, 1.0, 0.5, 10**30],
    ):  # fmt: skip
        with pytest.raises(NodeMisbehaved, match=rf"in phase {phase.id}, which no agent|a time of 1000000"):
            talk.ask(Scripted(instead(talk, "measured", {"times": [times] * 2})))
    answer = talk.ask(Scripted(instead(talk, "measured", {"times": [[0.9 * most, 0.9 * most, 0.1, 100.0]]})))
    assert answer.phases[phase.id].times[0].wall == 0.9 * most
