# SPDX-License-Identifier: Apache-2.0
"""One talk with what emulates on one node: sources or a program go there, then the plan; the outcome comes back.

The node is not trusted: what it says is bounded, checked for being an answer to what was asked, and cleaned before it
is shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from checkpoint.errors import NodeMisbehaved, NodeUnfit, NodeUnreachable, ProbeError
from probe.candidates import agent_replies as checked
from probe.candidates.agent_client import Lines, NodeSilent, Watcher
from probe.candidates.agent_replies import MOST_TEXT
from probe.emulation.elsewhere.node_part import BUILD_SECONDS, VERSION
from probe.emulation.elsewhere.start import emulation_file, start_command
from probe.emulation.kernels import build_options, program_for, sources
from probe.emulation.load import disk_of, memory_of
from probe.emulation.plan import EmulateOptions, Plan, make_plan
from probe.emulation.running import Outcome, Said
from probe.emulation.usage import Usage
from probe.foreign_text import printable, printable_end
from probe.node.facts import this_node
from probe.node.machine_lock import WAIT_SECONDS
from probe.node.protocol import ALIVE_SECONDS, SILENCE_SECONDS, Lost, decode, encode
from probe.ssh.interface import Channel, RemoteCommandEnded

_MOST_GREETINGS = 200
"""Lines that a login shell's start-up files may print before what was sent there speaks."""

_MOST_LINES = 1 << 20
"""Of the emulator: two for each sample would be half of it."""

_TOO_FAST = 1.0
"""Seconds that a node's clock may run ahead of this one's, over an emulation."""

_MOST_CPU = 1.1 * 4096
"""CPU seconds in a second: more processors than nodes have."""

_LEAST_SECONDS = 60.0
_SLOWER = 20.0
"""A node may be so many times as slow as the profiled one."""


@dataclass(frozen=True)
class NodeOrders:
    """Limits of an emulation on a node, in seconds: for all of it (None: from the profile), to wait for another
    measurement there, and without a word after which each side takes the other for lost."""

    limit_seconds: float | None = None
    lock_seconds: float = WAIT_SECONDS
    silence_seconds: float = SILENCE_SECONDS


@dataclass(frozen=True)
class Emulated:
    """What came of it on one node. `sent`: bytes; `built`: by the node's own compiler."""

    plan: Plan
    outcome: Outcome
    node: dict[str, Any]
    sent: int
    built: bool


def limit_of(plan: Plan, usage: Usage, orders: NodeOrders) -> float:
    """Seconds that the emulator may run on a node."""
    if orders.limit_seconds is not None:
        return orders.limit_seconds
    asked = float(plan.cpu[-1]) + float(plan.waits.sum()) + usage.seconds
    return _LEAST_SECONDS + _SLOWER * asked


def emulate_there(
    channel_of: Callable[[str], AbstractContextManager[Channel]], usage: Usage, options: EmulateOptions,
    rates: Mapping[str, float], orders: NodeOrders, watcher: Watcher,
) -> Emulated:  # fmt: skip
    """Have a profile emulated on the node that `channel_of(command)` starts commands on.

    Raises the node's own refusals (NodeUnfit, NodeBusy, StorageError), NodeUnreachable, NodeMisbehaved, ToolMissing
    where neither side can build the emulator, ProbeError for what nothing can follow.
    """
    file = emulation_file()
    with channel_of(start_command(file, orders.silence_seconds)) as channel:
        talk = _Talk(channel, usage, options, orders, watcher)
        try:
            talk.send(file.data)
            return talk.emulation(rates)
        except RemoteCommandEnded:
            raise talk.ended() from None


class _Talk:
    def __init__(
        self, channel: Channel, usage: Usage, options: EmulateOptions, orders: NodeOrders, watcher: Watcher
    ) -> None:
        self._channel, self._usage, self._options = channel, usage, options
        self._orders, self._watcher = orders, watcher
        self._lines = Lines(channel)
        self._greetings, self._greeting = 0, ""
        self._heard_of_it = False
        self._sent = 0
        self._blas = False
        self._last: dict[str, Any] = {}

    def send(self, data: bytes) -> None:
        self._channel.send(data, self._orders.silence_seconds)
        self._sent += len(data)

    def emulation(self, rates: Mapping[str, float]) -> Emulated:
        hello = self._next({"hello"}, self._orders.silence_seconds)
        node = self._node(hello)
        cores = node.get("cores")
        if hello.get("version") != VERSION or type(cores) is not int or not 1 <= cores <= 1 << 16:
            raise NodeMisbehaved("it speaks another version of the protocol")
        self._watcher.say("building the emulator")
        built = hello.get("compiler") is True and self._built_there()
        if not built:
            self._send_program(str(node.get("machine", "")))
        plan = make_plan(self._usage, self._options, rates, cores=cores, blas=self._blas)
        outcome = self._emulated(plan)
        facts = self._node(self._last)
        return Emulated(plan, outcome, {key: facts.get(key) for key in this_node()}, self._sent, built)

    def _built_there(self) -> bool:
        found = sources(self._options.own_kernel)
        order = {"op": "build", "sources": [[name, len(data)] for name, data in found.items()]}
        self.send(encode({**order, "options": list(build_options(self._options.own_kernel))}))
        for data in found.values():
            self.send(data)
        return self._ready(self._next({"ready", "not built"}, BUILD_SECONDS))

    def _ready(self, message: dict[str, Any]) -> bool:
        self._blas = message.get("blas") is True
        return bool(message["event"] == "ready")

    def _send_program(self, machine: str) -> None:
        data = program_for(machine, self._options.own_kernel)
        self._watcher.say("sending the emulator")
        self.send(encode({"op": "program", "size": len(data)}))
        self.send(data)
        self._ready(self._next({"ready"}, self._orders.silence_seconds))

    def _emulated(self, plan: Plan) -> Outcome:
        text = plan.text(self._options, ".").encode()
        seconds = limit_of(plan, self._usage, self._orders)
        self.send(encode({
            "op": "emulate", "size": len(text), "folder": str(self._options.folder),
            "resident": plan.most_resident + memory_of(self._options.load),
            "written": plan.all_written + disk_of(self._options.load), "load": dict(self._options.load),
            "seconds": seconds, "lock_seconds": self._orders.lock_seconds,
        }))  # fmt: skip
        self.send(text)
        begun = time.monotonic()
        self._watcher.say("emulating")
        said, taken = Said(len(plan.cpu)), 0
        limit = seconds + self._orders.lock_seconds + self._orders.silence_seconds
        while True:
            message = self._next({"said", "done"}, limit - (time.monotonic() - begun))
            if message["event"] == "done":
                break
            lines = message.get("lines")
            if not isinstance(lines, list) or (taken := taken + len(lines)) > _MOST_LINES:
                raise NodeMisbehaved("it says more than an emulator does")
            for line in lines:
                self._take(said, line)
            self._watcher.measured(round(1000 * said.share), 1000)
        self._last = message
        return self._outcome(said, message, time.monotonic() - begun)

    def _take(self, said: Said, line: Any) -> None:
        try:
            said.take(line if isinstance(line, str) else "")
        except ValueError as error:
            raise NodeMisbehaved(f"its emulator says nonsense: {printable(str(error), MOST_TEXT)}") from error

    def _outcome(self, said: Said, message: dict[str, Any], elapsed: float) -> Outcome:
        status, start = message.get("status"), message.get("start")
        if type(status) is not int or not isinstance(start, (int, float)) or not 0 <= start <= elapsed + _TOO_FAST:
            raise NodeMisbehaved("it does not say how its emulator ended")
        outcome = said.outcome(status, checked.text(message, "errors").strip(), float(start))
        if not 0 < outcome.wall <= elapsed + _TOO_FAST or outcome.samples[-1][0] > outcome.wall + _TOO_FAST:
            raise NodeMisbehaved(f"it reports {outcome.wall:.6g} s of an emulation that ended after {elapsed:.6g} s")
        if outcome.user + outcome.kernel > _MOST_CPU * (outcome.wall + _TOO_FAST):
            raise NodeMisbehaved("it reports more CPU time than any node has")
        return outcome

    def _node(self, message: dict[str, Any]) -> dict[str, Any]:
        said = message.get("node")
        if not isinstance(said, dict):
            raise NodeMisbehaved("it does not say what node it is")
        return {printable(str(key), 40): checked.scalar(value) for key, value in list(said.items())[:40]}

    # -- messages

    def _next(self, wanted: set[str], seconds: float) -> dict[str, Any]:
        """The next message that is wanted, within so many seconds. Signs of life are answered."""
        deadline = time.monotonic() + seconds
        for message in self._messages():
            event = message["event"]
            if event == "failed":
                raise checked.failure(message)
            if event in wanted:
                return message
            if event == "waiting":
                self._watcher.say(f"waiting for another measurement: {checked.text(message, 'holder')}")
            elif event != "alive":
                raise NodeMisbehaved(f"it said {printable(event, 40)!r}")
            if time.monotonic() > deadline:
                raise NodeSilent(f"it lives and has not come to an end within {seconds:.0f} s")
            # What says without end that it lives is answered no faster than this.
            self.send(encode({"op": "alive"}))
        raise self.ended()

    def _messages(self) -> Iterator[dict[str, Any]]:
        while (line := self._lines.next(self._orders.silence_seconds)) is not None:
            try:
                message = decode(line)
            except Lost as lost:
                message = {"unknown": str(lost)}
            if isinstance(message.get("event"), str):
                self._heard_of_it = True
                yield message
                continue
            self._greetings += 1
            if self._heard_of_it or self._greetings > _MOST_GREETINGS:
                raise NodeMisbehaved(f"it sent {printable(str(message), MOST_TEXT)}")
            self._greeting = printable(line, MOST_TEXT) or self._greeting

    def ended(self) -> ProbeError:
        """Why the command is over before it was done."""
        said = printable_end(self._channel.errors(), MOST_TEXT) or self._greeting
        status = self._channel.exit_status(ALIVE_SECONDS)
        if status == 127 or ("python3" in said and "not found" in said):
            return NodeUnfit(f"no python3 on this node ({said or 'status 127'}); install it, 3.8 or newer")
        if not self._heard_of_it:
            return NodeUnfit(f"what emulates does not start (status {status}): {said or 'no message'}")
        return NodeUnreachable(f"the connection or the emulation was lost (status {status}){': ' * bool(said)}{said}")
