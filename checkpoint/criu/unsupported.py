# SPDX-License-Identifier: Apache-2.0
"""Find in a checkpoint what a probe cannot hold, and name it in plain words.

CRIU restores much of this; a probe does not, because it is run later, elsewhere and many times over: whatever
reaches outside the one process is no longer there.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from signal import Signals

from checkpoint.criu.images import read_checkpoint
from checkpoint.criu.own_descriptors import own_descriptors
from checkpoint.linux import MAP_HUGETLB
from checkpoint.process.descriptors import ONLY_CRIU, PLAIN_DEVICES
from checkpoint.state.own_descriptors import OwnDescriptors, TimerState
from checkpoint.state.process_state import OWN_KINDS, STOPPED, FileKind, ProcessState, Vma, VmaStatus

KIND_NAMES = {
    2: "a pipe", 5: "a Unix socket", 6: "an eventfd", 7: "an epoll descriptor", 9: "a signalfd", 17: "a timerfd",
}  # fmt: skip

_OUTSIDE = {
    3: "a named pipe",
    4: "a network socket",
    8: "an inotify descriptor",
    10: "a packet socket",
    11: "a terminal",
    12: "a fanotify descriptor",
    13: "a netlink socket",
    14: "a namespace",
    15: "a network tunnel",
    16: "a file outside the checkpoint",
    18: "a memfd",
    19: "a BPF map",
    20: "a pidfd",
}

_MEMORY = (
    (VmaStatus.MEMFD, "shared memory (anonymous or of a memfd)"),
    (VmaStatus.SYSV_IPC, "System V shared memory"),
    (VmaStatus.SOCKET, "a mapped socket"),
    (VmaStatus.AIO_RING, "a ring of asynchronous I/O"),
    (VmaStatus.SHADOW_STACK, "a shadow stack"),
    (VmaStatus.UPROBES, "probes set by a kernel tracer"),
    (VmaStatus.ANON_SHARED, "shared memory"),
)

_ONLY_DIRECT = ", which only direct capture holds"

_ALIVE = 1


def unsupported(checkpoint: Path | ProcessState) -> list[str]:
    """Everything in a checkpoint, or in CRIU's images in a folder, that a probe cannot hold, in plain words.

    ProbeFileDamaged if the images are garbled.
    """
    images = read_checkpoint(checkpoint) if isinstance(checkpoint, Path) else checkpoint
    found = [*_tasks(images), *_processor(images), *_signals(images), *_files(images)]
    for vma in images.vmas:
        found.extend(_memory(images, vma))
    return list(dict.fromkeys(found))


def _tasks(images: ProcessState) -> Iterator[str]:
    if len(images.tasks) > 1:
        children = ", ".join(str(task.pid) for task in images.tasks[1:])
        yield f"{len(images.tasks)} processes (child {children})"
    for task in images.tasks:
        if len(task.threads) > 1 + len(images.others):
            yield f"{len(task.threads)} threads in process {task.pid}"
    if images.state not in (_ALIVE, STOPPED):
        yield "a process that has already ended"


def _processor(images: ProcessState) -> Iterator[str]:
    if not images.x86_64:
        yield "a process that is not x86-64"
        return
    pointers = [images.registers["ip"], *(one.registers["ip"] for one in images.others)]
    for vma in images.vmas:
        for pointer in pointers:
            if vma.status & VmaStatus.VDSO and vma.start <= pointer < vma.end:
                # The code there is the kernel's own and differs on the candidate node.
                yield f"an instruction pointer inside the vDSO ({pointer:#x})"


def _signals(images: ProcessState) -> Iterator[str]:
    held = {one.number for one in images.queued}
    others = [number for one in images.others for number in one.signals.pending]
    for number in [*(n for n in images.signals.pending if n not in held), *others]:
        yield f"pending signal {number} ({_signal_name(number)})"
    if images.filtered:
        yield "a seccomp filter"
    if images.asynchronous_io:
        yield "asynchronous I/O in flight"


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return "real-time" if number >= 32 else "unknown"


def _files(images: ProcessState) -> Iterator[str]:
    own = own_descriptors(images)
    known = own.known()
    shared = {number: one for one in images.shared for number in one.files}
    for item in images.descriptors:
        file = images.files[item.file_id]
        if file.kind in OWN_KINDS:
            if file.id not in known:
                yield f"descriptor {item.fd} is {KIND_NAMES[file.kind]}, {ONLY_CRIU}"
            continue
        if file.kind == FileKind.MEMFD and file.id in shared:
            if shared[file.id].refused:
                yield f"descriptor {item.fd} is a memfd, {shared[file.id].refused}"
        elif file.kind != FileKind.REGULAR:
            direct = _ONLY_DIRECT if images.own is None and file.kind == FileKind.MEMFD else ""
            yield f"descriptor {item.fd} is {_OUTSIDE.get(file.kind, f'of unknown kind {file.kind}')}{direct}"
        elif stat.S_ISBLK(file.mode) or (stat.S_ISCHR(file.mode) and file.path not in PLAIN_DEVICES):
            yield f"descriptor {item.fd} is the device {file.path}"
    yield from _leads_outside(images, own)
    for identifier, copy in sorted(images.removed_files.items()):
        if identifier in images.files and (copy is None or not stat.S_ISREG(images.files[identifier].mode)):
            yield f"the deleted file {images.files[identifier].path} is still in use"


def _leads_outside(images: ProcessState, own: OwnDescriptors) -> Iterator[str]:
    """What descriptors lead to something that is not in the checkpoint, or will have changed."""
    sockets = {one.inode: one for one in own.sockets.values()}
    paths = {item.fd: images.files[item.file_id].path for item in images.descriptors}
    for item in images.descriptors:
        fd, file = item.fd, item.file_id
        if file in own.sockets:
            one = own.sockets[file]
            other = sockets.get(one.peer)
            if other is None or other.peer != one.inode or not one.nameless:
                yield f"descriptor {fd} is a Unix socket"
            if None in own.messages.get(file, ()):
                yield f"descriptor {fd} holds descriptors that were sent and not received"
        elif file in own.timers:
            yield from _timer(fd, own.timers[file], images.own is None)
        elif file in own.events and own.events[file][1] >> 32:
            yield f"descriptor {fd} is an eventfd that has counted too far"
        for watch in own.sets[file][1] if file in own.sets else ():
            if watch.fd not in paths:
                yield f"descriptor {fd} is an epoll set that watches what is not open ({watch.fd})"
            elif paths[watch.fd] == os.devnull:
                # The kernel lets nobody watch it: in the program this is a pipe that others read.
                yield f"descriptor {fd} is an epoll set that watches a pipe to another process ({watch.fd})"


def _timer(fd: int, timer: TimerState, by_criu: bool) -> Iterator[str]:
    if timer.ends_with_clock:
        yield f"descriptor {fd} is a timer that ends when the clock is set (TFD_TIMER_CANCEL_ON_SET)"
    elif by_criu and timer.is_absolute:
        # CRIU adds the seconds of the clock alone to what is left: it would expire at once, or too early.
        yield f"descriptor {fd} is a timer set to a time of its clock (TFD_TIMER_ABSTIME){_ONLY_DIRECT}"
    elif by_criu and timer.ticking is not None and timer.ticking.waits_to_be_read:
        # CRIU sets it to what is left of it: nothing, so that it never ticks again.
        yield f"descriptor {fd} is a timer that has expired and goes on once it is read{_ONLY_DIRECT}"


def _memory(images: ProcessState, vma: Vma) -> Iterator[str]:
    where = f"{vma.start:#x}-{vma.end:#x}"
    special = next((name for bit, name in _MEMORY if vma.status & bit), None)
    shared = {one.number: one for one in images.shared}.get(vma.file_id) if vma.is_memory else None
    if special is not None:
        if shared is None:
            yield f"{special} at {where}{_ONLY_DIRECT if images.own is None and vma.is_memory else ''}"
        elif shared.refused:
            yield f"{special} at {where}, {shared.refused}"
    elif vma.status & VmaStatus.FILE_SHARED and vma.prot & mmap.PROT_WRITE:
        direct = _ONLY_DIRECT if images.own is None else ""
        yield f"{images.files[vma.file_id].path} mapped shared and writable at {where}{direct}"
    if vma.is_file and stat.S_ISCHR(images.files[vma.file_id].mode):
        yield f"memory of the device {images.files[vma.file_id].path} at {where}"
    if vma.flags & MAP_HUGETLB:
        yield f"huge pages (hugetlb) at {where}"
