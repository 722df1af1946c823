# SPDX-License-Identifier: Apache-2.0
"""Ask the kernel which Unix sockets are connected with each other (sock_diag(7)), and which sockets with nobody."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from checkpoint.binary.syscall_names import call_number
from checkpoint.state.own_descriptors import UnconnectedSocket

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
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
_TYPES = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
_PROTOCOLS = (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP)
_WAITING = select.POLLIN | select.POLLERR
_NO_LIMIT = bytes(16)

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Connected:
    """A connected Unix socket: the inode of the one at its other end, whether it has a name, whether it was shut down
    in either direction."""

    peer: int
    named: bool
    shut_down: bool


@contextlib.contextmanager
def duplicate(pid: int, fd: int) -> Iterator[int | None]:
    """A descriptor of ours for the same open file as `fd` of process `pid` (pidfd_getfd(2)); None where the kernel, or
    a filter, does not give any."""
    twin = -1
    with contextlib.suppress(OSError, ValueError):
        whose = os.pidfd_open(pid)
        try:
            twin = _libc.syscall(call_number("pidfd_getfd"), whose, fd, 0)
        finally:
            os.close(whose)
    try:
        yield twin if twin >= 0 else None
    finally:
        if twin >= 0:
            os.close(twin)


def unconnected_socket(fd: int) -> UnconnectedSocket | None:
    """The socket that descriptor `fd` of ours leads to; None where somebody is, or may be, at its other end.

    That is nobody where it listens, or has no peer, and nothing waits. One of a stream has no address either: it may
    connect right now. Unix sockets that are connected to it are the caller's to look for. None as well where it would
    wait for a limited time alone, and of kinds that say nothing of themselves.
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    with contextlib.suppress(OSError), _socket_of(fd) as one:
        if one.family not in _FAMILIES or one.type not in _TYPES or one.proto not in _PROTOCOLS:
            return None
        listens = bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        bound = one.type != socket.SOCK_DGRAM and _has_address(one)
        if _has_something(one) or has_time_limit(one) or (not listens and (bound or _has_peer(one))):
            return None
        return UnconnectedSocket(flags, one.type, listens)
    return None


@contextlib.contextmanager
def _socket_of(fd: int) -> Iterator[socket.socket]:
    """A socket of ours for the same open file. OSError for families that name no address."""
    own = os.dup(fd)
    try:
        one = socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise
    with one:
        yield one


def has_time_limit(one: socket.socket) -> bool:
    """Whether it waits for a limited time when it sends or receives."""
    limits = (one.getsockopt(socket.SOL_SOCKET, name, 16) for name in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO))
    return any(limit != _NO_LIMIT for limit in limits)


def _has_something(one: socket.socket) -> bool:
    asked = select.poll()
    asked.register(one, _WAITING)
    return any(said & _WAITING for _, said in asked.poll(0))


def _has_peer(one: socket.socket) -> bool:
    try:
        one.getpeername()
    except OSError as error:
        return error.errno != errno.ENOTCONN
    return True


def _has_address(one: socket.socket) -> bool:
    name = one.getsockname()
    return bool(name if one.family == socket.AF_UNIX else name[1])


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
