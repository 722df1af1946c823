# SPDX-License-Identifier: Apache-2.0
"""Copy pages of another process into a file."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from checkpoint.errors import StorageError
from checkpoint.linux import PAGE_SIZE
from checkpoint.private_file import create_private

_BUFFER_BYTES = 16 << 20
_VECTORS = 512

_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t
_libc.process_vm_readv.argtypes = [
    ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong,
]  # fmt: skip


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def copy_pages(pid: int, memory: int, stretches: Iterable[tuple[int, int]], target: Path) -> None:
    """Write the pages of the stretches (address, pages) to `target` (new), one after the other.

    `memory`: descriptor of /proc/PID/mem, for pages that the process itself may not read. Raises StorageError.
    """
    buffer = mmap.mmap(-1, _BUFFER_BYTES)
    try:
        with create_private(target, buffering=0) as out:
            for batch in _batches(stretches):
                size = _read(pid, memory, batch, buffer)
                view = memoryview(buffer)
                try:
                    _write(out.fileno(), view[:size])
                finally:
                    view.release()
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror}; give --work on a larger disk") from error
    finally:
        buffer.close()


def require_room(folder: Path, pages: int, what: str) -> None:
    """Raise StorageError where the disk of `folder` has no room for so many pages of `what`."""
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if pages * PAGE_SIZE > free:
        raise StorageError(
            f"{what}: no room for a copy of the process ({pages * PAGE_SIZE / 1e6:.1f} MB needed, {free / 1e6:.1f} MB "
            f"free in {folder}): give --work on a larger disk"
        )


def _batches(stretches: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """The stretches as (address, bytes), cut into what one call reads."""
    batch: list[tuple[int, int]] = []
    room = _BUFFER_BYTES
    for address, pages in stretches:
        left = pages * PAGE_SIZE
        while left:
            size = min(left, room)
            batch.append((address, size))
            address, left, room = address + size, left - size, room - size
            if not room or len(batch) == _VECTORS:
                yield batch
                batch, room = [], _BUFFER_BYTES
    if batch:
        yield batch


def _read(pid: int, memory: int, batch: list[tuple[int, int]], buffer: mmap.mmap) -> int:
    """Fill `buffer` from its start; the bytes read."""
    total = sum(size for _, size in batch)
    holder = ctypes.c_char.from_buffer(buffer)
    try:
        here = _Vector(ctypes.addressof(holder), total)
        there = (_Vector * len(batch))(*(_Vector(address, size) for address, size in batch))
        if _libc.process_vm_readv(pid, ctypes.byref(here), 1, there, len(batch), 0) == total:
            return total
    finally:
        del holder
    # Pages that the process itself may not read, or a filter that refuses the call.
    view, at = memoryview(buffer), 0
    try:
        for address, size in batch:
            _read_forced(memory, view[at : at + size], address)
            at += size
    finally:
        view.release()
    return total


def _read_forced(memory: int, into: memoryview, address: int) -> None:
    done = 0
    while done < len(into):
        got = os.preadv(memory, [into[done:]], address + done)
        if not got:
            raise OSError(errno.EIO, f"the page at {address + done:#x} cannot be read")
        done += got


def _write(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]
