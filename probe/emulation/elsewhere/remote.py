# SPDX-License-Identifier: Apache-2.0
"""Emulating a profile on candidate nodes, side by side, and what comes of it for each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from checkpoint.errors import NodeUnreachable, ProbeError
from probe.candidates.agent_client import SilentNode, Watcher
from probe.candidates.connections import Connections, named, refuse_named_twice, too_late
from probe.emulation.elsewhere.talk import Emulated, NodeOrders, emulate_there
from probe.emulation.plan import EmulateOptions, check_options
from probe.emulation.running import EmulationResult, check_kernel, known_rates
from probe.emulation.usage import Usage, load_usage
from probe.formats.result import EMULATION_VERSION, METHOD
from probe.ssh.addresses import Address, parse_address
from probe.ssh.interface import Connection, SshOptions


@dataclass(frozen=True)
class EmulatedNode:
    """What came of one node: a result, or the error that stands in its place, never both.

    `seconds`: from the connection to the end; `sent`: bytes; `built`: by the node's own compiler.
    """

    name: str
    result: EmulationResult | None
    error: ProbeError | None
    seconds: float = 0.0
    sent: int = 0
    built: bool = False
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The published form (docs/json.md)."""
        return {
            "name": self.name,
            "status": "ok" if self.result else "failed",
            "reason": str(self.error) if self.error is not None else "",
            "exit_code": self.error.exit_code if self.error is not None else 0,
            "seconds": self.seconds,
            "sent_bytes": self.sent,
            "built_there": self.built,
            "notes": list(self.notes),
            "result": self.result.to_json() if self.result is not None else None,
        }


def emulated_json(profile: str, found: Sequence[EmulatedNode]) -> dict[str, Any]:
    """What `probe emulate --on --json` prints (docs/json.md)."""
    return {
        "format_version": EMULATION_VERSION, "method": METHOD, "profile": profile,
        "candidates": [one.to_json() for one in found],
    }  # fmt: skip


def emulate_on(
    profile: Path | str,
    nodes: Sequence[str | Address],
    options: EmulateOptions | None = None,
    *,
    ssh: SshOptions | None = None,
    orders: NodeOrders | None = None,
    jobs: int = 8,
    watcher: Callable[[str], Watcher] = lambda _: SilentNode(),
) -> list[EmulatedNode]:
    """Use on every node what the profile says was used; at most `jobs` of them at a time, results in the order given.

    A node is `[USER@]NODE[:PORT]`. The options' folder is one on the node, from the user's home there. A node that
    fails is an entry with its reason. Raises only what is wrong with names, options, or the profile: ProbeError,
    ProbeFileDamaged, StorageError. Interrupted it ends all connections, and the emulations with them.
    """
    options = options or EmulateOptions()
    addresses = [parse_address(node) if isinstance(node, str) else node for node in nodes]
    refuse_named_twice(addresses)
    usage = load_usage(Path(profile))
    check_options(options)
    check_kernel(options)
    work = _Work(str(profile), usage, options, known_rates(usage, options), orders or NodeOrders())
    connections = Connections(ssh or SshOptions())
    there = [partial(work.on, address, connections, watcher(address.text)) for address in addresses]
    return connections.side_by_side(there, jobs)


@dataclass(frozen=True)
class _Work:
    profile: str
    usage: Usage
    options: EmulateOptions
    rates: Mapping[str, float]
    orders: NodeOrders

    def on(self, address: Address, connections: Connections, watcher: Watcher) -> EmulatedNode:
        begun = time.monotonic()
        notes: tuple[str, ...] = ()
        try:
            with connections.to(address) as connection, self._in_time(connection, address):
                notes = connection.notes
                done = emulate_there(connection.start, self.usage, self.options, self.rates, self.orders, watcher)
        except ProbeError as error:
            return EmulatedNode(address.text, None, named(error, address), time.monotonic() - begun, notes=notes)
        watcher.say("done")
        seconds = time.monotonic() - begun
        return EmulatedNode(address.text, self._result(done), None, seconds, done.sent, done.built, notes)

    def _result(self, done: Emulated) -> EmulationResult:
        return EmulationResult(self.profile, self.usage, self.options, done.plan, done.outcome, done.node)

    @contextmanager
    def _in_time(self, connection: Connection, address: Address) -> Iterator[None]:
        """End the connection where the user's limit is over, whatever the node does or says."""
        if self.orders.limit_seconds is None:
            yield
            return
        late = threading.Event()

        def end() -> None:
            late.set()
            connection.close()

        most = self.orders.limit_seconds + self.orders.lock_seconds + self.orders.silence_seconds
        timer = threading.Timer(most, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except NodeUnreachable as error:
            if late.is_set():
                raise too_late(address, most) from error
            raise
        finally:
            timer.cancel()
            timer.join()
