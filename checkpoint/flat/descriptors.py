# SPDX-License-Identifier: Apache-2.0
"""Convert the open files of a checkpoint to descriptors that the direct restorer opens or makes."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Mapping, Sequence

from checkpoint.criu.own_descriptors import own_descriptors
from checkpoint.flat.file_names import deleted_name
from checkpoint.flat.image import FlatImage, Kind, OpenDescriptor, Ticks
from checkpoint.process.descriptors import is_write_end
from checkpoint.state.own_descriptors import OwnDescriptors, Ticking
from checkpoint.state.process_state import Descriptor, File, FileKind, ProcessState

_CLOCKS = (0, 1, 7)
"""CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME: the others wake a machine up, which takes a privilege."""


class NotFlat(Exception):
    """The direct restorer cannot bring this checkpoint back; the reasons, in plain words."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = list(reasons)


class Numbered:
    """Names numbered in the order in which they are first asked for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)


def name_of(images: ProcessState, file_id: int) -> str:
    """The path of a file; of a deleted one the name of its contents among the images."""
    number = images.removed_files.get(file_id)
    return images.files[file_id].path if number is None else deleted_name(number)


def open_descriptors(
    flat: FlatImage, images: ProcessState, files: Numbered, outputs: Sequence[str], written: Collection[str]
) -> None:
    """Put the descriptors of `images` into `flat`, with what they have not read and what they watch. `files`: copies
    that are only read, by name; `outputs` and `written` as for `flatten`. Raises NotFlat."""
    copies = Numbered()
    first: dict[int, int] = {}
    own = own_descriptors(images)
    makers = _makers(images, own)
    memory = {number: position for position, one in enumerate(images.shared) for number in one.files}
    changing = {name_of(images, d.file_id) for d in images.descriptors if images.files[d.file_id].writable}
    if both := sorted(changing.intersection(files.names).difference(outputs)):
        raise NotFlat([f"{both[0]} is mapped and open for writing"])
    for item in sorted(images.descriptors, key=lambda d: d.fd):
        file = images.files[item.file_id]
        found = OpenDescriptor(number=item.fd, flags=file.flags, cloexec=item.flags & 1)
        name = name_of(images, file.id)
        if item.file_id in first:
            found.kind, found.file, found.flags = Kind.SAME_AS, first[item.file_id], 0
        elif file.kind in makers:
            if file.id in own.signalling:
                raise NotFlat([f"descriptor {item.fd} sends signals (F_SETOWN)"])
            makers[file.kind](found, item, file)
        elif file.kind == FileKind.MEMFD:
            found.kind, found.file, found.position = Kind.MEMORY, memory[file.id], file.position
        elif file.path in outputs:
            found.kind, found.file = Kind.OUTPUT, list(outputs).index(file.path)
        elif file.flags & os.O_DIRECT:
            raise NotFlat([f"{file.path} is open for direct input and output (O_DIRECT)"])
        elif stat.S_ISDIR(file.mode) and file.position:
            raise NotFlat([f"the folder {file.path}, open in the middle of being listed"])
        elif not stat.S_ISREG(file.mode):
            found.kind, found.path = Kind.PATH, flat.string(file.path)
            found.flags |= os.O_DIRECTORY if stat.S_ISDIR(file.mode) else 0
        elif file.writable or name in changing:
            # One that only reads it must see what the others write.
            if name == file.path and name not in written:
                raise NotFlat([f"{file.path} is open for writing and was not copied"])
            found.kind, found.file, found.position = Kind.WRITTEN, copies(name), file.position
        else:
            found.kind, found.file, found.position = Kind.COPY, files(name), file.position
        first.setdefault(item.file_id, item.fd)
        flat.descriptors.append(found)
    _fill(flat, images, own, first)
    flat.written = copies.names


def is_appended(flat: FlatImage, path: str, size: int) -> bool:
    """Whether all that the phase has open of the file at `path`, of `size` bytes, is for writing behind its end."""
    own = [d for d in flat.descriptors if d.kind == Kind.WRITTEN and flat.written[d.file] == path]
    return bool(own) and all(
        d.flags & os.O_ACCMODE == os.O_WRONLY and (d.flags & os.O_APPEND or d.position >= size) for d in own
    )


_Maker = Callable[[OpenDescriptor, Descriptor, File], None]


def _makers(images: ProcessState, own: OwnDescriptors) -> Mapping[int, _Maker]:
    """By kind of file: what completes the descriptor that makes it anew."""
    ends = _ends(images, own)
    sockets = {own.sockets[f.id].inode: item.fd for item, f in _first(images) if f.id in own.sockets}
    capacities = {pipe: contents.capacity for pipe, contents in own.contents.items()}

    def pipe(found: OpenDescriptor, item: Descriptor, file: File) -> None:
        end = own.pipes[file.id]
        if end.flags & os.O_ACCMODE == os.O_RDWR:
            raise NotFlat([f"descriptor {item.fd} is both ends of a pipe"])
        found.kind, found.flags, found.position = Kind.PIPE, end.flags, capacities.get(end.pipe, 0)
        found.file = ends.get((end.pipe, not is_write_end(end.flags)), item.fd)

    def socket(found: OpenDescriptor, item: Descriptor, file: File) -> None:
        lone = own.unconnected.get(file.id)
        if lone is not None:
            found.kind, found.flags, found.position, found.path = Kind.SOCKET, lone.flags, int(lone.listens), lone.kind
            found.file = item.fd
            return
        one = own.sockets[file.id]
        if not one.plain:
            raise NotFlat([f"descriptor {item.fd} is a socket with options of its own"])
        found.kind, found.flags, found.position, found.path = Kind.SOCKET, one.flags, one.buffer, one.kind
        found.file = sockets[one.peer]

    def event(found: OpenDescriptor, item: Descriptor, file: File) -> None:
        found.kind = Kind.EVENT
        found.flags, found.position = own.events[file.id]

    def epoll(found: OpenDescriptor, item: Descriptor, file: File) -> None:
        found.kind, found.flags = Kind.EPOLL, own.sets[file.id][0]

    def timer(found: OpenDescriptor, item: Descriptor, file: File) -> None:
        state = own.timers[file.id]
        if state.clock not in _CLOCKS:
            raise NotFlat([f"descriptor {item.fd} is a timer that wakes the machine"])
        found.kind, found.flags, found.position = Kind.TIMER, state.flags, state.clock

    def signals(found: OpenDescriptor, item: Descriptor, file: File) -> None:
        found.kind = Kind.SIGNALS
        found.flags, found.position = own.masks[file.id]

    return {
        FileKind.PIPE: pipe, FileKind.UNIX_SOCKET: socket, FileKind.EVENTFD: event, FileKind.EPOLL: epoll,
        FileKind.TIMERFD: timer, FileKind.SIGNALFD: signals,
    }  # fmt: skip


def _ticking(state: Ticking) -> Ticks:
    """As the restorer sets it. One that waits to be read is set to expire at once, which is its last tick."""
    left, ticks = state.left, state.ticks
    if state.waits_to_be_read:
        left, ticks = (0, 1), max(ticks, 1) - 1
    return Ticks(*state.interval, *left, ticks)


def _first(images: ProcessState) -> list[tuple[Descriptor, File]]:
    """Each open file once, with the lowest of its descriptors."""
    found: dict[int, Descriptor] = {}
    for item in sorted(images.descriptors, key=lambda d: d.fd):
        found.setdefault(item.file_id, item)
    return [(item, images.files[item.file_id]) for item in found.values()]


def _ends(images: ProcessState, own: OwnDescriptors) -> dict[tuple[int, bool], int]:
    """Descriptors of pipes by (pipe, whether it is the end that is written to). Raises NotFlat."""
    found: dict[tuple[int, bool], int] = {}
    for item, file in _first(images):
        if file.id not in own.pipes:
            continue
        end = own.pipes[file.id]
        if found.setdefault((end.pipe, is_write_end(end.flags)), item.fd) != item.fd:
            raise NotFlat([f"descriptor {item.fd} is an end of a pipe that was opened twice"])
    return found


def _fill(flat: FlatImage, images: ProcessState, own: OwnDescriptors, first: Mapping[int, int]) -> None:
    """What pipes and sockets hold, and what epoll sets watch. `first`: the lowest descriptor of each file."""
    ends = _ends(images, own)
    for pipe, contents in own.contents.items():
        if contents.data and (pipe, False) in ends:
            flat.contents.append((ends[pipe, False], contents.data))
    for file_id, messages in own.messages.items():
        if file_id in first:
            flat.contents += [(first[file_id], message) for message in messages if message is not None]
    for item, file in _first(images):
        ticking = own.timers[file.id].ticking if file.id in own.timers else None
        if ticking is not None:
            flat.contents.append((item.fd, bytes(_ticking(ticking))))
        for watch in own.sets[file.id][1] if file.id in own.sets else ():
            flat.watches.append(OpenDescriptor(item.fd, Kind.WATCH, watch.events, watch.data, watch.fd))
