# SPDX-License-Identifier: Apache-2.0
"""Open files that lead to the process itself: pipes, pairs of sockets, eventfds, epoll sets, timers, signalfds.

Filled by checkpoint/criu/own_descriptors.py and by checkpoint/capture/own_descriptors.py. Python 3.8, standard
library.
"""

from __future__ import annotations

from dataclasses import dataclass, field


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
    events: dict[int, tuple[int, int]] = field(default_factory=dict)
    masks: dict[int, tuple[int, int]] = field(default_factory=dict)
    timers: dict[int, TimerState] = field(default_factory=dict)
    sets: dict[int, tuple[int, tuple[Watch, ...]]] = field(default_factory=dict)
    contents: dict[int, PipeContents] = field(default_factory=dict)
    messages: dict[int, tuple[bytes | None, ...]] = field(default_factory=dict)
    signalling: frozenset[int] = frozenset()

    def known(self) -> set[int]:
        """Ids of the files that are described."""
        parts = (self.pipes, self.sockets, self.events, self.masks, self.timers, self.sets)
        return {number for part in parts for number in part}
