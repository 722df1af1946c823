# SPDX-License-Identifier: Apache-2.0
"""Read from CRIU's images the descriptors that lead to the process itself: pipes, socket pairs, eventfds, epoll sets,
timers, signalfds, deleted files; and what is in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from checkpoint.criu.entries import EntryReader
from checkpoint.criu.fields import (
    EventfdFileEntry,
    EventpollFileEntry,
    EventpollTfdEntry,
    FownEntry,
    PipeDataEntry,
    PipeEntry,
    SignalfdEntry,
    SkOptsEntry,
    SkPacketEntry,
    TimerfdEntry,
    UnixSkEntry,
)
from checkpoint.criu.protobuf import Message
from checkpoint.state.process_state import File, FileKind, ProcessState

KINDS = (
    FileKind.PIPE, FileKind.UNIX_SOCKET, FileKind.EVENTFD, FileKind.EPOLL, FileKind.SIGNALFD, FileKind.TIMERFD,
)  # fmt: skip

_ESTABLISHED = 1
_UNUSUAL_OPTIONS = (
    SkOptsEntry.so_snd_tmo_sec, SkOptsEntry.so_snd_tmo_usec, SkOptsEntry.so_rcv_tmo_sec, SkOptsEntry.so_rcv_tmo_usec,
    SkOptsEntry.so_passcred, SkOptsEntry.so_passsec,
)  # fmt: skip


@dataclass(frozen=True)
class PipeEnd:
    """One end of a pipe; which, `flags` say, as for open(2)."""

    flags: int
    pipe: int


@dataclass(frozen=True)
class PipeContents:
    """What is in a pipe, and how many bytes it takes."""

    capacity: int
    data: bytes


@dataclass(frozen=True)
class PairedSocket:
    """A Unix socket. `inode` and `peer`: its number and the other's; `kind` as for socket(2); `buffer`: SO_SNDBUF.

    `nameless`: connected, without a name. `plain`: neither shut down nor with options that other sockets lack."""

    flags: int
    inode: int
    peer: int
    kind: int
    buffer: int
    nameless: bool
    plain: bool


@dataclass(frozen=True)
class Watch:
    """A descriptor in an epoll set, as for epoll_ctl(2)."""

    fd: int
    events: int
    data: int


@dataclass(frozen=True)
class TimerState:
    """A timerfd. `idle`: it neither runs nor has anything to be read."""

    flags: int
    clock: int
    idle: bool


def pipe_end(file: File) -> PipeEnd:
    return PipeEnd(file.own.integer(PipeEntry.flags), file.own.integer(PipeEntry.pipe_id))


def paired_socket(file: File) -> PairedSocket:
    own = file.own
    options = own.message(UnixSkEntry.opts) or Message()
    unusual = any(options.integer(field, 0) for field in _UNUSUAL_OPTIONS) or options.raw_values(SkOptsEntry.so_filter)
    named = any(own.raw_values(UnixSkEntry.name))
    return PairedSocket(
        flags=own.integer(UnixSkEntry.flags),
        inode=own.integer(UnixSkEntry.ino),
        peer=own.integer(UnixSkEntry.peer),
        kind=own.integer(UnixSkEntry.type),
        buffer=options.integer(SkOptsEntry.so_sndbuf, 0),
        nameless=own.integer(UnixSkEntry.state) == _ESTABLISHED and not named,
        plain=not unusual and not own.integer(UnixSkEntry.shutdown, 0),
    )


def event_counter(file: File) -> tuple[int, int]:
    """(flags, count) of an eventfd."""
    return file.own.integer(EventfdFileEntry.flags), file.own.integer(EventfdFileEntry.counter)


def signal_mask(file: File) -> tuple[int, int]:
    """(flags, signals by bit) of a signalfd."""
    return file.own.integer(SignalfdEntry.flags), file.own.integer(SignalfdEntry.sigmask)


def timer_state(file: File) -> TimerState:
    own = file.own
    busy = any(own.integer(field) for field in (TimerfdEntry.ticks, TimerfdEntry.vsec, TimerfdEntry.vnsec))
    return TimerState(own.integer(TimerfdEntry.flags), own.integer(TimerfdEntry.clockid), not busy)


def epoll_watches(file: File) -> tuple[int, list[Watch]]:
    """(flags, what is watched) of an epoll set."""
    fields = EventpollTfdEntry.tfd, EventpollTfdEntry.events, EventpollTfdEntry.data
    found = [Watch(*(item.integer(n) for n in fields)) for item in file.own.messages(EventpollFileEntry.tfd)]
    return file.own.integer(EventpollFileEntry.flags), found


_OWNERS = {
    FileKind.PIPE: PipeEntry.fown, FileKind.UNIX_SOCKET: UnixSkEntry.fown, FileKind.EVENTFD: EventfdFileEntry.fown,
    FileKind.EPOLL: EventpollFileEntry.fown, FileKind.SIGNALFD: SignalfdEntry.fown, FileKind.TIMERFD: TimerfdEntry.fown,
}  # fmt: skip


def sends_signals(file: File) -> bool:
    """Whether somebody gets a signal when there is something to read (F_SETOWN)."""
    owner = file.own.message(_OWNERS[file.kind])
    return owner is not None and owner.integer(FownEntry.pid, 0) != 0


def pipe_contents(images: ProcessState) -> dict[int, PipeContents]:
    """What is in each pipe, by its number. ProbeFileDamaged for an image that does not fit."""
    path = images.folder / "pipes-data.img"
    found: dict[int, PipeContents] = {}
    if not path.exists():
        return found
    reader = EntryReader(path, "pipes-data")
    while not reader.at_end:
        entry = reader.entry()
        data = reader.raw(entry.integer(PipeDataEntry.bytes))
        found[entry.integer(PipeDataEntry.pipe_id)] = PipeContents(entry.integer(PipeDataEntry.size, 0), data)
    return found


def socket_messages(images: ProcessState) -> dict[int, list[bytes | None]]:
    """What each socket has not yet read, by its file's id; None for a message that descriptors travel in."""
    path = images.folder / "sk-queues.img"
    found: dict[int, list[bytes | None]] = defaultdict(list)
    if not path.exists():
        return found
    reader = EntryReader(path, "sk-queues")
    while not reader.at_end:
        entry = reader.entry()
        data = reader.raw(entry.integer(SkPacketEntry.length))
        found[entry.integer(SkPacketEntry.id_for)].append(None if entry.messages(SkPacketEntry.scm) else data)
    return found


def leads_outside(images: ProcessState) -> Iterator[str]:
    """What descriptors of these KINDS lead to something that is not in the checkpoint, or will have changed."""
    files = [(item.fd, images.files[item.file_id]) for item in images.descriptors]
    sockets = {paired_socket(f).inode: paired_socket(f) for _, f in files if f.kind == FileKind.UNIX_SOCKET}
    messages, numbers = socket_messages(images), {fd for fd, _ in files}
    pipe_contents(images)
    for fd, file in files:
        if file.kind == FileKind.UNIX_SOCKET:
            one = paired_socket(file)
            other = sockets.get(one.peer)
            if other is None or other.peer != one.inode or not one.nameless:
                yield f"descriptor {fd} is a Unix socket"
            if None in messages.get(file.id, ()):
                yield f"descriptor {fd} holds descriptors that were sent and not received"
        elif file.kind == FileKind.TIMERFD and not timer_state(file).idle:
            yield f"descriptor {fd} is a running timer (timerfd)"
        elif file.kind == FileKind.EPOLL:
            for watch in epoll_watches(file)[1]:
                if watch.fd not in numbers:
                    yield f"descriptor {fd} is an epoll set that watches what is not open ({watch.fd})"
        elif file.kind == FileKind.SIGNALFD:
            signal_mask(file)
        elif file.kind == FileKind.EVENTFD and event_counter(file)[1] >> 32:
            yield f"descriptor {fd} is an eventfd that has counted too far"
