# SPDX-License-Identifier: Apache-2.0
"""TCP sockets of some processes: bytes so far and the other ends, by netlink's sock_diag(7), as any user."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from probe.emulation.usage import Endpoint

_SOCK_DIAG, _BY_FAMILY, _DONE, _ERROR = 4, 20, 3, 2
_DUMP = 0x301
_INFO = 2
_ALL_BUT_LISTENING = 0xFFF & ~(1 << 10)
_HEAD, _MESSAGE, _ATTRIBUTE = 16, 72, 4
_ACKED, _RECEIVED = 120, 128
"""Offsets of tcpi_bytes_acked and tcpi_bytes_received in struct tcp_info (Linux 4.1)."""


@dataclass(frozen=True)
class Connection:
    """One socket: `inode` names it among descriptors. Bytes since it was made."""

    inode: int
    address: str
    port: int
    received: int
    sent: int


class Sockets:
    """What some processes' sockets have carried. Raises OSError where the kernel does not say."""

    def __init__(self) -> None:
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)
        self._ours: dict[tuple[int, str, int], Connection] = {}
        try:
            self._netlink.settimeout(1.0)
            list(self._connections())
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        self._netlink.close()

    def look(self, pids: Collection[int]) -> tuple[int, int]:
        """Bytes (received, sent) by all sockets that these processes have or were seen to have."""
        ours = _descriptors(pids)
        # The kernel walks its whole table of connections for an answer: asked by those alone that have sockets.
        for one in self._connections() if ours else ():
            if one.inode in ours:
                self._ours[one.inode, one.address, one.port] = one
        held = self._ours.values()
        return sum(one.received for one in held), sum(one.sent for one in held)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The other ends, those with the most bytes first."""
        sums: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
        for one in self._ours.values():
            sums[one.address, one.port][0] += one.received
            sums[one.address, one.port][1] += one.sent
        made = [Endpoint(address, port, *both) for (address, port), both in sums.items()]
        return tuple(sorted(made, key=lambda one: -one.received - one.sent))

    def _connections(self) -> Iterator[Connection]:
        for family in (socket.AF_INET, socket.AF_INET6):
            asked = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ALL_BUT_LISTENING)
            asked += bytes(48)
            self._netlink.send(struct.pack("=IHHII", _HEAD + len(asked), _BY_FAMILY, _DUMP, 1, 0) + asked)
            yield from self._answers(family)

    def _answers(self, family: int) -> Iterator[Connection]:
        while True:
            data = self._netlink.recv(1 << 18)
            at = 0
            while at + _HEAD <= len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    number = -struct.unpack_from("=i", data, at + _HEAD)[0]
                    raise OSError(number, os.strerror(number))
                yield _connection(family, data[at + _HEAD : at + length])
                at += (length + 3) & ~3


def _connection(family: int, said: bytes) -> Connection:
    port = struct.unpack_from(">H", said, 6)[0]
    address = socket.inet_ntop(family, said[24 : 24 + (4 if family == socket.AF_INET else 16)])
    inode = struct.unpack_from("=I", said, 68)[0]
    received = sent = 0
    at = _MESSAGE
    while at + _ATTRIBUTE <= len(said):
        length, kind = struct.unpack_from("=HH", said, at)
        if kind == _INFO and length >= _ATTRIBUTE + _RECEIVED + 8:
            sent = struct.unpack_from("=Q", said, at + _ATTRIBUTE + _ACKED)[0]
            received = struct.unpack_from("=Q", said, at + _ATTRIBUTE + _RECEIVED)[0]
        at += max(_ATTRIBUTE, (length + 3) & ~3)
    return Connection(inode, address, port, received, sent)


def _descriptors(pids: Collection[int]) -> set[int]:
    """Inodes of the sockets that these processes have open."""
    found = set()
    for pid in pids:
        try:
            entries = list(os.scandir(f"/proc/{pid}/fd"))
        except OSError:
            continue
        for entry in entries:
            with contextlib.suppress(OSError):
                about = entry.stat()
                if stat.S_ISSOCK(about.st_mode):
                    found.add(about.st_ino)
    return found
