# SPDX-License-Identifier: Apache-2.0
"""One talk with the agent on one node: the probe goes there as far as it is needed, times come back.

The node is not trusted: everything it says is bounded, checked for being an answer to what was asked, and cleaned
before it is shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from checkpoint.errors import NodeMisbehaved, NodeUnfit, NodeUnreachable, PrivilegeMissing, ProbeError
from checkpoint.restore.criu_restore import RESTORE_SECONDS, region_seconds
from probe.candidates import agent_replies as checked
from probe.candidates.agent_file import agent_file
from probe.candidates.agent_replies import MOST_TEXT
from probe.candidates.agent_sender import Sender
from probe.candidates.agent_start import start_command
from probe.foreign_text import printable, printable_end
from probe.formats.manifest import Manifest
from probe.formats.phase_record import CRIU, DIRECT
from probe.node.machine_lock import WAIT_SECONDS
from probe.node.measuring import DEFAULT_REPEATS, LEAST_UNDISTURBED, MeasuredPhase
from probe.node.member_cache import DEFAULT_LIMIT
from probe.node.phases import AUTO
from probe.node.protocol import ALIVE_SECONDS, CHUNK, LONGEST_LINE, SILENCE_SECONDS, VERSION, Lost, decode
from probe.ssh.interface import Channel
from reducer.unpack import ProbeArchive

_MOST_WARNINGS = 20
_MOST_GREETINGS = 200
"""Lines that a login shell's start-up files may print before the agent speaks."""
_ALIVE_PER_SECOND = 5.0
_LEAST_BYTES = 1 << 16
"""Of a line, in the seconds after which silence means that the other side is lost."""


@dataclass(frozen=True)
class Orders:
    """How phases are to be measured on a node. `as_root`: the agent is started with `sudo -n` where need be.

    `least`: repeats left alone for disturbed ones not to count, 0 for what is added to repeats that there are;
    `lock_seconds`: how long it waits for another measurement there; `silence_seconds`: after so long without a word
    each side takes the other for lost; `limit_seconds`: for all of it, None for what follows from the probe's own
    times (probe/candidates/time_limit.py).
    """

    repeats: int = DEFAULT_REPEATS
    least: int = LEAST_UNDISTURBED
    restorer: str = AUTO
    carried_restorer: bool = False
    only_recorded_calls: bool = False
    touch_in_order: bool = False
    cache_dir: str = ""
    cache_bytes: int = DEFAULT_LIMIT
    lock_seconds: float = WAIT_SECONDS
    silence_seconds: float = SILENCE_SECONDS
    limit_seconds: float | None = None

    @property
    def as_root(self) -> bool:
        return self.restorer == CRIU


class Watcher(Protocol):
    """Shown how far one node is."""

    def say(self, text: str) -> None:
        """What it is doing now."""

    def sent(self, done: int, whole: int) -> None:
        """Bytes of the probe that are there, of those it needs."""

    def measured(self, done: int, whole: int) -> None:
        """Repeats made."""


class NodeSilent(NodeUnreachable):
    """The node is there and says nothing, or nothing but that it lives: asked again it would do the same."""


class SilentNode:
    """Shows nothing."""

    def say(self, text: str) -> None:
        pass

    def sent(self, done: int, whole: int) -> None:
        pass

    def measured(self, done: int, whole: int) -> None:
        pass


@dataclass
class Answer:
    """What one node has said so far; kept by whoever asks, so that a lost connection loses little of it.

    Seconds of `transfer`: from the first byte of the probe to its last; of `probing`: from the agent's start to its
    end. `sent`: bytes of the probe, and of the agent; `sent_members`: those that stay with the node when the connection
    is lost. `early`: repeats made while the probe was still arriving. `boot` changes when the node is started again.
    `waited`: another measurement had the node. `besides`: what the last talk took beside sending and all repeats.
    """

    node: dict[str, Any] = field(default_factory=dict)
    phases: dict[int, MeasuredPhase] = field(default_factory=dict)
    quiet: dict[str, Any] = field(default_factory=dict)
    sent: int = 0
    sent_members: int = 0
    transfer: float = 0.0
    probing: float = 0.0
    early: int = 0
    boot: str = ""
    waited: bool = False
    besides: float = 0.0

    def add_cost(self, other: Answer) -> None:
        """Count what another talk with the same node cost as well."""
        self.sent += other.sent
        self.sent_members += other.sent_members
        self.transfer += other.transfer
        self.probing += other.probing
        self.early += other.early


def ask(
    channel_of: Callable[[str], AbstractContextManager[Channel]], probe: Path, archive: ProbeArchive,
    manifest: Manifest, phases: Collection[int], orders: Orders, answer: Answer, watcher: Watcher,
) -> None:  # fmt: skip
    """Have `phases` measured by the node's agent, which `channel_of(command)` starts; `answer` takes what it says.

    `archive` is the open probe at `probe`. Raises the agent's own refusals (NodeUnfit, NodeBusy, StorageError ...),
    NodeUnreachable where the connection or the agent is lost, NodeMisbehaved.
    """
    begun, transferred = time.monotonic(), answer.transfer
    agent = agent_file()
    with probe.open("rb") as file:
        front = file.read(archive.front_size)
    sender: Sender | None = None
    session: _Session | None = None

    def sent(size: int, done: int, whole: int) -> None:
        answer.sent += size
        answer.sent_members += size
        watcher.sent(done, whole)

    try:
        with channel_of(start_command(agent, orders.cache_dir, orders.as_root, orders.silence_seconds)) as channel:
            sender = Sender(channel.send, archive, sent, orders.silence_seconds)
            session = _Session(channel, sender, archive, manifest, frozenset(phases), orders, answer, watcher)
            try:
                session.start(agent.data)
                session.run(front)
            finally:
                sender.stop()
    finally:
        # With the channel closed it has nothing to wait for.
        if sender is not None and sender.is_alive():
            sender.join(orders.silence_seconds)
        took = time.monotonic() - begun
        answer.probing += took
        answer.besides = took - (answer.transfer - transferred) - (session.repeating if session else 0.0)


class _Session:
    def __init__(
        self, channel: Channel, sender: Sender, archive: ProbeArchive, manifest: Manifest, phases: frozenset[int],
        orders: Orders, answer: Answer, watcher: Watcher,
    ) -> None:  # fmt: skip
        self._channel, self._sender, self._archive, self._orders = channel, sender, archive, orders
        self._answer, self._watcher = answer, watcher
        self._records = {p.id: p for p in manifest.phases if p.can_run and p.id in phases}
        self._lines = Lines(channel)
        self._asked: dict[str, int] = {}
        self._greetings, self._greeting = 0, ""
        self._first_need: float | None = None
        self._repeats_made = 0
        self.repeating = 0.0
        expected = max((p.expected_seconds for p in self._records.values()), default=0.0)
        # Between two words of an honest agent lies at most one repeat.
        self._patience = 2 * (region_seconds(expected) + RESTORE_SECONDS) + orders.silence_seconds
        count, members = len(self._records), len(archive.members)
        self._left = {
            "agent": 1, "hello": 1, "waiting": 1, "need": members + 2, "arrived": members + 2,
            "time": count * (2 * orders.repeats + 1), "measured": count, "done": 1,
        }  # fmt: skip
        """How often it may still say each: what says more has no end."""

    def start(self, agent: bytes) -> None:
        """Bring the agent to life."""
        for message in self._messages():
            if message["event"] != "agent":
                raise NodeMisbehaved(f"it said {printable(str(message), MOST_TEXT)} before anything else")
            if not message.get("have"):
                self._watcher.say("sending the agent")
                self._channel.send(agent, self._orders.silence_seconds)
                self._answer.sent += len(agent)
            return

    def run(self, front: bytes) -> None:
        for message in self._messages():
            event = message["event"]
            if event == "hello":
                self._hello(message)
                self._sender.start()
                self._sender.order(self._run_order(len(front)), front)
                self._answer.sent += len(front)
            elif self._left["hello"]:
                raise NodeMisbehaved(f"it said {printable(event, 40)!r} before it said who it is")
            elif event == "waiting":
                self._answer.waited = True
                self._watcher.say(f"waiting for another measurement: {checked.text(message, 'holder')}")
            elif event == "need":
                self._need(message)
            elif event == "arrived":
                self._answer.transfer += time.monotonic() - (self._first_need or time.monotonic())
                self._first_need = None
            elif event == "time":
                self._time(message)
            elif event == "measured":
                self._measured(message)
            elif event == "done":
                self._answer.quiet = checked.quiet(message)
                if missing := sorted(set(self._records) - set(self._answer.phases)):
                    raise NodeMisbehaved(f"it says that it is done, and has said nothing of phases {missing}")
                return

    def _run_order(self, front: int) -> dict[str, Any]:
        o = self._orders
        return {
            "op": "run", "version": VERSION, "front": front, "phases": sorted(self._records), "repeats": o.repeats,
            "least": o.least, "restorer": o.restorer, "carried_restorer": o.carried_restorer,
            "only_recorded_calls": o.only_recorded_calls, "touch_in_order": o.touch_in_order,
            "lock_seconds": o.lock_seconds, "cache_bytes": o.cache_bytes, "silence_seconds": o.silence_seconds,
        }  # fmt: skip

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Everything the agent says but signs of life, each a known event. Raises what it says has failed."""
        begun = last = time.monotonic()
        progress, alive, patience = 0, 0, self._patience
        while True:
            message = self._message()
            event, now = message["event"], time.monotonic()
            if event == "alive":
                alive += 1
                if self._sender.done != progress:
                    progress, last = self._sender.done, now
                if now - last > patience:
                    raise NodeSilent(f"its agent lives and has reported nothing for {now - last:.0f} s")
                if alive > 100 + _ALIVE_PER_SECOND * (now - begun):
                    raise NodeMisbehaved("it sends signs of life without end")
                continue
            last = now
            if event == "failed":
                raise checked.failure(message)
            if event not in self._left:
                raise NodeMisbehaved(f"it said {printable(event, 40)!r}")
            self._left[event] -= 1
            if self._left[event] < 0:
                raise NodeMisbehaved(f"it says {event!r} without end")
            patience = self._patience + (self._orders.lock_seconds if event == "waiting" else 0.0)
            yield message

    def _message(self) -> dict[str, Any]:
        """The next message, with an event that is a text."""
        while True:
            line = self._lines.next(self._orders.silence_seconds)
            if line is None:
                raise self._ended()
            try:
                message = decode(line)
                said = str(message)
            except Lost as lost:
                message, said = {}, str(lost)
            if isinstance(message.get("event"), str):
                if message["event"] != "failed":
                    self._sender.check()
                return message
            self._greetings += 1
            # Users' start-up files greet everybody, asked or not.
            if not self._left["agent"] or self._greetings > _MOST_GREETINGS:
                raise NodeMisbehaved(f"it sent {printable(said, MOST_TEXT)}")
            self._greeting = printable(line, MOST_TEXT) or self._greeting

    def _ended(self) -> ProbeError:
        """Why the command is over before it was done."""
        self._sender.check()
        said = printable_end(self._channel.errors(), MOST_TEXT) or self._greeting
        status = self._channel.exit_status(ALIVE_SECONDS)
        if not self._answer.node:
            if status == 127 or ("python3" in said and "not found" in said):
                return NodeUnfit(f"no python3 on this node ({said or 'status 127'}); install it, 3.8 or newer")
            if self._orders.as_root and "sudo" in said:
                return PrivilegeMissing(f"CRIU needs root, and `sudo -n` does not work there: {said}")
            return NodeUnfit(f"the agent does not start (status {status}): {said or 'no message'}")
        return NodeUnreachable(f"the connection or the agent was lost (status {status}){': ' * bool(said)}{said}")

    def _hello(self, message: dict[str, Any]) -> None:
        if message.get("version") != VERSION or not isinstance(message.get("node"), dict):
            raise NodeMisbehaved("it speaks another version of the protocol")
        boot = checked.text(message, "boot")
        if self._answer.boot not in ("", boot):
            # It was started again meanwhile: another kernel, another clock, perhaps other settings.
            self._answer.phases.clear()
        self._answer.boot = boot
        node = {printable(str(k), 40): checked.scalar(v) for k, v in list(message["node"].items())[:40]}
        node["python"], node["user"] = checked.text(message, "python"), checked.scalar(message.get("user"))
        self._answer.node = node
        self._watcher.say("agent is running")

    def _need(self, message: dict[str, Any]) -> None:
        wanted = message.get("members")
        if not isinstance(wanted, list):
            raise NodeMisbehaved("it asks for members without naming any")
        for item in wanted:
            if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)) or (
                item[0] not in self._archive.members
            ):
                raise NodeMisbehaved(f"it asks for {printable(str(item), 80)}, which the probe does not have")
            name, offset = item
            member = self._archive.members[name]
            if type(offset) is not int or not 0 <= offset <= member.stored_size:
                raise NodeMisbehaved(f"it asks for {name} from byte {printable(str(offset), 40)} on")
            self._asked[name] = self._asked.get(name, 0) + 1
            if self._asked[name] > 2:
                raise NodeMisbehaved(f"it asks for {name} again and again")
            self._first_need = self._first_need or time.monotonic()
            self._sender.member(name, offset)

    def _time(self, message: dict[str, Any]) -> None:
        phase = self._phase(message)
        made = checked.region_time(message.get("time"), phase, region_seconds(self._records[phase].expected_seconds))
        self.repeating += made.restore + made.warm + made.wall
        self._repeats_made += 1
        if message.get("left_out") == "arriving":
            self._answer.early += 1
        whole = len(self._records) * self._orders.repeats
        self._watcher.measured(min(self._repeats_made, whole), whole)

    def _phase(self, message: dict[str, Any]) -> int:
        phase = message.get("phase")
        if type(phase) is not int or phase not in self._records:
            raise NodeMisbehaved(f"it reports of phase {printable(str(phase), 40)}, which it was not asked for")
        return phase

    def _measured(self, message: dict[str, Any]) -> None:
        phase = self._phase(message)
        times, restorer, warnings = (message.get(key) for key in ("times", "restorer", "warnings"))
        if phase in self._answer.phases or restorer not in (DIRECT, CRIU):
            raise NodeMisbehaved(f"it reports phase {phase} twice, or restored by something unknown")
        if not isinstance(times, list) or len(times) > 2 * self._orders.repeats + 1 or not isinstance(warnings, list):
            raise NodeMisbehaved(f"it reports no times of phase {phase}, or too many")
        failure = checked.text(message, "failure")
        # Of repeats that are added none need be undisturbed.
        if (times and failure) or not (times or failure or self._orders.least == 0):
            raise NodeMisbehaved(f"it reports phase {phase} neither as measured nor as failed")
        most = region_seconds(self._records[phase].expected_seconds)
        self._answer.phases[phase] = MeasuredPhase(
            phase, tuple(checked.region_time(time, phase, most) for time in times), failure,
            checked.error(checked.text(message, "kind"), failure) if failure else None, restorer,
            tuple(printable(str(w), MOST_TEXT) for w in warnings[:_MOST_WARNINGS]),
        )  # fmt: skip


class Lines:
    """Lines of the agent, each of bounded length and after a bounded wait."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._buffer = b""

    def next(self, seconds: float) -> bytes | None:
        """The next line; None at the end."""
        begun = time.monotonic()
        while b"\n" not in self._buffer:
            if len(self._buffer) > LONGEST_LINE:
                raise NodeMisbehaved("it sends an endless line")
            if time.monotonic() - begun > seconds * (1 + len(self._buffer) / _LEAST_BYTES):
                raise NodeMisbehaved("it sends a line that does not come to its end")
            data = self._channel.receive(CHUNK, seconds)
            if data is None:
                raise NodeSilent(f"nothing was heard of it for {seconds:.0f} s; the connection is taken for lost")
            if not data:
                return None
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line
