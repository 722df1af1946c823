# SPDX-License-Identifier: Apache-2.0
"""Find in a checkpoint what a probe cannot hold, and name it in plain words.

CRIU restores much of this; a probe does not, because it is run later, elsewhere and many times over: whatever
reaches outside the one process is no longer there. What leads nowhere else is fine (own_descriptors.py).
"""

from __future__ import annotations

import mmap
import stat
from collections.abc import Iterator
from pathlib import Path
from signal import Signals

from checkpoint.criu.entries import damaged
from checkpoint.criu.fields import (
    CoreEntry,
    MmEntry,
    SiginfoEntry,
    SignalQueueEntry,
    TaskCoreEntry,
    ThreadCoreEntry,
    ThreadInfoX86,
    UserX86RegsEntry,
)
from checkpoint.criu.images import CheckpointImages, FileKind, Vma, VmaStatus, read_checkpoint
from checkpoint.criu.own_descriptors import KINDS, leads_outside
from checkpoint.criu.protobuf import Message, ProtobufError
from checkpoint.linux import MAP_HUGETLB
from checkpoint.process.descriptors import PLAIN_DEVICES

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

_X86_64 = 1
_NATIVE_MODE, _COMPAT_MODE = 1, 2
_ALIVE, _STOPPED = 1, 3


def unsupported(checkpoint: Path | CheckpointImages) -> list[str]:
    """Everything in a checkpoint that a probe cannot hold, in plain words; ProbeFileDamaged if it is garbled."""
    images = read_checkpoint(checkpoint) if isinstance(checkpoint, Path) else checkpoint
    try:
        found = [*_tasks(images), *_processor(images), *_signals(images), *_files(images)]
    except ProtobufError as error:
        raise damaged(images.folder / f"core-{images.pid}.img", str(error)) from error
    for vma in images.vmas:
        found.extend(_memory(images, vma))
    return list(dict.fromkeys(found))


def _tasks(images: CheckpointImages) -> Iterator[str]:
    if len(images.tasks) > 1:
        children = ", ".join(str(task.pid) for task in images.tasks[1:])
        yield f"{len(images.tasks)} processes (child {children})"
    for task in images.tasks:
        if len(task.threads) > 1:
            yield f"{len(task.threads)} threads in process {task.pid}"
    if images.state not in (_ALIVE, _STOPPED):
        yield "a process that has already ended"


def _processor(images: CheckpointImages) -> Iterator[str]:
    info = images.core.message(CoreEntry.thread_info)
    general = info.message(ThreadInfoX86.gpregs) if info is not None else None
    machine, mode = images.core.integer(CoreEntry.mtype), UserX86RegsEntry.mode
    if machine != _X86_64 or general is None or general.integer(mode, _NATIVE_MODE) == _COMPAT_MODE:
        yield "a process that is not x86-64"
        return
    pointer = images.registers["ip"]
    for vma in images.vmas:
        if vma.status & VmaStatus.VDSO and vma.start <= pointer < vma.end:
            # The code there is the kernel's own and differs on the candidate node.
            yield f"an instruction pointer inside the vDSO ({pointer:#x})"


def _signals(images: CheckpointImages) -> Iterator[str]:
    task = images.core.message(CoreEntry.tc) or Message()
    thread = images.core.message(CoreEntry.thread_core) or Message()
    for queue in (task.message(TaskCoreEntry.signals_s), thread.message(ThreadCoreEntry.signals_p)):
        for item in queue.messages(SignalQueueEntry.signals) if queue is not None else []:
            number = int.from_bytes(b"".join(item.raw_values(SiginfoEntry.siginfo))[:4], "little")
            yield f"pending signal {number} ({_signal_name(number)})"
    if thread.integer(ThreadCoreEntry.seccomp_mode, 0) or task.integer(TaskCoreEntry.old_seccomp_mode, 0):
        yield "a seccomp filter"
    if images.mm.messages(MmEntry.aios):
        yield "asynchronous I/O in flight"


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return "real-time" if number >= 32 else "unknown"


def _files(images: CheckpointImages) -> Iterator[str]:
    for item in images.descriptors:
        file = images.files[item.file_id]
        if file.kind in KINDS:
            continue
        if file.kind != FileKind.REGULAR:
            yield f"descriptor {item.fd} is {_OUTSIDE.get(file.kind, f'of unknown kind {file.kind}')}"
        elif stat.S_ISBLK(file.mode) or (stat.S_ISCHR(file.mode) and file.path not in PLAIN_DEVICES):
            yield f"descriptor {item.fd} is the device {file.path}"
    yield from leads_outside(images)
    for identifier, copy in sorted(images.removed_files.items()):
        if identifier in images.files and (copy is None or not stat.S_ISREG(images.files[identifier].mode)):
            yield f"the deleted file {images.files[identifier].path} is still in use"


def _memory(images: CheckpointImages, vma: Vma) -> Iterator[str]:
    where = f"{vma.start:#x}-{vma.end:#x}"
    special = next((name for bit, name in _MEMORY if vma.status & bit), None)
    if special is not None:
        yield f"{special} at {where}"
    elif vma.status & VmaStatus.FILE_SHARED and vma.prot & mmap.PROT_WRITE:
        yield f"{images.files[vma.file_id].path} mapped shared and writable at {where}"
    if vma.is_file and stat.S_ISCHR(images.files[vma.file_id].mode):
        yield f"memory of the device {images.files[vma.file_id].path} at {where}"
    if vma.flags & MAP_HUGETLB:
        yield f"huge pages (hugetlb) at {where}"
