# SPDX-License-Identifier: Apache-2.0
"""Read the process that CRIU's images describe: mappings, page runs, registers, descriptors, files, signals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checkpoint.criu import kernel_state
from checkpoint.criu.entries import damaged, read_entries
from checkpoint.criu.fields import (
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
    VmaEntry,
)
from checkpoint.criu.pagemap import read_pagemap
from checkpoint.criu.protobuf import Message, ProtobufError, signed
from checkpoint.linux import PAGE_SIZE
from checkpoint.state.process_state import (
    Descriptor,
    File,
    FileKind,
    ProcessState,
    Task,
    Vma,
    VmaStatus,
    uncovered_page,
)

IMAGE_VERSIONS = (2,)
"""Inventory versions taken: 2 is images of version 1.1, written since CRIU 1.5."""

_DESCRIPTOR = (FdinfoEntry.fd, FdinfoEntry.id, FdinfoEntry.flags, FdinfoEntry.type)
_VMA = (
    VmaEntry.start, VmaEntry.end, VmaEntry.pgoff, VmaEntry.shmid, VmaEntry.prot, VmaEntry.flags, VmaEntry.status,
)  # fmt: skip
_U32_MAX = (1 << 32) - 1
_DEAD = 2
"""State of a process that has ended and was not waited for (TASK_DEAD in CRIU's images)."""
_ADDRESS_END = 1 << 64


_OWN_MESSAGES = {
    FileKind.PIPE: FileEntry.pipe, FileKind.UNIX_SOCKET: FileEntry.usk, FileKind.EVENTFD: FileEntry.efd,
    FileKind.EPOLL: FileEntry.epfd, FileKind.SIGNALFD: FileEntry.sgfd, FileKind.TIMERFD: FileEntry.tfd,
}  # fmt: skip
_GHOST = 1
"""remap_type of a file that CRIU copied because no path leads to it."""


def read_checkpoint(folder: Path) -> ProcessState:
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
        # Of a child that has ended nothing is left but what its parent is told when it waits for it.
        tasks = (tasks[0], *(task for task in tasks[1:] if _core_of(folder, task.pid)[1] != _DEAD))
        core, state = _core_of(folder, pid)
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
        comm = (core.message(CoreEntry.tc) or Message()).text(TaskCoreEntry.comm, "")
        kernel = _kernel_state(core)
        image = folder / f"mm-{pid}.img"
        layout, no_huge_pages = kernel_state.layout_of(mm), mm.integer(MmEntry.thp_disabled, 0)
        asynchronous_io = bool(mm.messages(MmEntry.aios))
    except ProtobufError as error:
        raise damaged(image, str(error)) from error
    wanted = {item.file_id for item in descriptors} | {vma.file_id for vma in vmas if vma.is_file} | {exe, cwd}
    if not wanted <= files.keys():
        raise damaged(folder / "files.img", f"file {min(wanted - files.keys())} is used but not described")
    pages_id, runs = read_pagemap(folder / f"pagemap-{pid}.img")
    if (address := uncovered_page(runs, vmas)) is not None:
        raise damaged(folder / f"pagemap-{pid}.img", f"the page at {address:#x} belongs to no mapping")
    images = ProcessState(
        folder=folder,
        tasks=tasks,
        pid=pid,
        comm=comm,
        state=state,
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
        layout=layout,
        no_huge_pages=no_huge_pages,
        asynchronous_io=asynchronous_io,
        **kernel,
    )
    expected = images.pages * PAGE_SIZE
    present = images.pages_image.stat().st_size if images.pages_image.is_file() else 0
    if present != expected:
        raise damaged(images.pages_image, f"it holds {present} bytes, its page map asks for {expected}")
    return images


def _only(path: Path, entries: Sequence[Message]) -> Message:
    if len(entries) != 1:
        raise damaged(path, f"it has {len(entries)} entries instead of one")
    return entries[0]


def _core_of(folder: Path, pid: int) -> tuple[Message, int]:
    """The core image of process `pid`, and the state that the process was in."""
    image = folder / f"core-{pid}.img"
    try:
        core = _only(image, read_entries(image, "core"))
        return core, (core.message(CoreEntry.tc) or Message()).integer(TaskCoreEntry.task_state)
    except ProtobufError as error:
        raise damaged(image, str(error)) from error


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


def _kernel_state(core: Message) -> dict[str, Any]:
    """The fields of a process's state that its core image alone tells."""
    return {
        "registers": kernel_state.registers_of(core),
        "x86_64": kernel_state.runs_x86_64(core),
        "signals": kernel_state.signals_of(core),
        "thread": kernel_state.thread_of(core),
        "extended": kernel_state.extended_of(core),
        "timers": kernel_state.timers_of(core),
        "posix_timers": kernel_state.has_posix_timers(core),
        "limits": kernel_state.limits_of(core),
        "filtered": kernel_state.is_filtered(core),
        "segments": kernel_state.uses_segments(core),
    }
