# SPDX-License-Identifier: Apache-2.0
"""Open files that lead to the process itself: pipes, pairs of sockets, eventfds, epoll sets, timers, signalfds; sockets
that lead nowhere.

Filled by checkpoint/criu/own_descriptors.py and by checkpoint/capture/own_descriptors.py. Python 3.8, standard
library.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TIMER_ABSTIME, TIMER_CANCEL_ON_SET = 1, 2
"""TFD_TIMER_ABSTIME and TFD_TIMER_CANCEL_ON_SET of timerfd_settime(2)."""

_SET_CLOCKS = (0, 8)
"""CLOCK_REALTIME and CLOCK_REALTIME_ALARM, which somebody may set."""


def ends_with_clock(clock: int, set_flags: int) -> bool:
    """Whether a timer of `clock`, set with these flags, is cancelled where somebody sets the clock."""
    both = TIMER_ABSTIME | TIMER_CANCEL_ON_SET
    return clock in _SET_CLOCKS and set_flags & both == both


@dataclass(frozen=True)
class PipeEnd:
    """One end of the pipe that has number `pipe`; which, `flags` say, as for open(2)."""

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
class UnconnectedSocket:
    """A socket that nobody is connected to, with nothing to read. `kind` as for socket(2); `listens`: for connections,
    of which none waits."""

    flags: int
    kind: int
    listens: bool


@dataclass(frozen=True)
class Watch:
    """A descriptor in an epoll set, as for epoll_ctl(2)."""

    fd: int
    events: int
    data: int


@dataclass(frozen=True)
class Ticking:
    """What a timerfd does, as for timerfd_settime(2): its interval, and what is left until it expires, each in
    (seconds, nanoseconds). `ticks`: expirations that nobody has read."""

    interval: tuple[int, int]
    left: tuple[int, int]
    ticks: int

    @property
    def waits_to_be_read(self) -> bool:
        """Whether it stands, since it has expired, until somebody reads it (fs/timerfd.c)."""
        return any(self.interval) and not any(self.left)


def ticking_of(interval: tuple[int, int], left: tuple[int, int], ticks: int) -> Ticking | None:
    """None where a timer neither runs nor has anything to be read: it may have an interval all the same."""
    return Ticking(interval, left, ticks) if ticks or any(left) else None


@dataclass(frozen=True)
class TimerState:
    """A timerfd; `ticking` is None where it neither runs nor has anything to be read. `set_flags`: those that it was
    set with."""

    flags: int
    clock: int
    ticking: Ticking | None = None
    set_flags: int = 0

    @property
    def is_absolute(self) -> bool:
        """Whether it was set to a time of its clock."""
        return bool(self.set_flags & TIMER_ABSTIME)

    @property
    def ends_with_clock(self) -> bool:
        """Whether it runs, and is cancelled where somebody sets the clock (timerfd_setup_cancel in fs/timerfd.c)."""
        return self.ticking is not None and ends_with_clock(self.clock, self.set_flags)


@dataclass(frozen=True)
class OwnDescriptors:
    """Open files that lead to the process itself, by their ids in `ProcessState.files`.

    `events`: (flags, count) of eventfds, `masks`: (flags, signals by bit) of signalfds, `sets`: (flags, what is
    watched) of epoll sets. `contents`: what is in each pipe, by its number. `messages`: what each socket has not yet
    read, None for a message that descriptors travel in. `signalling`: somebody gets a signal when there is something
    to read (F_SETOWN).
    """

    pipes: dict[int, PipeEnd] = field(default_factory=dict)
    sockets: dict[int, PairedSocket] = field(default_factory=dict)
    unconnected: dict[int, UnconnectedSocket] = field(default_factory=dict)
    events: dict[int, tuple[int, int]] = field(default_factory=dict)
    masks: dict[int, tuple[int, int]] = field(default_factory=dict)
    timers: dict[int, TimerState] = field(default_factory=dict)
    sets: dict[int, tuple[int, tuple[Watch, ...]]] = field(default_factory=dict)
    contents: dict[int, PipeContents] = field(default_factory=dict)
    messages: dict[int, tuple[bytes | None, ...]] = field(default_factory=dict)
    signalling: frozenset[int] = frozenset()

    def known(self) -> set[int]:
        """Ids of the files that are described."""
        parts = (self.pipes, self.sockets, self.unconnected, self.events, self.masks, self.timers, self.sets)
        return {number for part in parts for number in part}
