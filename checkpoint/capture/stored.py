# SPDX-License-Identifier: Apache-2.0
"""Keep the state of a directly captured process in a file beside its pages, and read any checkpoint's state.

The file stays in the work folder of a build. A probe carries the flat image made from it instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path
from typing import Any

from checkpoint import strict_json
from checkpoint.capture.stored_own import (
    decoded_own,
    decoded_shared,
    decoded_signals,
    encoded_own,
    encoded_shared,
    encoded_signals,
)
from checkpoint.capture.stored_values import (
    checked_flag,
    checked_four,
    checked_number,
    checked_numbers,
    checked_optional,
    checked_pair,
    checked_text,
)
from checkpoint.criu.fields import REGISTERS
from checkpoint.criu.images import read_checkpoint
from checkpoint.errors import ProbeFileDamaged, StorageError
from checkpoint.flat.file_names import PACKED, SHARED_PAGES
from checkpoint.flat.image import TIMERS
from checkpoint.flat.vdso import CLOCKS
from checkpoint.linux import PAGE_SIZE
from checkpoint.private_file import write_private
from checkpoint.state.own_descriptors import OwnDescriptors
from checkpoint.state.process_state import (
    Descriptor,
    ExtendedState,
    File,
    FileKind,
    Layout,
    OtherThread,
    PageRun,
    ProcessState,
    SignalState,
    Task,
    ThreadState,
    Vma,
    VmaStatus,
    uncovered_page,
)

NAME = "state.json"
"""Name of the file in a checkpoint's folder."""

VERSION = 2
_MOST_BYTES = 1 << 28
_FILE_FIELDS = 7
_NUMBERS = (
    "pid", "state", "exe_file_id", "cwd_file_id", "root_file_id", "umask", "pages_id", "no_huge_pages",
)  # fmt: skip
_FLAGS = ("x86_64", "posix_timers", "filtered", "asynchronous_io", "segments")
_PARTS = ("legacy", "ymm_high", "opmask", "zmm_high", "zmm_more")


def read_state(folder: Path) -> ProcessState:
    """The state of the process whose checkpoint is in `folder`, captured directly or by CRIU.

    Raises ProbeFileDamaged for files that are damaged or do not fit together, StorageError.
    """
    path = folder / NAME
    if not path.exists():
        return read_checkpoint(folder)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise damaged(path, "it is too large")
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    try:
        state = _decoded(strict_json.loads(data), folder)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise damaged(path, repr(error)) from error
    _check(path, state)
    return state


def write_state(state: ProcessState) -> None:
    """Put `state` beside its pages, whole or not at all. Raises StorageError."""
    path = state.folder / NAME
    part = path.with_name(f"{NAME}.part")
    try:
        write_private(part, strict_json.dumps(_encoded(state), separators=(",", ":")).encode("ascii"))
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def damaged(path: Path, problem: str) -> ProbeFileDamaged:
    """The error for a state that cannot be used."""
    return ProbeFileDamaged(f"captured state {path}: {problem}; build without --resume")


def _encoded(state: ProcessState) -> dict[str, Any]:
    return {
        "version": VERSION,
        **{name: getattr(state, name) for name in (*_NUMBERS, *_FLAGS)},
        "comm": state.comm,
        "tasks": [[task.pid, task.parent, list(task.threads)] for task in state.tasks],
        "registers": state.registers,
        "vmas": [list(astuple(vma)) for vma in state.vmas],
        "page_runs": [list(run) for run in state.page_runs],
        "files": [list(astuple(file))[:_FILE_FIELDS] for file in state.files.values()],
        "descriptors": [list(astuple(item)) for item in state.descriptors],
        "removed_files": [list(item) for item in sorted(state.removed_files.items())],
        "own": encoded_own(state.own or OwnDescriptors()),
        "signals": list(astuple(state.signals)),
        "thread": list(astuple(state.thread)),
        "extended": _encoded_extended(state.extended),
        "layout": list(astuple(state.layout)),
        "timers": [list(timer) for timer in state.timers],
        "limits": [list(limit) for limit in state.limits],
        # No key where there are none: other versions read these files, too.
        **({"others": [_encoded_thread(one) for one in state.others]} if state.others else {}),
        **({"shared": encoded_shared(state.shared), "present": list(map(list, state.present))} if state.shared else {}),
        **({"queued": encoded_signals(state.queued)} if state.queued else {}),
        **({"clocks": list(state.clocks)} if state.clocks else {}),
    }


def _encoded_extended(extended: ExtendedState) -> dict[str, Any]:
    return {
        **{name: getattr(extended, name).hex() for name in _PARTS},
        "in_use": extended.in_use,
        "protection_keys": extended.protection_keys,
        "shadow_stack": extended.shadow_stack,
    }


def _encoded_thread(one: OtherThread) -> dict[str, Any]:
    return {
        "slot": one.slot,
        "comm": one.comm,
        "registers": one.registers,
        "signals": list(astuple(one.signals)),
        "thread": list(astuple(one.thread)),
        "extended": _encoded_extended(one.extended),
    }


def _decoded_thread(value: Any) -> OtherThread:
    return OtherThread(
        slot=checked_number(value["slot"]),
        comm=checked_text(value["comm"]),
        registers={checked_text(name): checked_number(number) for name, number in value["registers"].items()},
        signals=_signals(*value["signals"]),
        thread=ThreadState(*checked_numbers(value["thread"], 6)),
        extended=_extended(value["extended"]),
    )


def _decoded(value: Any, folder: Path) -> ProcessState:
    if value["version"] != VERSION:
        raise ValueError(f"version {value['version']!r} is unknown")
    numbers: dict[str, Any] = {name: checked_number(value[name]) for name in _NUMBERS}
    flags: dict[str, Any] = {name: checked_flag(value[name]) for name in _FLAGS}
    files = [_file(*file) for file in value["files"]]
    return ProcessState(
        folder=folder,
        comm=checked_text(value["comm"]),
        tasks=tuple(
            Task(checked_number(pid), checked_number(parent), checked_numbers(ids))
            for pid, parent, ids in value["tasks"]
        ),
        registers={checked_text(name): checked_number(number) for name, number in value["registers"].items()},
        vmas=tuple(Vma(*checked_numbers(vma, 8)) for vma in value["vmas"]),
        page_runs=tuple(PageRun(*checked_numbers(run, 3)) for run in value["page_runs"]),
        files={file.id: file for file in files},
        descriptors=tuple(Descriptor(*checked_numbers(item, 4)) for item in value["descriptors"]),
        removed_files={checked_number(file): checked_optional(copy) for file, copy in value["removed_files"]},
        own=decoded_own(value["own"]),
        signals=_signals(*value["signals"]),
        thread=ThreadState(*checked_numbers(value["thread"], 6)),
        extended=_extended(value["extended"]),
        layout=Layout(*checked_numbers(value["layout"], 11)),
        timers=tuple(checked_four(timer) for timer in value["timers"]),
        limits=tuple(checked_pair(limit) for limit in value["limits"]),
        others=tuple(_decoded_thread(one) for one in value.get("others", ())),
        shared=decoded_shared(value.get("shared", ())),
        present=tuple(checked_pair(run) for run in value.get("present", ())),
        queued=decoded_signals(value.get("queued", ())),
        clocks=checked_numbers(value["clocks"], CLOCKS) if "clocks" in value else (),
        **numbers,
        **flags,
    )


def _file(number: Any, kind: Any, path: Any, flags: Any, position: Any, size: Any, mode: Any) -> File:
    return File(
        checked_number(number),
        checked_number(kind),
        checked_text(path),
        checked_number(flags),
        checked_number(position),
        checked_optional(size),
        checked_number(mode),
    )


def _signals(blocked: Any, actions: Any, address: Any, size: Any, flags: Any, pending: Any) -> SignalState:
    return SignalState(
        checked_number(blocked),
        tuple(checked_four(action) for action in actions),
        checked_number(address),
        checked_number(size),
        checked_number(flags),
        checked_numbers(pending),
    )


def _extended(value: Any) -> ExtendedState:
    parts: dict[str, Any] = {name: bytes.fromhex(value[name]) for name in _PARTS}
    return ExtendedState(
        in_use=checked_number(value["in_use"]),
        protection_keys=checked_optional(value["protection_keys"]),
        shadow_stack=checked_flag(value["shadow_stack"]),
        **parts,
    )


def _kinds(own: OwnDescriptors) -> list[tuple[int, Iterable[int]]]:
    return [
        (FileKind.PIPE, own.pipes), (FileKind.UNIX_SOCKET, own.sockets), (FileKind.UNIX_SOCKET, own.unconnected),
        (FileKind.EVENTFD, own.events), (FileKind.SIGNALFD, own.masks), (FileKind.TIMERFD, own.timers),
        (FileKind.EPOLL, own.sets),
    ]  # fmt: skip


def _check(path: Path, state: ProcessState) -> None:
    """As for CRIU's images: all that is used is described, and the pages image has the right size."""
    wanted = {item.file_id for item in state.descriptors} | {vma.file_id for vma in state.vmas if vma.is_file}
    if not wanted | {state.exe_file_id, state.cwd_file_id} <= state.files.keys():
        raise damaged(path, "a file is used but not described")
    if not state.tasks:
        raise damaged(path, "it names no process")
    for kind, described in _kinds(state.own or OwnDescriptors()):
        if any(number not in state.files or state.files[number].kind != kind for number in described):
            raise damaged(path, "a descriptor is described as what it is not")
    registers = [state.registers, *(one.registers for one in state.others)]
    if any(set(one) != set(REGISTERS) for one in registers) or len(state.timers) > TIMERS:
        raise damaged(path, "its registers or timers are not those of a process")
    ordered = [vma for vma in state.vmas if not vma.status & VmaStatus.GUARD]
    if any(v.start % PAGE_SIZE or v.end % PAGE_SIZE or v.start >= v.end for v in state.vmas) or any(
        one.end > other.start for one, other in pairwise(ordered)
    ):
        raise damaged(path, "a mapping is empty, not aligned, or overlaps the one before")
    if any(r.vaddr % PAGE_SIZE or not r.pages for r in state.page_runs) or any(
        one.end > other.vaddr for one, other in pairwise(state.page_runs)
    ):
        raise damaged(path, "a page run is empty or out of place")
    if (address := uncovered_page(state.page_runs, state.vmas)) is not None:
        raise damaged(path, f"the page at {address:#x} belongs to no mapping")
    _check_shared(path, state)
    if (state.folder / PACKED).exists():
        # It is checked once it is there.
        return
    expected = state.pages * PAGE_SIZE
    present = state.pages_image.stat().st_size if state.pages_image.is_file() else 0
    if present != expected:
        raise damaged(state.pages_image, f"it holds {present} bytes where {expected} are described")


def _check_shared(path: Path, state: ProcessState) -> None:
    numbers = [one.number for one in state.shared]
    files = [file for one in state.shared for file in one.files]
    if len(set(numbers)) < len(numbers) or len(set(files)) < len(files) or not set(files) <= state.files.keys():
        raise damaged(path, "shared memory is not described once")
    for one in state.shared:
        whole = -(-one.size // PAGE_SIZE)
        if any(at % PAGE_SIZE or not pages or at // PAGE_SIZE + pages > whole for at, pages in one.pieces):
            raise damaged(path, "a piece leaves its shared memory")
    spans = {vma.start: vma.end for vma in state.vmas if vma.is_memory}
    starts = sorted(spans)
    for address, pages in state.present:
        at = bisect_right(starts, address) - 1
        if address % PAGE_SIZE or not pages or at < 0 or address + pages * PAGE_SIZE > spans[starts[at]]:
            raise damaged(path, "a page of shared memory belongs to no mapping")
    image = state.folder / SHARED_PAGES
    held = image.stat().st_size if image.is_file() else 0
    if held != state.shared_pages * PAGE_SIZE:
        raise damaged(image, f"it holds {held} bytes where {state.shared_pages * PAGE_SIZE} are described")
