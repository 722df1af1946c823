# SPDX-License-Identifier: Apache-2.0
"""Bandwidth and latency between here and a node, over a connection like the one that ships a probe.

What goes through SSH is what tasks and results will get through SSH; a network that is faster than one processor
encrypts is not seen here. The node needs `cat` alone.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

from checkpoint.errors import NodeMisbehaved, NodeUnreachable
from probe.ssh.addresses import Address
from probe.ssh.interface import Channel, Connection, RemoteCommandEnded, SshOptions
from probe.ssh.reach import connect

SECONDS = 2.0
"""How long each direction is loaded."""

_ECHOES = 11
_PIECE = 1 << 18
_PATIENCE_SECONDS = 30.0
_SLICE_SECONDS = 0.2


@dataclass(frozen=True)
class Link:
    """Bytes per second to the node (`inbound`, to whom works there) and back; `latency` in seconds, one way."""

    node: str
    inbound: float
    outbound: float
    latency: float

    def to_json(self) -> dict[str, Any]:
        return vars(self)


def measure_link(address: Address, ssh: SshOptions, seconds: float = SECONDS) -> Link:
    """Measure the way to one node and back. Raises NodeUnreachable, NodeMisbehaved."""
    with connect(address, ssh) as connection:
        latency = _round_trip(connection, address.text) / 2
        return Link(address.text, _upload(connection, seconds), _download(connection, address.text, seconds), latency)


def _round_trip(connection: Connection, name: str) -> float:
    """Seconds for a byte there and back, median; the first, which starts the program, is left out."""
    with connection.start("exec cat") as channel:
        found = []
        for _ in range(_ECHOES):
            begun = time.monotonic()
            if not _comes_back(channel):
                raise NodeMisbehaved(f"{name}: what is sent to `cat` there does not come back")
            found.append(time.monotonic() - begun)
        return statistics.median(found[1:])


def _comes_back(channel: Channel) -> bool:
    try:
        channel.send(b"\n", _PATIENCE_SECONDS)
    except RemoteCommandEnded:
        return False
    return channel.receive(1, _PATIENCE_SECONDS) == b"\n"


def _upload(connection: Connection, seconds: float) -> float:
    # Nothing on the way can make random bytes fewer.
    data = os.urandom(_PIECE)
    with connection.start("exec cat > /dev/null") as channel:
        begun, sent = time.monotonic(), 0
        while time.monotonic() - begun < seconds:
            channel.send(data, _PATIENCE_SECONDS)
            sent += len(data)
        channel.end_of_input()
        # What is still on the way counts only once it is there: `cat` ends when it has read everything.
        if channel.exit_status(_PATIENCE_SECONDS) is None:
            raise NodeUnreachable(f"{connection.peer}: what was sent did not arrive within {_PATIENCE_SECONDS:g} s")
        return sent / (time.monotonic() - begun)


def _download(connection: Connection, name: str, seconds: float) -> float:
    with connection.start("exec cat /dev/urandom") as channel:
        begun, received = None, 0
        while begun is None or time.monotonic() - begun < seconds:
            data = channel.receive(_PIECE, _PATIENCE_SECONDS if begun is None else _SLICE_SECONDS)
            if data == b"" or (data is None and begun is None):
                raise NodeMisbehaved(f"{name}: `cat /dev/urandom` there gives nothing")
            # The first piece shows that it runs, and is not measured.
            if begun is None:
                begun = time.monotonic()
            else:
                received += len(data or b"")
        return received / (time.monotonic() - begun)
