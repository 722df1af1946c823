# SPDX-License-Identifier: Apache-2.0
"""Turn what a process holds and shares with nobody, descriptors, memory, signals, into JSON and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from checkpoint.capture.stored_values import (
    checked_flag,
    checked_number,
    checked_numbers,
    checked_pair,
    checked_text,
)
from checkpoint.state.own_descriptors import (
    OwnDescriptors,
    PairedSocket,
    PipeContents,
    PipeEnd,
    Ticking,
    TimerState,
    UnconnectedSocket,
    Watch,
)
from checkpoint.state.shared_memory import QueuedSignal, SharedMemory

_SIGINFO_BYTES = 128


_NANOSECONDS = 10**9
"""Of a second."""


def encoded_own(own: OwnDescriptors) -> dict[str, Any]:
    """As JSON has it: lists that begin with the number of the file, or of the pipe."""
    return {
        "pipes": [[number, end.flags, end.pipe] for number, end in own.pipes.items()],
        "sockets": [
            [number, one.flags, one.inode, one.peer, one.kind, one.buffer, one.nameless, one.plain]
            for number, one in own.sockets.items()
        ],
        "unconnected": [[number, one.flags, one.kind, one.listens] for number, one in own.unconnected.items()],
        "events": [[number, *event] for number, event in own.events.items()],
        "masks": [[number, *mask] for number, mask in own.masks.items()],
        "timers": [[number, *_timer_row(timer)] for number, timer in own.timers.items()],
        "sets": [
            [number, flags, [[one.fd, one.events, one.data] for one in watched]]
            for number, (flags, watched) in own.sets.items()
        ],
        "contents": [[pipe, held.capacity, held.data.hex()] for pipe, held in own.contents.items()],
        "messages": [
            [number, [None if one is None else one.hex() for one in messages]]
            for number, messages in own.messages.items()
        ],
        "signalling": sorted(own.signalling),
    }


def decoded_own(value: Any) -> OwnDescriptors:
    """The reverse. KeyError, TypeError, ValueError for what `encoded_own` never wrote."""
    return OwnDescriptors(
        pipes={checked_number(n): PipeEnd(*checked_pair(end)) for n, *end in value["pipes"]},
        sockets={checked_number(n): _socket(*one) for n, *one in value["sockets"]},
        unconnected={checked_number(n): _unconnected(*one) for n, *one in value.get("unconnected", ())},
        events={checked_number(n): checked_pair(event) for n, *event in value["events"]},
        masks={checked_number(n): checked_pair(mask) for n, *mask in value["masks"]},
        timers={checked_number(n): _timer(*timer) for n, *timer in value["timers"]},
        sets={
            checked_number(n): (checked_number(flags), tuple(Watch(*checked_numbers(one, 3)) for one in watched))
            for n, flags, watched in value["sets"]
        },
        contents={
            checked_number(pipe): PipeContents(checked_number(capacity), bytes.fromhex(data))
            for pipe, capacity, data in value["contents"]
        },
        messages={
            checked_number(n): tuple(None if one is None else bytes.fromhex(one) for one in messages)
            for n, messages in value["messages"]
        },
        signalling=frozenset(checked_numbers(value["signalling"])),
    )


def _timer_row(timer: TimerState) -> list[Any]:
    """Of a timer that does nothing as versions write it that know no other."""
    found = timer.ticking
    running = [] if found is None else [*found.interval, *found.left, found.ticks, timer.set_flags]
    return [timer.flags, timer.clock, found is None, *running]


def _timer(flags: Any, clock: Any, idle: Any, *running: Any) -> TimerState:
    of = checked_number(flags), checked_number(clock)
    if checked_flag(idle):
        checked_numbers(running, 0)
        return TimerState(*of)
    *times, ticks, set_flags = checked_numbers(running, 6)
    if max(times[1::2]) >= _NANOSECONDS:
        raise ValueError(f"{times} are no seconds and nanoseconds")
    return TimerState(*of, Ticking((times[0], times[1]), (times[2], times[3]), ticks), set_flags)


def _socket(*values: Any) -> PairedSocket:
    *numbers, nameless, plain = values
    flags, inode, peer, kind, buffer = checked_numbers(numbers, 5)
    return PairedSocket(flags, inode, peer, kind, buffer, checked_flag(nameless), checked_flag(plain))


def _unconnected(flags: Any, kind: Any, listens: Any) -> UnconnectedSocket:
    return UnconnectedSocket(checked_number(flags), checked_number(kind), checked_flag(listens))


def encoded_shared(shared: Iterable[SharedMemory]) -> list[list[Any]]:
    """Shared memory as JSON has it."""
    return [
        [n.number, n.name, n.size, n.mode, n.seals, list(map(list, n.pieces)), list(n.files), n.refused] for n in shared
    ]


def decoded_shared(value: Any) -> tuple[SharedMemory, ...]:
    """The reverse of `encoded_shared`; raises as `decoded_own`."""
    return tuple(_memory(*one) for one in value)


def _memory(
    number: Any, name: Any, size: Any, mode: Any, seals: Any, pieces: Any, files: Any, refused: Any
) -> SharedMemory:
    return SharedMemory(
        checked_number(number),
        checked_text(name),
        checked_number(size),
        checked_number(mode),
        checked_number(seals),
        tuple(checked_pair(piece) for piece in pieces),
        checked_numbers(files),
        checked_text(refused),
    )


def encoded_signals(queued: Iterable[QueuedSignal]) -> list[list[Any]]:
    """Pending signals as JSON has them."""
    return [[one.to_thread, one.information.hex()] for one in queued]


def decoded_signals(value: Any) -> tuple[QueuedSignal, ...]:
    """The reverse of `encoded_signals`; raises as `decoded_own`."""
    found = tuple(QueuedSignal(checked_flag(to_thread), bytes.fromhex(said)) for to_thread, said in value)
    if any(len(one.information) != _SIGINFO_BYTES for one in found):
        raise ValueError("what is said of a signal has another size")
    return found
