# SPDX-License-Identifier: Apache-2.0
"""Both sides of the protocol between prober and node agent."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from made_probe import made_manifest, made_probe
from scripted_nodes import Scripted, Talk

from checkpoint.errors import ProbeError
from fuzzing.mutation import as_json, damaged, forged
from fuzzing.reader import Reader
from probe.candidates.agent_client import Answer
from probe.candidates.result import predict_from
from probe.formats.manifest import Manifest
from probe.node.agent import Answers, Receiver, _front
from probe.node.member_cache import ArrivingMembers, MemberCache
from probe.node.protocol import VERSION, Input, Lost
from reducer.member_table import read_table

_talk: list[Talk] = []


@contextmanager
def _asking(folder: Path) -> Iterator[None]:
    manifest, table = made_manifest(3, 30)
    phases = tuple(replace(p, direct=p.criu) for p in manifest.phases)
    talk = Talk(made_probe(folder / "made.probe", replace(manifest, phases=phases), table))
    talk.orders = replace(talk.orders, silence_seconds=0.5)
    _talk.append(talk)
    try:
        yield
    finally:
        _talk.clear()


def _said(folder: Path) -> Sequence[bytes]:
    with _asking(folder):
        said = _talk[0].honest()
    failed = [*said[:2], {"event": "waiting", "holder": "x"}, {"event": "failed", "kind": "NodeBusy", "message": "x"}]
    return [b"".join(json.dumps(message).encode() + b"\n" for message in talk) for talk in (said, failed)]


def _other_lines(choose: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Lines changed as values, doubled, dropped, exchanged; sometimes bytes."""
    if choose.random() < 0.1:
        return damaged(choose, data, others)
    lines = data.split(b"\n")
    for _ in range(choose.randrange(1, 4)):
        at = choose.randrange(len(lines))
        kind = choose.randrange(6)
        if kind == 0:
            lines.insert(at, choose.choice(lines))
        elif kind == 1:
            del lines[at]
        elif kind == 2:
            lines[at] = b'{"event":"alive"}'
        else:
            with contextlib.suppress(ValueError):
                lines[at] = as_json(forged(choose, json.loads(lines[at])))
        lines = lines or [b""]
    return b"\n".join(lines)


def _ask(data: bytes, folder: Path) -> Any:
    answer, talk = Answer(), _talk[0]
    try:
        talk.ask(Scripted([data[at : at + 5000] for at in range(0, len(data), 5000)]), answer)
    finally:
        said = json.dumps([answer.node, answer.quiet, answer.boot], allow_nan=False)
        assert said.isprintable() and len(said) < 200_000
        for phase in answer.phases.values():
            assert phase.failure.isprintable() and all(0 < t.wall < 1e5 and 0 < t.cpu < 1e5 for t in phase.times)
        with contextlib.suppress(ProbeError):
            found = predict_from(talk.manifest, list(answer.phases.values()), min_coverage=0.0)
            json.dumps(found.to_json(), allow_nan=False)
    return None


def _orders(folder: Path) -> Sequence[bytes]:
    manifest, table = made_manifest(2, 20)
    path = made_probe(folder / "made.probe", manifest, table)
    with path.open("rb") as file:
        table_read = read_table(file.read, "x")
        front_size = file.tell()
    data = path.read_bytes()
    order = {
        "op": "run", "version": VERSION, "front": front_size, "phases": [0, 1], "repeats": 2, "restorer": "direct",
        "only_recorded_calls": False, "touch_in_order": False, "lock_seconds": 1, "cache_bytes": 10**9,
        "silence_seconds": 1,
    }  # fmt: skip
    out = json.dumps(order).encode() + b"\n" + data[:front_size]
    for member in table_read.members.values():
        line = {"op": "member", "name": member.name, "offset": 0, "size": member.stored_size}
        out += json.dumps(line).encode() + b"\n" + data[member.offset : member.offset + member.stored_size]
        out += b'{"op":"alive"}\n'
    return [out]


def _serve(data: bytes, folder: Path) -> Any:
    """What the agent does with its input up to where it would restore."""
    reading, writing = os.pipe()
    heard, telling = os.pipe()

    def feed() -> None:
        with contextlib.suppress(OSError), open(writing, "wb", buffering=0) as out:
            out.write(data)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        line = Input(reading, 2.0)
        order = line.message()
        table = _front(line, order)
        Manifest.from_json(table.manifest)
        cache = MemberCache(folder / "members", 10**9)
        members = ArrivingMembers(cache)
        receiver = Receiver(line, Answers(telling), table, cache, members)
        while True:
            receiver._take(line.message())
    except (OSError, KeyError, TypeError, ValueError) as error:
        # By these the agent leaves without a word, as by Lost (Receiver.run); in `main` they would be a message.
        raise Lost(repr(error)) from error
    finally:
        for descriptor in (reading, heard, telling):
            os.close(descriptor)
        feeder.join()


READERS = (
    Reader("protocol-prober", _said, _ask, (ProbeError,), change=_other_lines, prepared=_asking),
    Reader("protocol-agent", _orders, _serve, (ProbeError, Lost)),
)
