# SPDX-License-Identifier: Apache-2.0
"""The agent's side of the talk: lines and bytes in pieces, and probers that break off or talk nonsense."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_probe import small_probe

from probe.candidates.agent_file import agent_file
from probe.candidates.agent_start import start_command
from probe.node.agent import Receiver
from probe.node.member_cache import ArrivingMembers, MemberCache
from probe.node.protocol import LONGEST_LINE, VERSION, Input, Lost, decode, encode
from reducer.member_table import MAX_MEMBERS, Member, Table
from reducer.unpack import open_probe

_messages = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text(), max_size=4)


@contextlib.contextmanager
def written(pieces: list[bytes]) -> Iterator[Input]:
    """What reads these pieces, one after the other, and then meets the end."""
    reader, writer = os.pipe()

    def write() -> None:
        with contextlib.suppress(BrokenPipeError):
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[os.write(writer, view) :]
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield Input(reader, 5.0)
    finally:
        os.close(reader)
        thread.join()


@given(sent=st.lists(st.tuples(_messages, st.binary(max_size=50)), max_size=6), cuts=st.lists(st.integers(0, 400)))
@settings(deadline=None)
def test_messages_and_bytes_arrive_however_they_are_cut(
    sent: list[tuple[dict[str, Any], bytes]], cuts: list[int]
) -> None:
    whole = b"".join(encode(message) + data for message, data in sent)
    places = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    with written([whole[a:b] for a, b in itertools.pairwise(places)]) as line:
        for message, data in sent:
            assert line.message() == message
            got: list[bytes] = []
            line.raw(len(data), got.append)
            assert b"".join(got) == data
        with pytest.raises(Lost, match="gone"):
            line.message()


@given(_messages)
def test_a_message_is_one_line(message: dict[str, Any]) -> None:
    line = encode(message)
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii() and decode(line[:-1]) == message


@pytest.mark.parametrize("line", [b"", b"7", b"[1]", b"{", b"\xff", b'{"a": NaN}', b'{"a": -Infinity}', b"[" * 100_000])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(Lost):
        decode(line)


def test_numbers_that_are_none_are_not_sent() -> None:
    with pytest.raises(ValueError):
        encode({"a": float("nan")})


def test_lines_silences_and_ends_are_noticed() -> None:
    with written([b"x" * 100_000] * 30) as line, pytest.raises(Lost, match="endless"):
        line.message()
    assert LONGEST_LINE < 20 * 100_000
    with written([b"half a line"]) as line, pytest.raises(Lost, match="gone"):
        line.message()
    with written([b"half"]) as line, pytest.raises(Lost, match="gone"):
        line.raw(5, lambda _: None)
    reader, writer = os.pipe()
    try:
        line = Input(reader, 0.2)
        begun = time.monotonic()
        with pytest.raises(Lost, match=r"silent for 0\.2 s"):
            line.message()
        assert 0.15 < time.monotonic() - begun < 10
    finally:
        os.close(reader)
        os.close(writer)


def test_a_probe_of_many_files_fits_into_lines(tmp_path: Path) -> None:
    members = {
        name: Member(name, 1, 1, hashlib.sha256(name.encode()).hexdigest(), "none", 0)
        for name in (f"file/{number:064x}" for number in range(MAX_MEMBERS))
    }
    said: list[dict[str, Any]] = []

    class Answers:
        def tell(self, event: str, **more: Any) -> None:
            said.append({"event": event, **more})

    cache = MemberCache(tmp_path / "members")
    arriving: Any = ArrivingMembers(cache)
    unused: Any = None
    answers: Any = Answers()
    receiver = Receiver(unused, answers, Table({}, (), (), members, 0), cache, arriving)
    receiver.want([*members])
    assert max(len(encode(message)) for message in said) < LONGEST_LINE
    assert [name for message in said for name, _ in message["members"]] == [*members]
    # Nothing is asked for twice.
    said.clear()
    receiver.want([*members][:10])
    assert said == []


class Agent:
    """The agent as a process, and what it says."""

    def __init__(self, folder: Path, probe: Path) -> None:
        self.folder, self._probe = folder, probe
        with open_probe(probe) as archive:
            self.members = dict(archive.members)
            self.front = probe.read_bytes()[: archive.front_size]
            self.phases = [phase.id for phase in archive.phases]
        command = ["sh", "-c", start_command(agent_file(), str(folder), False)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        if not self.said("agent")["have"]:
            self.write(agent_file().data)
        self.said("hello")

    def write(self, data: bytes) -> None:
        assert self.process.stdin
        view = memoryview(data)
        while view:
            view = view[self.process.stdin.write(view) :]

    def order(self, **changes: Any) -> None:
        order = {
            "op": "run", "version": VERSION, "front": len(self.front), "phases": self.phases, "repeats": 1,
            "restorer": "auto", "carried_restorer": False, "only_recorded_calls": False, "touch_in_order": False,
            "lock_seconds": 100, "cache_bytes": 1 << 30, "silence_seconds": 20.0,
        }  # fmt: skip
        self.write(encode({**order, **changes}) + self.front)

    def said(self, event: str) -> dict[str, Any]:
        """The next message of that kind; signs of life and of others that measure are passed over."""
        assert self.process.stdout
        while line := self.process.stdout.readline():
            if line.strip() and (message := json.loads(line))["event"] not in ("alive", "waiting"):
                assert message["event"] == event, message
                return dict(message)
        raise AssertionError(f"it ended without {event}")

    def stored(self, name: str) -> bytes:
        member = self.members[name]
        return self._probe.read_bytes()[member.offset : member.offset + member.stored_size]

    def send(self, name: str, data: bytes, offset: int = 0) -> None:
        self.write(encode({"op": "member", "name": name, "offset": offset, "size": len(data)}) + data)

    def assert_gone(self) -> None:
        """It has ended by itself and left nothing but the cache."""
        assert self.process.wait(20) == 3
        runs = self.folder / "runs"
        assert not runs.exists() or not list(runs.iterdir())


@pytest.fixture
def agent(tmp_path: Path, builds: Path) -> Iterator[Agent]:
    made = Agent(tmp_path / "node", small_probe(builds).path)
    with made.process:
        try:
            yield made
        finally:
            made.process.kill()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"", b"\n", b"x" * (LONGEST_LINE + (1 << 19)), b"{}\n", encode({"op": "run", "version": VERSION}),
        encode({"op": "run", "version": VERSION, "front": -1}), encode({"op": "run", "version": 0, "front": 10}),
        encode({"op": "run", "version": VERSION, "front": 1 << 40}),
        encode({"op": "stop", "version": VERSION, "front": 1}),
    ],
)  # fmt: skip
def test_an_agent_without_a_proper_order_leaves(agent: Agent, nonsense: bytes) -> None:
    assert agent.process.stdin
    with contextlib.suppress(BrokenPipeError):
        agent.write(nonsense)
    agent.process.stdin.close()
    agent.assert_gone()


def test_a_front_that_is_damaged_is_named(agent: Agent) -> None:
    agent.front = agent.front[:-10] + bytes(10)
    agent.order()
    failed = agent.said("failed")
    assert failed["kind"] == "ProbeFileDamaged" and "the probe is damaged: the checksum" in failed["message"]


def test_a_prober_that_goes_away_is_noticed(agent: Agent) -> None:
    agent.order(carried_restorer=True)
    wanted = agent.said("need")["members"]
    assert ["data/restorer", 0] in wanted
    name, offset = next(item for item in wanted if item[0].endswith("/index"))
    data = agent.stored(name)
    agent.write(encode({"op": "member", "name": name, "offset": offset, "size": len(data)}) + data[:20])
    assert agent.process.stdin
    agent.process.stdin.close()
    agent.assert_gone()
    # What came is kept for the next one.
    assert (agent.folder / "members" / f"{agent.members[name].sha256}.part").read_bytes() == data[:20]


def test_a_prober_that_falls_silent_is_noticed(agent: Agent) -> None:
    # Long enough for us to be kept from the processor while the order is on its way.
    agent.order(silence_seconds=3.0)
    agent.said("need")
    agent.assert_gone()


@pytest.mark.parametrize(
    "message",
    [
        {"op": "member"}, {"op": "member", "name": ["x"], "offset": 0, "size": 0},
        {"op": "member", "name": "nothing", "offset": 0, "size": 0},
        {"op": "member", "name": "data/restorer", "offset": 0, "size": 1},
        {"op": "member", "name": "data/restorer", "offset": -5, "size": 1 << 20},
        {"op": "member", "name": "data/restorer", "offset": "x", "size": None},
    ],
)  # fmt: skip
def test_a_prober_that_talks_nonsense_is_left(agent: Agent, message: dict[str, Any]) -> None:
    agent.order(carried_restorer=True)
    agent.said("need")
    agent.write(encode(message))
    agent.assert_gone()


def test_a_member_that_arrives_damaged_is_asked_for_once_more(agent: Agent) -> None:
    agent.order(carried_restorer=True)
    agent.said("need")
    name = "data/restorer"
    agent.send(name, bytes(len(agent.stored(name))))
    while (again := agent.said("need")["members"]) != [[name, 0]]:
        assert not any(item[0] == name for item in again)
    agent.send(name, bytes(len(agent.stored(name))))
    failed = agent.said("failed")
    assert failed["kind"] == "ProbeFileDamaged" and name in failed["message"]
    agent.assert_gone()
