# SPDX-License-Identifier: Apache-2.0
"""A node that says what no agent of ours says: refused by name, in bounded time; nothing of it reaches a terminal."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from scripted_nodes import Message, Scripted, Talk, instead
from small_probe import small_probe

from checkpoint.errors import NodeMisbehaved, NodeUnfit, NodeUnreachable, ProbeError, StorageError
from probe.candidates import agent_client as session
from probe.candidates import connections
from probe.candidates import remote as probing
from probe.candidates.agent_client import Answer
from probe.candidates.remote import CandidateResult
from probe.candidates.result import RunResult, predict_from
from probe.cli.node_table import candidates_json, print_candidates
from probe.formats.phase_record import DIRECT
from probe.node.protocol import CHUNK, LONGEST_LINE, VERSION, decode
from probe.ssh.addresses import parse_address
from probe.ssh.interface import RemoteCommandEnded
from reducer.unpack import open_probe


@pytest.fixture(scope="module")
def talk(builds: Path) -> Talk:
    return Talk(small_probe(builds).path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Scripted]]:
    """The time of the prober is that of the channels put in here."""
    channels: list[Scripted] = []

    class Time:
        @staticmethod
        def monotonic() -> float:
            return sum(channel.clock for channel in channels)

    monkeypatch.setattr(session, "time", Time)
    yield channels


def test_an_honest_node_is_believed(talk: Talk) -> None:
    channel = Scripted(talk.honest())
    answer = talk.ask(channel)
    assert sorted(answer.phases) == talk.phases and answer.node == {
        "name": "n",
        "cores": 2,
        "python": "3.11",
        "user": 1000,
    }
    order = decode(channel.heard[0].split(b"\n", 1)[0])
    assert order["phases"] == talk.phases and order["front"] == len(channel.heard[0].split(b"\n", 1)[1])
    assert predict_from(talk.manifest, list(answer.phases.values())).seconds > 0


def test_greetings_of_start_up_files_are_passed_over(talk: Talk) -> None:
    greetings = [b"Welcome to the cluster!\n\n", b'{"not": \n', b"7\n", b"no end of line"]
    assert talk.ask(Scripted([*greetings, b"\n", *talk.honest()])).phases
    with pytest.raises(NodeMisbehaved, match="no JSON: b'Welcome"):
        talk.ask(Scripted([b"Welcome\n"] * 1000))
    with pytest.raises(NodeMisbehaved, match="no JSON"):
        talk.ask(Scripted([*talk.honest()[:2], b"Welcome\n"]))


@pytest.mark.parametrize(
    ("event", "changes"),
    [
        ("agent", {"event": "hello"}),
        ("hello", {"event": "done"}),
        ("hello", {"event": "need"}),
        ("hello", {"event": "measured"}),
        ("hello", {"version": VERSION + 1}),
        ("hello", {"node": []}),
        ("hello", {"boot": 7}),
        ("need", {"event": "hello", "version": VERSION, "node": {}}),
        ("need", {"event": "agent"}),
        ("need", {"members": None}),
        ("need", {"members": "all"}),
        ("need", {"members": [["nothing", 0]]}),
        ("need", {"members": [[["data/restorer"], 0]]}),
        ("need", {"members": [{"data/restorer": 0}]}),
        ("need", {"members": [["data/restorer"]]}),
        ("need", {"members": [["data/restorer", -1]]}),
        ("need", {"members": [["data/restorer", True]]}),
        ("need", {"members": [["data/restorer", 0.0]]}),
        ("need", {"members": [["data/restorer", 10**100]]}),
        ("need", {"members": [["data/restorer", 0]] * 3}),
        ("time", {"phase": 999}),
        ("time", {"phase": True}),
        ("time", {"phase": [0]}),
        ("measured", {"phase": 999}),
        ("measured", {"phase": None}),
        ("measured", {"restorer": "magic"}),
        ("measured", {"restorer": [DIRECT]}),
        ("measured", {"times": None}),
        ("measured", {"times": []}),
        ("measured", {"times": [[1.0] * 4] * 6}),
        ("measured", {"times": [[1.0] * 3]}),
        ("measured", {"times": [[1.0] * 5]}),
        ("measured", {"times": [[-1.0, 1.0, 1.0, 1.0]]}),
        ("measured", {"times": [[0.0, 1.0, 1.0, 1.0]]}),
        ("measured", {"times": [[1.0, 0.0, 1.0, 1.0]]}),
        ("measured", {"times": [[1e300, 1.0, 1.0, 1.0]]}),
        ("measured", {"times": [[10**400, 1.0, 1.0, 1.0]]}),
        ("measured", {"times": [["1", 1.0, 1.0, 1.0]]}),
        ("measured", {"times": [[True, 1.0, 1.0, 1.0]]}),
        ("measured", {"times": {"0": 1}}),
        ("measured", {"failure": "it has both"}),
        ("measured", {"failure": ["a"]}),
        ("measured", {"warnings": "many"}),
        ("done", {"quiet": None}),
        ("done", {"event": "thanks"}),
        ("done", {"event": ["done"]}),
        ("done", {"event": {}}),
    ],
)  # fmt: skip
def test_nonsense_is_refused(talk: Talk, event: str, changes: Message) -> None:
    with pytest.raises(NodeMisbehaved):
        talk.ask(Scripted(instead(talk, event, changes)))


@pytest.mark.parametrize(
    "line",
    [
        b"\n", b"null\n", b"[]\n", b"{}\n", b"\xff\xfe\n", b'{"event": NaN}\n', b"[" * 200_000 + b"\n",
        b'{"event":"done","quiet":{"load":[Infinity]}}\n', b"9" * 100_000 + b"\n", b"\0" * 10 + b"\n",
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(talk: Talk, line: bytes) -> None:
    with pytest.raises(NodeMisbehaved):
        talk.ask(Scripted([*talk.honest()[:-1], line]))


def test_who_does_not_say_what_it_is_measures_nothing(talk: Talk) -> None:
    agent, hello, need, *rest = talk.honest()
    with pytest.raises(NodeMisbehaved, match="'need' before it said who it is"):
        talk.ask(Scripted([agent, need, hello, *rest]))
    with pytest.raises(NodeMisbehaved, match="before it said who it is"):
        talk.ask(Scripted([agent, *rest]))


def test_a_phase_counts_once_and_only_when_asked_for(talk: Talk) -> None:
    said = talk.honest()
    measured = next(message for message in said if message["event"] == "measured")
    twice = [*said[:-2], {**measured}, said[-1]]
    with pytest.raises(NodeMisbehaved, match="twice"):
        talk.ask(Scripted(twice))
    with pytest.raises(NodeMisbehaved, match="not asked for"):
        talk.ask(Scripted(said), phases=talk.phases[1:])
    with pytest.raises(NodeMisbehaved, match=rf"nothing of phases \[{talk.phases[0]}"):
        talk.ask(Scripted([message for message in said if message["event"] != "measured"]))


@pytest.mark.parametrize("event", ["agent", "hello", "need", "arrived", "waiting", "time", "measured", "done", "x"])
def test_messages_have_an_end(talk: Talk, event: str) -> None:
    said = talk.honest()
    message: Message = next((m for m in said if m["event"] == event), {"event": event, "holder": "x"})
    if event == "need":
        message = {"event": "need", "members": []}
    begun = said[: 0 if event == "agent" else 2]
    with pytest.raises(NodeMisbehaved):
        talk.ask(Scripted([*begun, *itertools.repeat(message, 100_000)]))


def test_lines_have_an_end(talk: Talk, clock: list[Scripted]) -> None:
    channel = Scripted(itertools.repeat(b"x" * 10_000, 2 * LONGEST_LINE // 10_000))
    with pytest.raises(NodeMisbehaved, match="an endless line"):
        talk.ask(channel)
    # One that comes letter by letter does not hold us for longer either.
    clock.append(Scripted([*talk.honest()[:2], *itertools.repeat(b"x", 2000)], seconds=1.0))
    with pytest.raises(NodeMisbehaved, match="does not come to its end"):
        talk.ask(clock[0])
    assert clock[0].clock < 60


def test_signs_of_life_have_an_end(talk: Talk, clock: list[Scripted]) -> None:
    alive: Message = {"event": "alive"}
    with pytest.raises(NodeMisbehaved, match="signs of life without end"):
        talk.ask(Scripted([*talk.honest()[:2], *itertools.repeat(alive, 10_000)]))
    waiting: Message = {"event": "waiting", "holder": "somebody"}
    patience = {}
    for name, before in (("at once", []), ("waiting", [waiting])):
        channel = Scripted([*talk.honest()[:2], *before, *itertools.repeat(alive, 2000)], seconds=5.0)
        clock[:] = [channel]
        with pytest.raises(NodeUnreachable, match="lives and has reported nothing"):
            talk.ask(channel)
        patience[name] = channel.clock
    # It may wait for another measurement as long as it was told to, and no longer.
    assert patience["at once"] < 1000
    assert 80 <= patience["waiting"] - patience["at once"] <= 120


def test_a_transfer_may_take_as_long_as_it_goes_on(talk: Talk, clock: list[Scripted]) -> None:
    with open_probe(talk.path) as archive:
        large = max(archive.members.values(), key=lambda member: member.stored_size)
    going_on = threading.Semaphore(0)

    class Slow(Scripted):
        def send(self, data: bytes, seconds: float) -> None:
            if len(data) > 100_000:
                assert going_on.acquire(timeout=10.0)
            super().send(data, seconds)

    def said() -> Iterator[Message]:
        first = talk.honest()
        yield from first[:2]
        yield {"event": "need", "members": [[large.name, 0]]}
        for _ in range(large.stored_size // CHUNK):
            had = len(channel.heard)
            going_on.release()
            while len(channel.heard) == had:
                threading.Event().wait(0.001)
            yield {"event": "alive"}
        going_on.release(2)
        yield from first[3:]

    channel = Slow(said(), seconds=60.0)
    clock.append(channel)
    assert talk.ask(channel).phases
    assert channel.clock > 1000, "longer than it may report nothing"


def test_silence_is_a_lost_connection(talk: Talk) -> None:
    with pytest.raises(NodeUnreachable, match="nothing was heard of it for 5 s"):
        talk.ask(Scripted([*talk.honest()[:3], None]))
    with pytest.raises(NodeUnreachable, match="the agent was lost"):
        talk.ask(Scripted(talk.honest()[:3]))
    with pytest.raises(NodeUnfit, match="does not start"):
        talk.ask(Scripted([]))


def test_the_nodes_own_reason_comes_before_what_sending_met(talk: Talk) -> None:
    """An agent whose disk is full says so and leaves, while we are still sending."""

    def said() -> Iterator[Message]:
        yield from talk.honest()[:3]
        # Our next words find nobody who would read them; only then is the reason here.
        assert channel.told.wait(5.0)
        yield {"event": "arrived"}
        yield {"event": "failed", "kind": "StorageError", "message": "the disk is full"}

    channel = Scripted(said())
    channel.refuses = RemoteCommandEnded("nobody reads")
    with pytest.raises(StorageError, match="the disk is full"):
        talk.ask(channel)
    lost = Scripted(talk.honest()[:3])
    lost.refuses = RemoteCommandEnded("nobody reads")
    with pytest.raises(NodeUnreachable, match="the connection or the agent was lost"):
        talk.ask(lost)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("StorageError", StorageError), ("NodeUnfit", NodeUnfit), ("__name__", NodeUnfit), ("annotations", NodeUnfit),
        ("INTERRUPTED_EXIT_CODE", NodeUnfit), ("SystemExit", NodeUnfit), ("", NodeUnfit),
    ],
)  # fmt: skip
def test_a_failure_is_an_error_of_ours(talk: Talk, kind: str, expected: type[ProbeError]) -> None:
    for text in ("why", ""):
        with pytest.raises(ProbeError) as caught:
            talk.ask(Scripted([*talk.honest()[:2], {"event": "failed", "kind": kind, "message": text}]))
        assert type(caught.value) is expected and str(caught.value)


def test_a_node_that_was_started_again_has_measured_nothing(talk: Talk) -> None:
    first, *others = talk.phases
    said = talk.honest()
    some = [m for m in said if m["event"] in ("agent", "hello") or m.get("phase") == first]
    answer = Answer()
    with pytest.raises(NodeUnreachable):
        talk.ask(Scripted(some), answer)
    assert set(answer.phases) == {first}
    same = [m for m in said if m.get("phase") != first]
    with pytest.raises(NodeUnreachable):
        talk.ask(Scripted(same[:-1]), answer, others)
    assert set(answer.phases) == set(talk.phases)
    again = [{**m, "boot": "two"} if m["event"] == "hello" else m for m in some]
    with pytest.raises(NodeUnreachable):
        talk.ask(Scripted(again), answer)
    assert set(answer.phases) == {first} and answer.boot == "two"


def test_phases_lost_with_a_node_that_was_started_again_are_measured_again(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = talk.phases
    said = talk.honest()
    again = [{**m, "boot": "two"} if m["event"] == "hello" else m for m in said]
    alone = [m for m in again if m.get("phase") in (None, first)]
    talks = [
        Scripted([m for m in said if m.get("phase") in (None, first)][:-1]),
        Scripted([m for m in again if m.get("phase") != first]),
        Scripted(alone),
    ]
    left = iter(talks)

    class Connected:
        notes = ()

        def start(self, command: str) -> contextlib.AbstractContextManager[Scripted]:
            return contextlib.nullcontext(next(left))

        def close(self) -> None:
            pass

    monkeypatch.setattr(connections, "connect", lambda *_: contextlib.nullcontext(Connected()))
    monkeypatch.setattr(probing, "_PAUSE_SECONDS", 0.0)
    (found,) = probing.run_on(talk.path, ["node"], orders=talk.orders)
    assert found.result is not None, found.error
    assert [phase.phase for phase in found.result.phases] == talk.phases
    orders = [decode(channel.heard[0].split(b"\n", 1)[0])["phases"] for channel in talks]
    assert orders == [talk.phases, talk.phases[1:], [first]]


_NASTY = "\033]0;owned\a\x9b2J\r\u202ereversed\u2028\ud800[bold]:smile:\0"


def test_a_number_that_is_none_is_no_json(talk: Talk) -> None:
    said = instead(talk, "hello", {"node": {"n": 10**30}})
    hello = next(n for n, message in enumerate(said) if message["event"] == "hello")
    lines: list[bytes | Message] = [*said]
    lines[hello] = json.dumps(said[hello]).replace('"n": 1', '"inf": -1e999, "n": 1').encode() + b"\n"
    with pytest.raises(NodeMisbehaved, match="it sent no JSON"):
        talk.ask(Scripted(lines))


def test_nothing_but_clean_text_reaches_the_terminal(talk: Talk) -> None:
    said = instead(
        talk, "hello", {"python": _NASTY, "node": {_NASTY: _NASTY, "a": [_NASTY], "n": 10**30}, "user": _NASTY}
    )
    for number, message in enumerate(said):
        if message["event"] == "measured":
            said[number] = {**message, "warnings": [_NASTY, {_NASTY: 1}]}
    measured = next(n for n, m in enumerate(said) if m["event"] == "measured")
    said[measured] = {**said[measured], "times": [], "failure": _NASTY, "kind": _NASTY}
    said[-1] = {"event": "done", "quiet": {_NASTY: _NASTY, "disturbed": _NASTY, "x": [_NASTY]}}
    answer = talk.ask(Scripted(said))
    name = parse_address("[fe80::1]:22").text
    result = RunResult(
        "p", talk.manifest, answer.node, tuple(answer.phases.values()),
        predict_from(talk.manifest, list(answer.phases.values()), min_coverage=0.0),
    )  # fmt: skip
    with pytest.raises(ProbeError) as caught:
        talk.ask(Scripted([{"event": "failed", "kind": "NodeUnfit", "message": _NASTY}]))
    found = [
        CandidateResult(name, result, None, quiet=(answer.quiet,)),
        CandidateResult(name, None, caught.value, notes=(str(caught.value),)),
    ]
    out = io.StringIO()
    print_candidates(found, Console(file=out, force_terminal=True, width=200, color_system=None))
    shown = out.getvalue()
    assert all(c.isprintable() or c == "\n" for c in shown), repr(shown)
    assert "[bold]" in shown and all(line.startswith(f"{name} ") for line in shown.splitlines()[1:3])
    assert json.dumps(candidates_json("p", found)).isprintable()


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([0, DIRECT, "data/restorer"]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
_seconds = st.floats(1e-9, 9e6) | st.floats(0.5, 2.0)


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_it_says_ends_in_an_answer_or_an_error_of_ours(talk: Talk, data: st.DataObject) -> None:
    said = talk.honest()
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(said) - 1))
        key = data.draw(st.sampled_from(sorted(said[place])))
        value = data.draw(_json | st.lists(st.tuples(*[_seconds] * 4).map(list), min_size=1, max_size=5))
        said[place] = {**said[place], key: value}
    answer = Answer()
    with contextlib.suppress(ProbeError):
        talk.ask(Scripted(said), answer)
    for phase in answer.phases.values():
        assert all(math.isfinite(x) for t in phase.times for x in vars(t).values() if x not in (None, ()))
        assert phase.failure.isprintable()
    with contextlib.suppress(ProbeError):
        found = predict_from(talk.manifest, list(answer.phases.values()), min_coverage=0.0)
        json.dumps(found.to_json())
    assert json.dumps([answer.node, answer.quiet], allow_nan=False).isprintable()
