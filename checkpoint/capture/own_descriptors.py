# SPDX-License-Identifier: Apache-2.0
"""Look into descriptors that lead to the process itself: pipes, socket pairs, eventfds, epoll sets, timers, signalfds;
and into sockets that lead nowhere.

Descriptors are duplicated into this process (pidfd_getfd(2), Linux 5.6, allowed to whoever traces the other), so that
what waits to be read can be seen without reading it: tee(2) for pipes, MSG_PEEK for sockets. What the kernel does not
let us see stays undescribed, and `checkpoint.criu.unsupported` names it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import socket
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from checkpoint.binary.syscall_names import call_number
from checkpoint.process.descriptors import is_write_end
from checkpoint.process.sockets import Connected, connected_sockets, duplicate, has_time_limit, unconnected_socket
from checkpoint.state.own_descriptors import (
    OwnDescriptors,
    PairedSocket,
    PipeContents,
    PipeEnd,
    TimerState,
    Watch,
    ticking_of,
)
from checkpoint.state.process_state import OWN_KINDS, Descriptor, File, FileKind

_KCMP_FILE, _KCMP_EPOLL_TFD = 0, 7
_F_GETOWN_EX = 16
_SO_GET_FILTER, _SO_PEEK_OFF = 26, 42
_MOST_MESSAGES, _MOST_BYTES = 1 << 14, 1 << 23
_ROOM_FOR_DESCRIPTORS = socket.CMSG_SPACE(4 * 253)
_LOOKS, _INTERRUPT_SECONDS = 3, 0.002
_WATCH = re.compile(r"^tfd:\s*(\d+) events:\s*([0-9a-f]+) data:\s*([0-9a-f]+)", re.M)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.tee.restype = ctypes.c_ssize_t
_libc.tee.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint]


def own_descriptors(pid: int, descriptors: Sequence[Descriptor], files: Mapping[int, File]) -> OwnDescriptors:
    """What the stopped process `pid`, which we trace, holds of these kinds; it is as before afterwards."""
    found = OwnDescriptors()
    signalling = set()
    connected: Mapping[int, Connected] | None = None
    first: dict[int, int] = {}
    for item in descriptors:
        if item.kind in OWN_KINDS:
            first.setdefault(item.file_id, item.fd)
    if not all(_libc.syscall(call_number("kcmp"), pid, pid, _KCMP_FILE, fd, fd) == 0 for fd in first.values()):
        # Nobody says which descriptors are one open file.
        return found
    for identifier, fd in first.items():
        file = files[identifier]
        said = Path(f"/proc/{pid}/fdinfo/{fd}").read_text()
        with duplicate(pid, fd) as twin:
            if _signals_somebody(file, twin):
                signalling.add(identifier)
            if file.kind == FileKind.EVENTFD:
                found.events[identifier] = file.flags, _number(said, "eventfd-count", 16)
            elif file.kind == FileKind.SIGNALFD:
                found.masks[identifier] = file.flags, _number(said, "sigmask", 16)
            elif file.kind == FileKind.TIMERFD:
                found.timers[identifier] = _timer(pid, fd, twin, file)
            elif file.kind == FileKind.EPOLL:
                if (watched := _watched(pid, fd, said)) is not None:
                    found.sets[identifier] = file.flags, watched
            elif twin is not None and file.kind == FileKind.PIPE:
                _look_into_pipe(identifier, file, twin, found)
            elif twin is not None:
                connected = connected_sockets() if connected is None else connected
                _look_into_socket(identifier, file, twin, connected, found)
    return replace(found, signalling=frozenset(signalling))


def _signals_somebody(file: File, twin: int | None) -> bool:
    if twin is None:
        return bool(file.flags & os.O_ASYNC)
    # F_GETOWN has negative numbers for process groups, which look like errors.
    _, whom = struct.unpack("ii", fcntl.fcntl(twin, _F_GETOWN_EX, bytes(8)))
    return bool(whom)


def _number(said: str, name: str, base: int = 10) -> int:
    return int(re.search(rf"^{name}:\s*([0-9a-fA-F]+)", said, re.M)[1], base)  # type: ignore[index]


def _timer(pid: int, fd: int, twin: int | None, file: File) -> TimerState:
    """By what the kernel shows of a timerfd (Documentation/filesystems/proc.rst, "timerfd files").

    One with an interval that has expired stands until somebody reads it, and only then counts what it has missed. To be
    asked for its time does the same, and takes nothing from the program (fs/timerfd.c).
    """
    for _ in range(_LOOKS):
        if twin is not None:
            _libc.timerfd_gettime(twin, ctypes.create_string_buffer(32))
        said = Path(f"/proc/{pid}/fdinfo/{fd}").read_text()
        ticking = ticking_of(_time(said, "it_interval"), _time(said, "it_value"), _number(said, "ticks"))
        if ticking is not None:
            break
        # Nothing is left of one that expires, until its interrupt has come.
        time.sleep(_INTERRUPT_SECONDS)
    clock, set_flags = _number(said, "clockid"), _number(said, "settime flags", 8)
    return TimerState(file.flags, clock, ticking, set_flags if ticking is not None else 0)


def _time(said: str, name: str) -> tuple[int, int]:
    seconds, nanoseconds = re.search(rf"^{name}:\s*\((\d+), (\d+)\)", said, re.M).groups()  # type: ignore[union-attr]
    return int(seconds), int(nanoseconds)


class _Slot(ctypes.Structure):
    """struct kcmp_epoll_slot: the `offset`-th watch of descriptor `fd` in an epoll set."""

    _fields_ = [("set", ctypes.c_uint32), ("fd", ctypes.c_uint32), ("offset", ctypes.c_uint32)]


def _watched(pid: int, fd: int, said: str) -> tuple[Watch, ...] | None:
    """What an epoll set watches; None where a number in it is no longer that of the file that is watched."""
    found: list[Watch] = []
    for number, events, data in _WATCH.findall(said):
        slot = _Slot(fd, int(number), sum(one.fd == int(number) for one in found))
        same = _libc.syscall(
            call_number("kcmp"), pid, pid, _KCMP_EPOLL_TFD, ctypes.c_ulong(int(number)), ctypes.byref(slot)
        )
        if same:
            return None
        found.append(Watch(int(number), int(events, 16), int(data, 16)))
    return tuple(found)


def _look_into_pipe(identifier: int, file: File, twin: int, found: OwnDescriptors) -> None:
    pipe = os.fstat(twin).st_ino
    capacity = fcntl.fcntl(twin, fcntl.F_GETPIPE_SZ)
    if is_write_end(file.flags):
        data: bytes | None = b""
    else:
        data = _unread(twin, capacity)
    if data is not None:
        found.pipes[identifier] = PipeEnd(file.flags, pipe)
        known = found.contents.get(pipe)
        found.contents[pipe] = PipeContents(capacity, data or (known.data if known else b""))


def _unread(pipe: int, capacity: int) -> bytes | None:
    """What is in a pipe, which keeps it; None where this user's pipes may not be as large."""
    waiting = _waiting(pipe)
    if not waiting:
        return b""
    source, sink = os.pipe()
    try:
        with contextlib.suppress(OSError):
            fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, capacity)
        if _libc.tee(pipe, sink, waiting, os.SPLICE_F_NONBLOCK) != waiting:
            return None
        data = b""
        while len(data) < waiting:
            data += os.read(source, waiting - len(data))
        return data
    finally:
        os.close(source)
        os.close(sink)


def _waiting(fd: int) -> int:
    """Bytes that can be read."""
    (found,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
    return int(found)


def _look_into_socket(
    identifier: int, file: File, twin: int, connected: Mapping[int, Connected], found: OwnDescriptors
) -> None:
    inode = os.fstat(twin).st_ino
    pair = connected.get(inode)
    if pair is None:
        is_peer = any(other.peer == inode for other in connected.values())
        if not is_peer and (lone := unconnected_socket(twin)) is not None:
            found.unconnected[identifier] = lone
        return
    with socket.socket(fileno=os.dup(twin)) as one:
        if one.family != socket.AF_UNIX or (messages := _unread_messages(one)) is None:
            return
        found.sockets[identifier] = PairedSocket(
            flags=file.flags,
            inode=inode,
            peer=pair.peer,
            kind=one.type,
            buffer=one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
            nameless=not pair.named,
            plain=_is_plain(one) and not pair.shut_down,
        )
        if messages:
            found.messages[identifier] = messages


def _is_plain(one: socket.socket) -> bool:
    def said(option: int) -> int:
        return one.getsockopt(socket.SOL_SOCKET, option)

    if has_time_limit(one) or said(socket.SO_PASSCRED) or said(socket.SO_PASSSEC):
        return False
    try:
        return not one.getsockopt(socket.SOL_SOCKET, _SO_GET_FILTER, 1)
    except OSError:
        return False


def _unread_messages(one: socket.socket) -> tuple[bytes | None, ...] | None:
    """What a socket has not yet read, message by message, None for those that descriptors travel in; None where it is
    more than can be seen."""
    before = one.getsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF)
    found: list[bytes | None] = []
    one.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
    try:
        while len(found) < _MOST_MESSAGES:
            try:
                data, beside, flags, _ = one.recvmsg(
                    _MOST_BYTES, _ROOM_FOR_DESCRIPTORS, socket.MSG_PEEK | socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                return tuple(found)
            sent = [part for level, kind, part in beside if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)]
            for part in sent:
                for (number,) in struct.iter_unpack("i", part[: len(part) // 4 * 4]):
                    os.close(number)
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                return None
            if not data and not sent:
                # An empty message is seen once: the kernel passes it over at the next look.
                return tuple(found) if one.type == socket.SOCK_STREAM else None
            found.append(None if sent else data)
    finally:
        one.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, before)
    return None
