# SPDX-License-Identifier: Apache-2.0
"""The state of one captured process: what CRIU's images or direct capture say of it, and who reads need not care which.

Filled by checkpoint/criu/images.py and by checkpoint/capture/. Python 3.8, standard library.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from checkpoint.linux import PAGE_SIZE
from checkpoint.state.own_descriptors import OwnDescriptors
from checkpoint.state.shared_memory import QueuedSignal, SharedMemory

PAGE_PARENT, PAGE_LAZY, PAGE_PRESENT = 1, 2, 4
"""Flags of a page run, those of CRIU's page map: pages are in a parent image, belong to private anonymous memory (and
may be left out where nobody touches them), are in the pages image."""

STOPPED = 3
"""`ProcessState.state` of a process that was stopped when it was captured."""


class VmaStatus:
    """Bits of `Vma.status`: what a mapping is. The numbers are CRIU's."""

    REGULAR = 1 << 0
    STACK = 1 << 1
    VSYSCALL = 1 << 2
    VDSO = 1 << 3
    HEAP = 1 << 5
    FILE_PRIVATE = 1 << 6
    FILE_SHARED = 1 << 7
    ANON_SHARED = 1 << 8
    ANON_PRIVATE = 1 << 9
    SYSV_IPC = 1 << 10
    SOCKET = 1 << 11
    VVAR = 1 << 12
    AIO_RING = 1 << 13
    MEMFD = 1 << 14
    SHADOW_STACK = 1 << 15
    GUARD = 1 << 16
    UPROBES = 1 << 17


class FileKind:
    """Kinds of open files that matter here; `checkpoint.criu.unsupported` names all of them."""

    REGULAR, PIPE, UNIX_SOCKET, EVENTFD, EPOLL, SIGNALFD, TIMERFD, MEMFD = 1, 2, 5, 6, 7, 9, 17, 18


OWN_KINDS = (
    FileKind.PIPE, FileKind.UNIX_SOCKET, FileKind.EVENTFD, FileKind.EPOLL, FileKind.SIGNALFD, FileKind.TIMERFD,
)  # fmt: skip
"""Kinds of files that may lead to the process itself alone."""


class PageRun(NamedTuple):
    """`pages` pages from address `vaddr` on, which follow those of the run before in the pages image."""

    vaddr: int
    pages: int
    flags: int

    @property
    def end(self) -> int:
        """First address behind the run."""
        return self.vaddr + self.pages * PAGE_SIZE


@dataclass(frozen=True)
class Vma:
    """One mapping [start, end). `prot` and `flags` as for mmap(2), `status` of VmaStatus.

    `file_id` is an id in `ProcessState.files` for file mappings and a shared-memory id for shared ones;
    `file_offset` is in bytes; `advice` is a bitmap of madvise values.
    """

    start: int
    end: int
    prot: int
    flags: int
    status: int
    file_id: int
    file_offset: int
    advice: int

    @property
    def is_memory(self) -> bool:
        """Of memory that other mappings and descriptors may lead to, too (ProcessState.shared)."""
        return bool(self.status & (VmaStatus.MEMFD | VmaStatus.ANON_SHARED))

    @property
    def is_file(self) -> bool:
        """Backed by a file that must exist at restore."""
        return bool(self.status & (VmaStatus.FILE_PRIVATE | VmaStatus.FILE_SHARED))


@dataclass(frozen=True)
class File:
    """One open file description, or a file that is mapped, executed or a working folder.

    `flags` as for open(2), `position` and `size` in bytes (`size` None where none was recorded: devices, and
    files opened O_APPEND), `mode` as st_mode. Unless `kind` is REGULAR only `id`, `kind` and `criu` mean something.
    `criu`: what CRIU says of a descriptor without a path (checkpoint/criu/own_descriptors.py reads it).
    """

    id: int
    kind: int
    path: str
    flags: int
    position: int
    size: int | None
    mode: int
    criu: Any = None

    @property
    def writable(self) -> bool:
        """Open for writing."""
        return self.flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)


@dataclass(frozen=True)
class Descriptor:
    """Descriptor number `fd` of `ProcessState.files[file_id]`. `flags`: FD_CLOEXEC."""

    fd: int
    file_id: int
    flags: int
    kind: int


@dataclass(frozen=True)
class Task:
    """One captured process and the ids of all its threads."""

    pid: int
    parent: int
    threads: tuple[int, ...]


@dataclass(frozen=True)
class FileMapping:
    """A mapping of part of a file: addresses [start, end), contents from `offset` bytes on."""

    path: str
    start: int
    end: int
    offset: int
    prot: int
    shared: bool


@dataclass(frozen=True)
class OpenFile:
    """A descriptor of a regular file, device or folder; fields as in File and Descriptor."""

    fd: int
    path: str
    flags: int
    offset: int
    mode: int
    writable: bool

    @property
    def is_regular(self) -> bool:
        """A file proper, whose contents a probe can carry."""
        return stat.S_ISREG(self.mode)


@dataclass(frozen=True)
class SignalState:
    """`blocked`: bit n - 1 is signal n. `actions`: (handler, flags, restorer, mask) of signals 1 to 64 without SIGKILL
    and SIGSTOP. The alternate stack: address, bytes, flags. `pending`: signals sent and not yet delivered."""

    blocked: int = 0
    actions: tuple[tuple[int, int, int, int], ...] = ()
    stack_address: int = 0
    stack_size: int = 0
    stack_flags: int = 0
    pending: tuple[int, ...] = ()


@dataclass(frozen=True)
class ThreadState:
    """Addresses and sizes that the kernel keeps of a thread: where it writes 0 at its end, its list of robust futexes,
    its area of restartable sequences."""

    clear_tid: int = 0
    robust_list: int = 0
    robust_size: int = 0
    rseq: int = 0
    rseq_size: int = 0
    rseq_signature: int = 0


@dataclass(frozen=True)
class ExtendedState:
    """x87, SSE and later registers. `in_use`: XSTATE_BV. `legacy`: up to 512 bytes as FXSAVE writes them. The others:
    the XSAVE components 2, 5, 6, 7; empty where there are none. `protection_keys`: PKRU, None where there is none."""

    in_use: int = 3
    legacy: bytes = b""
    ymm_high: bytes = b""
    opmask: bytes = b""
    zmm_high: bytes = b""
    zmm_more: bytes = b""
    protection_keys: int | None = None
    shadow_stack: bool = False


@dataclass(frozen=True)
class Layout:
    """Where the kernel thinks the parts of a program are (struct prctl_mm_map, in its order)."""

    start_code: int = 0
    end_code: int = 0
    start_data: int = 0
    end_data: int = 0
    start_brk: int = 0
    brk: int = 0
    start_stack: int = 0
    arg_start: int = 0
    arg_end: int = 0
    env_start: int = 0
    env_end: int = 0


@dataclass(frozen=True)
class OtherThread:
    """A captured thread beside the first. `slot`: which copy of the counters it has; the other fields as in
    ProcessState, `signals` without actions and pending ones, which are the process's."""

    slot: int
    comm: str
    registers: dict[str, int]
    signals: SignalState
    thread: ThreadState
    extended: ExtendedState


@dataclass(frozen=True)
class ProcessState:
    """A captured process; of several tasks, everything but `tasks` is the first's.

    `folder` holds `pages_image`. `x86_64`: it runs 64-bit code of this instruction set. `state` is CRIU's task state
    (1 alive, 3 stopped). `registers` go by CRIU's names (`ip`, `sp`, `ax`, `fs_base` ...); none unless `x86_64`.
    `removed_files`: deleted files by id, with the number of the image that holds a copy, None where there is none.
    `own`: what leads to a directly captured process itself; None: CRIU's images say (checkpoint.criu.own_descriptors).
    `timers`: (interval s, interval us, value s, value us) of the real, the virtual and the profiling timer. `limits`:
    (soft, hard) by their numbers. `filtered`: it has a seccomp filter. `asynchronous_io`: such input or output is in
    flight. `segments`: thread-local storage is in the global descriptor table. `others`: the threads of its first task
    beside the first, where they are captured too. `shared`: shared memory of a directly captured process, `present`:
    runs of pages of it that the page table had; `queued`: signals that are pending and can be held. `clocks`:
    nanoseconds of the clocks that checkpoint/flat/vdso.py names, where they are known.
    """

    folder: Path
    tasks: tuple[Task, ...]
    pid: int
    comm: str
    state: int
    registers: dict[str, int]
    exe_file_id: int
    cwd_file_id: int
    root_file_id: int
    umask: int
    vmas: tuple[Vma, ...]
    page_runs: tuple[PageRun, ...]
    pages_id: int
    files: dict[int, File]
    descriptors: tuple[Descriptor, ...]
    removed_files: dict[int, int | None] = field(default_factory=dict)
    x86_64: bool = True
    signals: SignalState = field(default_factory=SignalState)
    thread: ThreadState = field(default_factory=ThreadState)
    extended: ExtendedState = field(default_factory=ExtendedState)
    layout: Layout = field(default_factory=Layout)
    timers: tuple[tuple[int, int, int, int], ...] = ()
    posix_timers: bool = False
    limits: tuple[tuple[int, int], ...] = ()
    no_huge_pages: int = 0
    filtered: bool = False
    asynchronous_io: bool = False
    segments: bool = False
    others: tuple[OtherThread, ...] = ()
    own: OwnDescriptors | None = None
    shared: tuple[SharedMemory, ...] = ()
    present: tuple[tuple[int, int], ...] = ()
    queued: tuple[QueuedSignal, ...] = ()
    clocks: tuple[int, ...] = ()

    @property
    def pages_image(self) -> Path:
        """The raw pages, in the order of `page_runs`."""
        return self.folder / f"pages-{self.pages_id}.img"

    @property
    def pages(self) -> int:
        """Pages held, each of PAGE_SIZE bytes."""
        return sum(run.pages for run in self.page_runs)

    @property
    def shared_pages(self) -> int:
        """Pages held of shared memory, in a file of their own."""
        return sum(one.pages for one in self.shared)


def file_mappings(state: ProcessState) -> list[FileMapping]:
    """Every mapping of a file, in address order: the program, its libraries, and data it mapped."""
    return [
        FileMapping(
            state.files[vma.file_id].path,
            vma.start,
            vma.end,
            vma.file_offset,
            vma.prot,
            bool(vma.status & VmaStatus.FILE_SHARED),
        )
        for vma in state.vmas
        if vma.is_file and vma.file_id not in state.removed_files
    ]


def open_files(state: ProcessState) -> list[OpenFile]:
    """Every descriptor that has a path (files, folders, devices), in the order of capture."""
    found: list[OpenFile] = []
    for item in state.descriptors:
        file = state.files[item.file_id]
        if file.kind == FileKind.REGULAR and file.id not in state.removed_files:
            found.append(OpenFile(item.fd, file.path, file.flags, file.position, file.mode, file.writable))
    return found


def uncovered_page(runs: Sequence[PageRun], vmas: Sequence[Vma]) -> int | None:
    """The first page of `runs` that belongs to no mapping; a run may span mappings that touch."""
    mapped = iter([vma for vma in vmas if not vma.status & VmaStatus.GUARD])
    vma = next(mapped, None)
    for run in runs:
        address = run.vaddr
        while address < run.end:
            while vma is not None and vma.end <= address:
                vma = next(mapped, None)
            if vma is None or vma.start > address:
                return address
            address = vma.end
    return None
