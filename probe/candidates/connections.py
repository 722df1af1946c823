# SPDX-License-Identifier: Apache-2.0
"""Connect to many nodes side by side, and end all connections at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from checkpoint.errors import NodeMisbehaved, NodeUnreachable, ProbeError
from probe.ssh.addresses import Address
from probe.ssh.interface import Connection, SshOptions
from probe.ssh.reach import connect

Done = TypeVar("Done")


class Connections:
    """All connections, so that whoever is interrupted can end them."""

    def __init__(self, ssh: SshOptions) -> None:
        self._ssh = ssh
        self._open: set[Connection] = set()
        self._changing = threading.Lock()
        self.given_up = threading.Event()

    @contextmanager
    def to(self, address: Address) -> Iterator[Connection]:
        """A connection to this node. Raises as `connect`."""
        if self.given_up.is_set():
            raise NodeUnreachable("given up")
        with connect(address, self._ssh) as connection:
            with self._changing:
                self._open.add(connection)
            try:
                if self.given_up.is_set():
                    raise NodeUnreachable("given up")
                yield connection
            finally:
                with self._changing:
                    self._open.discard(connection)

    def side_by_side(self, work: Sequence[Callable[[], Done]], jobs: int) -> list[Done]:
        """What each of `work` returns, in their order, at most `jobs` at a time. If one raises, or this thread is
        interrupted, all connections end, and the others with them."""
        with ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="candidate") as pool:
            running: list[Future[Done]] = []
            try:
                running += [pool.submit(one) for one in work]
                return [future.result() for future in running]
            except BaseException:
                for future in running:
                    future.cancel()
                self.give_up()
                raise

    def give_up(self) -> None:
        """Whoever uses one of them gets NodeUnreachable, and nobody connects again."""
        self.given_up.set()
        with self._changing:
            still_open = list(self._open)
        for connection in still_open:
            connection.close()


def refuse_named_twice(addresses: Iterable[Address]) -> None:
    """ProbeError where one node is among the addresses twice."""
    seen = set()
    for address in addresses:
        if (node := (address.host.lower(), address.user, address.port)) in seen:
            raise ProbeError(f"{address.text} is named twice: one node runs one measurement at a time")
        seen.add(node)


def named(error: ProbeError, address: Address) -> ProbeError:
    """The same error with the node's name in front."""
    text = str(error)
    if isinstance(error, NodeMisbehaved):
        text += "; no agent of ours says that: is the node what it seems?"
    return error if text.startswith(address.text) else type(error)(f"{address.text}: {text}")


def too_late(address: Address, seconds: float) -> NodeUnreachable:
    """The error of a node that was not done within its limit."""
    return NodeUnreachable(
        f"{address.text}: given up: it was not done within its {seconds:.0f} s; see what it does, or give a longer "
        "--node-limit"
    )
