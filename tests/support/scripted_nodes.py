# SPDX-License-Identifier: Apache-2.0
"""Channels with a node behind them that says what is given, and what an honest one says of a small probe."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from candidate_runs import Listening

from probe.candidates.agent_client import Answer, Orders, ask
from probe.formats.manifest import Manifest
from probe.formats.phase_record import DIRECT
from probe.node.protocol import VERSION
from reducer.unpack import open_probe

Message = dict[str, Any]


class Scripted:
    """A channel with a node behind it that says what is given, whatever it is told; `clock` goes on as it speaks."""

    def __init__(self, said: Iterable[bytes | Message | None], seconds: float = 0.0) -> None:
        self._said, self._seconds = iter(said), seconds
        self.clock = 0.0
        self.heard: list[bytes] = []
        self.told = threading.Event()
        self.refuses: Exception | None = None

    def send(self, data: bytes, seconds: float) -> None:
        if self.refuses is not None and data.startswith(b'{"op":"member"'):
            self.told.set()
            raise self.refuses
        self.heard.append(data)

    def end_of_input(self) -> None:
        raise AssertionError("the agent lives as long as its input")

    def receive(self, most: int, seconds: float) -> bytes | None:
        self.clock += self._seconds
        said = next(self._said, b"")
        return json.dumps(said).encode() + b"\n" if isinstance(said, dict) else said

    def errors(self) -> str:
        return ""

    def exit_status(self, seconds: float) -> int | None:
        return 0


class Talk:
    """A small probe, what a node honestly says of it, and how it is asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_probe(path) as archive:
            self.manifest = Manifest.from_json(archive.manifest)
            self.members = list(archive.members)
        self.phases = [p.id for p in self.manifest.phases if p.can_run]
        self.orders = Orders(repeats=2, silence_seconds=5.0, lock_seconds=100.0)

    def honest(self) -> list[Message]:
        hello = {"event": "hello", "version": VERSION, "boot": "one", "node": {"name": "n", "cores": 2}}
        said: list[Message] = [{"event": "agent", "have": True}, {**hello, "python": "3.11", "user": 1000}]
        said += [{"event": "need", "members": [[self.members[0], 0]]}, {"event": "arrived"}]
        for phase in self.phases:
            time = {"event": "time", "phase": phase, "restorer": DIRECT, "time": [1.0, 1.0, 1.0, 1.0], "left_out": ""}
            said += [time, time]
        for phase in self.phases:
            times = [[1.0, 1.0, 1.0, 1.0], [1.1, 1.1, 1.0, 1.0]]
            said.append({
                "event": "measured", "phase": phase, "restorer": DIRECT, "times": times, "failure": "", "kind": "",
                "warnings": [],
            })  # fmt: skip
        return [*said, {"event": "done", "quiet": {"load": [0.1, 0.2], "repeats": 8, "disturbed": 0}}]

    def ask(self, channel: Scripted, answer: Answer | None = None, phases: Iterable[int] | None = None) -> Answer:
        answer = answer or Answer()
        with open_probe(self.path) as archive:
            ask(
                lambda _: contextlib.nullcontext(channel), self.path, archive, self.manifest,
                self.phases if phases is None else list(phases), self.orders, answer, Listening(),
            )  # fmt: skip
        return answer


def instead(talk: Talk, event: str, changes: Message) -> list[Message]:
    """What an honest node says, with the first message of one kind changed."""
    said = talk.honest()
    place = next(number for number, message in enumerate(said) if message["event"] == event)
    said[place] = {**said[place], **changes}
    return said
