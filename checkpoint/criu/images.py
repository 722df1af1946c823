# SPDX-License-Identifier: Apache-2.0
"""Contents of a CRIU checkpoint of one process: mappings, page runs, registers, descriptors, files.

`CheckpointImages.core` and `.mm` keep the whole messages for readers that need more than the typed fields.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from checkpoint.criu.entries import damaged, read_entries
from checkpoint.criu.fields import (
    REGISTERS,
    CoreEntry,
    FdinfoEntry,
    FileEntry,
    FsEntry,
    InventoryEntry,
    MmEntry,
    PstreeEntry,
    RegFileEntry,
    RemapFilePathEntry,
    TaskCoreEntry,
    TaskKobjIdsEntry,
    ThreadInfoX86,
    VmaEntry,
)
from checkpoint.criu.pagemap import PageRun, read_pagemap
from checkpoint.criu.protobuf import Message, ProtobufError, signed
from checkpoint.linux import PAGE_SIZE

IMAGE_VERSIONS = (2,)
"""Inventory versions taken: 2 is images of version 1.1, written since CRIU 1.5."""

_DESCRIPTOR = (FdinfoEntry.fd, FdinfoEntry.id, FdinfoEntry.flags, FdinfoEntry.type)
_VMA = (
    VmaEntry.start, VmaEntry.end, VmaEntry.pgoff, VmaEntry.shmid, VmaEntry.prot, VmaEntry.flags, VmaEntry.status,
)  # fmt: skip
_U32_MAX = (1 << 32) - 1
_ADDRESS_END = 1 << 64


class VmaStatus:
    """Bits of `Vma.status`: what CRIU took a mapping for."""

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

    REGULAR, PIPE, UNIX_SOCKET, EVENTFD, EPOLL, SIGNALFD, TIMERFD = 1, 2, 5, 6, 7, 9, 17


_OWN_MESSAGES = {
    FileKind.PIPE: FileEntry.pipe, FileKind.UNIX_SOCKET: FileEntry.usk, FileKind.EVENTFD: FileEntry.efd,
    FileKind.EPOLL: FileEntry.epfd, FileKind.SIGNALFD: FileEntry.sgfd, FileKind.TIMERFD: FileEntry.tfd,
}  # fmt: skip
_GHOST = 1
"""remap_type of a file that CRIU copied because no path leads to it."""


@dataclass(frozen=True)
class Vma:
    """One mapping [start, end). `prot` and `flags` as for mmap(2), `status` of VmaStatus.

    `file_id` is an id in `CheckpointImages.files` for file mappings and a shared-memory id for shared ones;
    `file_offset` is in bytes; `advice` is CRIU's bitmap of madvise values.
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
    def is_file(self) -> bool:
        """Backed by a file that must exist at restore."""
        return bool(self.status & (VmaStatus.FILE_PRIVATE | VmaStatus.FILE_SHARED))


@dataclass(frozen=True)
class File:
    """One open file description, or a file that is mapped, executed or a working folder.

    `flags` as for open(2), `position` and `size` in bytes (`size` None where CRIU recorded none: devices, and
    files opened O_APPEND), `mode` as st_mode. Unless `kind` is REGULAR only `id`, `kind` and `own` mean something.
    `own`: what CRIU says of a descriptor without a path (checkpoint/criu/own_descriptors.py reads it).
    """

    id: int
    kind: int
    path: str
    flags: int
    position: int
    size: int | None
    mode: int
    own: Message = field(default_factory=Message)

    @property
    def writable(self) -> bool:
        """Open for writing."""
        return self.flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)


@dataclass(frozen=True)
class Descriptor:
    """Descriptor number `fd` of `CheckpointImages.files[file_id]`. `flags`: FD_CLOEXEC."""

    fd: int
    file_id: int
    flags: int
    kind: int


@dataclass(frozen=True)
class Task:
    """One process of the checkpoint and the ids of all its threads."""

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
class CheckpointImages:
    """A checkpoint as read by `read_checkpoint`; of several tasks, everything but `tasks` is the first's.

    `state` is CRIU's task state (1 alive, 3 stopped); `registers` go by CRIU's names (`ip`, `sp`, `ax`,
    `fs_base` ...), none unless the task is x86-64; `removed_files`: deleted files by id, with the number of the image
    that holds a copy, None where CRIU made none.
    """

    folder: Path
    version: int
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
    removed_files: dict[int, int | None]
    core: Message
    mm: Message

    @property
    def pages_image(self) -> Path:
        """The raw pages, in the order of `page_runs`."""
        return self.folder / f"pages-{self.pages_id}.img"

    @property
    def pages(self) -> int:
        """Pages held, each of PAGE_SIZE bytes."""
        return sum(run.pages for run in self.page_runs)


def read_checkpoint(folder: Path) -> CheckpointImages:
    """Read the CRIU images in `folder` and check that they fit together.

    Raises ProbeFileDamaged if an image is missing, damaged, of an unknown version, or if the pages image has
    not exactly the size its page map demands (a restore from it would never end); StorageError if a file
    cannot be read. What a probe cannot hold is no error here: see `checkpoint.criu.unsupported`.
    """
    image = folder / "inventory.img"
    try:
        inventory = _only(image, read_entries(image, "inventory"))
        version = inventory.integer(InventoryEntry.img_version)
        if version not in IMAGE_VERSIONS:
            raise damaged(image, f"image version {version} is unknown")
        image = folder / "pstree.img"
        tasks = tuple(
            Task(
                item.integer(PstreeEntry.pid),
                signed(item.integer(PstreeEntry.ppid), 32),
                tuple(item.integers(PstreeEntry.threads)),
            )
            for item in read_entries(image, "pstree")
        )
        if not tasks:
            raise damaged(image, "it names no process")
        pid = tasks[0].pid
        image = folder / f"core-{pid}.img"
        core = _only(image, read_entries(image, "core"))
        task_core = core.message(CoreEntry.tc) or Message()
        image = folder / f"ids-{pid}.img"
        descriptor_table = _only(image, read_entries(image, "ids")).integer(TaskKobjIdsEntry.files_id)
        image = folder / f"fs-{pid}.img"
        fs = _only(image, read_entries(image, "fs"))
        cwd, root, umask = fs.integer(FsEntry.cwd_id), fs.integer(FsEntry.root_id), fs.integer(FsEntry.umask, 0)
        image = folder / f"mm-{pid}.img"
        mm = _only(image, read_entries(image, "mm"))
        exe, vmas = mm.integer(MmEntry.exe_file_id), _vmas(image, mm)
        image = folder / "files.img"
        files = {file.id: file for file in map(_file, read_entries(image, "files"))}
        image = folder / f"fdinfo-{descriptor_table}.img"
        descriptors = tuple(
            Descriptor(*(item.integer(number) for number in _DESCRIPTOR)) for item in read_entries(image, "fdinfo")
        )
        image = folder / "remap-fpath.img"
        removed = dict(map(_removed, read_entries(image, "remap-fpath") if image.exists() else []))
        image = folder / f"core-{pid}.img"
        state, comm = task_core.integer(TaskCoreEntry.task_state), task_core.text(TaskCoreEntry.comm, "")
        registers = _registers(core)
    except ProtobufError as error:
        raise damaged(image, str(error)) from error
    wanted = {item.file_id for item in descriptors} | {vma.file_id for vma in vmas if vma.is_file} | {exe, cwd}
    if not wanted <= files.keys():
        raise damaged(folder / "files.img", f"file {min(wanted - files.keys())} is used but not described")
    pages_id, runs = read_pagemap(folder / f"pagemap-{pid}.img")
    _check_covered(folder / f"pagemap-{pid}.img", runs, vmas)
    images = CheckpointImages(
        folder=folder,
        version=version,
        tasks=tasks,
        pid=pid,
        comm=comm,
        state=state,
        registers=registers,
        exe_file_id=exe,
        cwd_file_id=cwd,
        root_file_id=root,
        umask=umask,
        vmas=vmas,
        page_runs=runs,
        pages_id=pages_id,
        files=files,
        descriptors=descriptors,
        removed_files=removed,
        core=core,
        mm=mm,
    )
    expected = images.pages * PAGE_SIZE
    present = images.pages_image.stat().st_size if images.pages_image.is_file() else 0
    if present != expected:
        raise damaged(images.pages_image, f"it holds {present} bytes, its page map asks for {expected}")
    return images


def file_mappings(images: CheckpointImages) -> list[FileMapping]:
    """Every mapping of a file that has a path, in address order: the program, its libraries, and data it mapped."""
    return [
        FileMapping(
            images.files[vma.file_id].path,
            vma.start,
            vma.end,
            vma.file_offset,
            vma.prot,
            bool(vma.status & VmaStatus.FILE_SHARED),
        )
        for vma in images.vmas
        if vma.is_file and vma.file_id not in images.removed_files
    ]


def open_files(images: CheckpointImages) -> list[OpenFile]:
    """Every descriptor that has a path (files, folders, devices), in CRIU's order."""
    found: list[OpenFile] = []
    for item in images.descriptors:
        file = images.files[item.file_id]
        if file.kind == FileKind.REGULAR and file.id not in images.removed_files:
            found.append(OpenFile(item.fd, file.path, file.flags, file.position, file.mode, file.writable))
    return found


def _only(path: Path, entries: Sequence[Message]) -> Message:
    if len(entries) != 1:
        raise damaged(path, f"it has {len(entries)} entries instead of one")
    return entries[0]


def _vmas(path: Path, mm: Message) -> tuple[Vma, ...]:
    vmas: list[Vma] = []
    end = 0
    for item in mm.messages(MmEntry.vmas):
        start, stop, offset, file_id, prot, flags, status = (item.integer(number) for number in _VMA)
        vma = Vma(start, stop, prot, flags, status, file_id, offset, item.integer(VmaEntry.madv, 0))
        if start % PAGE_SIZE or stop % PAGE_SIZE or start >= stop or stop > _ADDRESS_END:
            raise damaged(path, f"mapping {start:#x}-{stop:#x} is empty or not aligned")
        # Guard entries describe pages inside other mappings and come after them.
        if not status & VmaStatus.GUARD:
            if start < end:
                raise damaged(path, f"mapping {start:#x}-{stop:#x} overlaps the one before")
            end = stop
        vmas.append(vma)
    return tuple(vmas)


def _file(entry: Message) -> File:
    kind, identifier = entry.integer(FileEntry.type), entry.integer(FileEntry.id)
    regular = entry.message(FileEntry.reg)
    if kind != FileKind.REGULAR or regular is None:
        own = entry.message(_OWN_MESSAGES[kind]) if kind in _OWN_MESSAGES else None
        return File(identifier, kind, "", 0, 0, None, 0, own or Message())
    size = regular.integer(RegFileEntry.size) if RegFileEntry.size in regular.numbers() else None
    path = "/" + regular.text(RegFileEntry.name).lstrip("/")
    return File(
        identifier,
        kind,
        path,
        regular.integer(RegFileEntry.flags),
        regular.integer(RegFileEntry.pos),
        size,
        regular.integer(RegFileEntry.mode, 0) & _U32_MAX,
    )


def _removed(entry: Message) -> tuple[int, int | None]:
    copied = entry.integer(RemapFilePathEntry.remap_type, 0) == _GHOST
    number = entry.integer(RemapFilePathEntry.remap_id, 0)
    return entry.integer(RemapFilePathEntry.orig_id), number if copied else None


def _registers(core: Message) -> dict[str, int]:
    info = core.message(CoreEntry.thread_info)
    general = info.message(ThreadInfoX86.gpregs) if info is not None else None
    if general is None:
        return {}
    return {name: general.integer(number) for number, name in enumerate(REGISTERS, start=1)}


def _check_covered(path: Path, runs: Sequence[PageRun], vmas: Sequence[Vma]) -> None:
    """Every page must belong to a mapping; a run may span mappings that touch."""
    mapped = iter([vma for vma in vmas if not vma.status & VmaStatus.GUARD])
    vma = next(mapped, None)
    for run in runs:
        address = run.vaddr
        while address < run.end:
            while vma is not None and vma.end <= address:
                vma = next(mapped, None)
            if vma is None or vma.start > address:
                raise damaged(path, f"the page at {address:#x} belongs to no mapping")
            address = vma.end
