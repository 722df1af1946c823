# SPDX-License-Identifier: Apache-2.0
"""Read from CRIU's images the descriptors that lead to the process itself: pipes, socket pairs, eventfds, epoll sets,
timers, signalfds, deleted files; and what is in them."""

from __future__ import annotations

from collections import defaultdict

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
from checkpoint.state.own_descriptors import (
    OwnDescriptors,
    PairedSocket,
    PipeContents,
    PipeEnd,
    TimerState,
    Watch,
    ticking_of,
)
from checkpoint.state.process_state import File, FileKind, ProcessState

_ESTABLISHED = 1
_UNUSUAL_OPTIONS = (
    SkOptsEntry.so_snd_tmo_sec, SkOptsEntry.so_snd_tmo_usec, SkOptsEntry.so_rcv_tmo_sec, SkOptsEntry.so_rcv_tmo_usec,
    SkOptsEntry.so_passcred, SkOptsEntry.so_passsec,
)  # fmt: skip


def own_descriptors(state: ProcessState) -> OwnDescriptors:
    """What the descriptors of a checkpoint lead to in the process itself, however it was captured.

    ProtobufError, ProbeFileDamaged for images that do not fit.
    """
    if state.own is not None:
        return state.own
    files = {item.file_id: state.files[item.file_id] for item in state.descriptors}

    def of(kind: int) -> dict[int, File]:
        return {number: file for number, file in files.items() if file.kind == kind}

    return OwnDescriptors(
        pipes={number: _pipe_end(file) for number, file in of(FileKind.PIPE).items()},
        sockets={number: _paired_socket(file) for number, file in of(FileKind.UNIX_SOCKET).items()},
        events={number: _event_counter(file) for number, file in of(FileKind.EVENTFD).items()},
        masks={number: _signal_mask(file) for number, file in of(FileKind.SIGNALFD).items()},
        timers={number: _timer_state(file) for number, file in of(FileKind.TIMERFD).items()},
        sets={number: _epoll_set(file) for number, file in of(FileKind.EPOLL).items()},
        contents=_pipe_contents(state),
        messages=_socket_messages(state),
        signalling=frozenset(number for number, file in files.items() if _sends_signals(file)),
    )


def _pipe_end(file: File) -> PipeEnd:
    return PipeEnd(file.criu.integer(PipeEntry.flags), file.criu.integer(PipeEntry.pipe_id))


def _paired_socket(file: File) -> PairedSocket:
    own = file.criu
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


def _event_counter(file: File) -> tuple[int, int]:
    return file.criu.integer(EventfdFileEntry.flags), file.criu.integer(EventfdFileEntry.counter)


def _signal_mask(file: File) -> tuple[int, int]:
    return file.criu.integer(SignalfdEntry.flags), file.criu.integer(SignalfdEntry.sigmask)


def _timer_state(file: File) -> TimerState:
    own = file.criu
    left = own.integer(TimerfdEntry.vsec), own.integer(TimerfdEntry.vnsec)
    interval = own.integer(TimerfdEntry.isec), own.integer(TimerfdEntry.insec)
    ticking = ticking_of(interval, left, own.integer(TimerfdEntry.ticks))
    flags, set_flags = own.integer(TimerfdEntry.flags), own.integer(TimerfdEntry.settime_flags)
    return TimerState(flags, own.integer(TimerfdEntry.clockid), ticking, set_flags)


def _epoll_set(file: File) -> tuple[int, tuple[Watch, ...]]:
    fields = EventpollTfdEntry.tfd, EventpollTfdEntry.events, EventpollTfdEntry.data
    found = (Watch(*(item.integer(n) for n in fields)) for item in file.criu.messages(EventpollFileEntry.tfd))
    return file.criu.integer(EventpollFileEntry.flags), tuple(found)


_OWNERS = {
    FileKind.PIPE: PipeEntry.fown, FileKind.UNIX_SOCKET: UnixSkEntry.fown, FileKind.EVENTFD: EventfdFileEntry.fown,
    FileKind.EPOLL: EventpollFileEntry.fown, FileKind.SIGNALFD: SignalfdEntry.fown, FileKind.TIMERFD: TimerfdEntry.fown,
}  # fmt: skip


def _sends_signals(file: File) -> bool:
    owner = file.criu.message(_OWNERS[file.kind]) if file.kind in _OWNERS else None
    return owner is not None and owner.integer(FownEntry.pid, 0) != 0


def _pipe_contents(images: ProcessState) -> dict[int, PipeContents]:
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


def _socket_messages(images: ProcessState) -> dict[int, tuple[bytes | None, ...]]:
    path = images.folder / "sk-queues.img"
    found: dict[int, list[bytes | None]] = defaultdict(list)
    if not path.exists():
        return {}
    reader = EntryReader(path, "sk-queues")
    while not reader.at_end:
        entry = reader.entry()
        data = reader.raw(entry.integer(SkPacketEntry.length))
        found[entry.integer(SkPacketEntry.id_for)].append(None if entry.messages(SkPacketEntry.scm) else data)
    return {number: tuple(messages) for number, messages in found.items()}
