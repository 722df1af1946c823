# SPDX-License-Identifier: Apache-2.0
"""Ask the kernel which Unix sockets are connected with each other (sock_diag(7))."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST_DUMP = 0x301
_ERROR, _DONE = 2, 3
_ALL_STATES, _SHOW_NAME, _SHOW_PEER = 0xFFFFFFFF, 1, 4
_NAME, _PEER, _SHUT_DOWN = 0, 2, 6
_ESTABLISHED = 1
_HEADER = struct.Struct("<IHHII")
_QUESTION = struct.Struct("<BBHIII8x")  # struct unix_diag_req
_SOCKET = struct.Struct("<BBBBI8x")  # struct unix_diag_msg
_ATTRIBUTE = struct.Struct("<HH")
_ANSWER_BYTES = 1 << 16
_ANSWER_SECONDS = 2.0


@dataclass(frozen=True)
class Connected:
    """A connected Unix socket: the inode of the one at its other end, whether it has a name, whether it was shut down
    in either direction."""

    peer: int
    named: bool
    shut_down: bool


def nameless_pairs() -> dict[int, int]:
    """The inode of each connected Unix socket without a name, and that of the socket at its other end; empty where the
    kernel does not say."""
    return {inode: one.peer for inode, one in connected_sockets().items() if not one.named}


def connected_sockets() -> dict[int, Connected]:
    """All connected Unix sockets of this network namespace by their inodes; empty where the kernel does not say."""
    found: dict[int, Connected] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(_ANSWER_SECONDS)
            question = _QUESTION.pack(socket.AF_UNIX, 0, 0, _ALL_STATES, 0, _SHOW_NAME | _SHOW_PEER)
            size = _HEADER.size + len(question)
            kernel.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + question)
            while _take(kernel.recv(_ANSWER_BYTES), found):
                pass
    except (OSError, struct.error):
        return {}
    return found


def _take(data: bytes, found: dict[int, Connected]) -> bool:
    """Note the sockets of one answer; whether more follow."""
    at = 0
    while at < len(data):
        size, kind, *_ = _HEADER.unpack_from(data, at)
        if kind in (_ERROR, _DONE) or size < _HEADER.size:
            return False
        _, _, state, _, inode = _SOCKET.unpack_from(data, at + _HEADER.size)
        said = _attributes(data[at + _HEADER.size + _SOCKET.size : at + size])
        if state == _ESTABLISHED and _PEER in said:
            (peer,) = struct.unpack("<I", said[_PEER])
            found[inode] = Connected(peer, bool(said.get(_NAME)), any(said.get(_SHUT_DOWN, b"")))
        at += _aligned(size)
    return True


def _attributes(data: bytes) -> dict[int, bytes]:
    at, found = 0, {}
    while at + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        found[kind] = data[at + _ATTRIBUTE.size : at + size]
        at += max(_aligned(size), _ATTRIBUTE.size)
    return found


def _aligned(size: int) -> int:
    return (size + 3) & ~3
