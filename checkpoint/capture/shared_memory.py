# SPDX-License-Identifier: Apache-2.0
"""Capture memory that several mappings and descriptors of a process lead to: shared anonymous memory, memfds, deleted
files of a tmpfs, files that are written by a mapping.

Where a descriptor leads there, or we are root (/proc/PID/map_files), it is read as a file. Else the process itself maps
it once more, for as long as we look: mremap(2) of no bytes makes a second mapping of the same pages, and
remap_file_pages(2) moves that to the beginning.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from checkpoint.binary.syscall_names import call_number
from checkpoint.capture.memory_map import Area, read_areas
from checkpoint.capture.page_copy import require_room
from checkpoint.errors import StorageError
from checkpoint.flat.file_names import SHARED_PAGES
from checkpoint.linux import MAP_NONBLOCK, MREMAP_MAYMOVE, PAGE_SIZE
from checkpoint.page_table import PageTable, stretches
from checkpoint.private_file import create_private
from checkpoint.process.maps import held_by_others, named_process
from checkpoint.process.tracee import Tracee
from checkpoint.state.process_state import Descriptor, FileKind, VmaStatus
from checkpoint.state.shared_memory import SharedMemory

_CHUNK = 1 << 22
_ANSWER_BYTES = 1 << 20
"""Room in the process for what mincore(2) says of 4 GB at once."""
_READ_WRITE, _PRIVATE = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_SWAPPED = "which is swapped out in part"
_LOCKED = "which is locked in memory (mlock)"
_HUGE = "which has huge pages (hugetlb)"

Key = tuple[int, int]
"""Device and inode."""


@dataclass
class _Object:
    key: Key
    name: str
    areas: list[Area] = field(default_factory=list)
    descriptors: dict[int, int] = field(default_factory=dict)
    """Numbers by the ids of their files."""


class SharedParts:
    """What process `tracee` has of such memory, by its mappings and descriptors."""

    def __init__(self, tracee: Tracee, areas: Sequence[Area], descriptors: Sequence[Descriptor]) -> None:
        self._tracee = tracee
        self._objects: dict[Key, _Object] = {}
        for area in areas:
            if area.status & (VmaStatus.MEMFD | VmaStatus.ANON_SHARED) and area.inode:
                self._object((area.device, area.inode), area.path).areas.append(area)
        for item in descriptors:
            if item.kind == FileKind.MEMFD:
                path = f"/proc/{tracee.pid}/fd/{item.fd}"
                status = os.stat(path)  # noqa: PTH116
                one = self._object((status.st_dev, status.st_ino), os.readlink(path))  # noqa: PTH115
                one.descriptors.setdefault(item.file_id, item.fd)
        self._numbers = {key: number + 1 for number, key in enumerate(self._objects)}

    def _object(self, key: Key, name: str) -> _Object:
        return self._objects.setdefault(key, _Object(key, name.removesuffix(" (deleted)")))

    def number(self, area: Area) -> int:
        """The number of the memory that is mapped there; 0 where that is none of these."""
        return self._numbers.get((area.device, area.inode), 0) if area.inode else 0

    def present(self, table: PageTable) -> Iterator[tuple[int, int]]:
        """(address, pages) of what is mapped and readable, and was asked for."""
        for one in self._objects.values():
            for area in one.areas:
                if area.is_shared and area.permissions.startswith("r"):
                    yield from table.present(area.start, area.end)

    def copy(self, folder: Path, what: str) -> tuple[SharedMemory, ...]:
        """Put all contents into `folder`, one after the other. Raises StorageError, ProgramFailed."""
        others = held_by_others(self._tracee.pid, self._objects)
        found: list[SharedMemory] = []
        target = folder / SHARED_PAGES
        if not self._objects:
            return ()
        try:
            with create_private(target) as out:
                for number, one in enumerate(self._objects.values(), 1):
                    said = SharedMemory(number, one.name, files=tuple(one.descriptors))
                    if one.key in others:
                        who = named_process(others[one.key])
                        said = replace(said, refused=f"which {who} has too")
                    else:
                        said = self._copied(said, one, out, what)
                    found.append(said)
        except OSError as error:
            raise _full(target, error) from error
        if not target.stat().st_size:
            target.unlink()
        return tuple(found)

    def _copied(self, said: SharedMemory, one: _Object, out: IO[bytes], what: str) -> SharedMemory:
        if any("ht" in area.flags for area in one.areas):
            return replace(said, refused=_HUGE)
        for path in (*(f"fd/{fd}" for fd in one.descriptors.values()), *map(_map_file, one.areas)):
            try:
                file = os.open(f"/proc/{self._tracee.pid}/{path}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                return _copied_file(said, file, out, what, partial(self._tail, one))
            except OSError as error:
                return _unreadable(said, error)
            finally:
                os.close(file)
        if one.descriptors:
            return replace(said, refused="which this user may not read")
        if any(area.swapped for area in one.areas):
            return replace(said, refused=_SWAPPED)
        try:
            return _Window(self._tracee, one.areas).copied(said, out, what)
        except _Refused as refused:
            return replace(said, refused=str(refused))
        except OSError as error:
            return _unreadable(said, error)

    def _tail(self, one: _Object, size: int) -> bytes:
        """What is in the last page behind the end of a file, which mappings alone show."""
        end = size // PAGE_SIZE * PAGE_SIZE
        for area in one.areas if size > end else ():
            if area.is_shared and area.offset <= end < area.offset + area.end - area.start:
                with _memory_of(self._tracee.pid) as memory, suppress(OSError):
                    return os.pread(memory, PAGE_SIZE - size % PAGE_SIZE, area.start + size - area.offset)
        return b""


class _Refused(Exception):
    """A probe cannot hold the memory; says why."""


def _unreadable(said: SharedMemory, error: OSError) -> SharedMemory:
    return replace(said, refused=f"which cannot be read ({os.strerror(error.errno or errno.EIO)})")


def _full(path: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot write {path}: {error.strerror}; give --work on a larger disk")


def _put(out: IO[bytes], data: bytes) -> None:
    """Write all of `data`. Raises StorageError: an OSError would say that the memory cannot be read."""
    try:
        out.write(data)
    except OSError as error:
        raise _full(Path(out.name), error) from error


@contextmanager
def _memory_of(pid: int) -> Iterator[int]:
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield memory
    finally:
        os.close(memory)


def _map_file(area: Area) -> str:
    return f"map_files/{area.start:x}-{area.end:x}"


def _copied_file(
    said: SharedMemory, file: int, out: IO[bytes], what: str, tail: Callable[[int], bytes]
) -> SharedMemory:
    status = os.fstat(file)
    # Of disks the blocks may be larger than a page.
    if not status.st_nlink and os.fstatvfs(file).f_bsize != PAGE_SIZE:
        return replace(said, refused=_HUGE)
    try:
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    pieces = tuple(_data(file, status.st_size))
    require_room(Path(out.name).parent, sum(pages for _, pages in pieces), what)
    for offset, pages in pieces:
        end = offset + pages * PAGE_SIZE
        while offset < end:
            size = min(_CHUNK, end - offset)
            data = os.pread(file, size, offset)
            if len(data) < size:
                data = (data + tail(status.st_size)).ljust(size, b"\0")
            _put(out, data)
            offset += len(data)
    return replace(said, size=status.st_size, mode=status.st_mode & 0o777, seals=seals, pieces=pieces)


def _data(file: int, size: int) -> Iterator[tuple[int, int]]:
    """(offset, pages) of what is there; the rest are holes."""
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = -(-os.lseek(file, start, os.SEEK_HOLE) // PAGE_SIZE) * PAGE_SIZE
        start = start // PAGE_SIZE * PAGE_SIZE
        yield start, (end - start) // PAGE_SIZE


class _Window:
    """Memory that nothing but mappings lead to, seen through one more mapping of all of it."""

    def __init__(self, tracee: Tracee, areas: Sequence[Area]) -> None:
        self._tracee = tracee
        # Only a shared one can be mapped a second time. A second mapping of a locked one would fill all holes. Before
        # Linux 6.7 a page becomes a hole again only where it may be written.
        self._shared = [area for area in areas if area.is_shared]
        self._area = min(
            (area for area in self._shared if "lo" not in area.flags),
            key=lambda a: ("w" not in a.permissions, "mw" not in a.flags, a.offset),
            default=None,
        )
        self._is_anonymous = areas[0].path.startswith("/dev/zero")
        self._mapped = max(area.offset + area.end - area.start for area in areas)

    def copied(self, said: SharedMemory, out: IO[bytes], what: str) -> SharedMemory:
        if self._area is None:
            return replace(said, refused=_LOCKED if self._shared else "which is mapped privately alone")
        with self._answering():
            if any("lo" in area.flags for area in self._areas_of(self._answer, _ANSWER_BYTES)):
                # What it maps from now on is locked (mlockall).
                raise _Refused(_LOCKED)
            size = self._size()
            with self._open(size) as start:
                return self._copied_from(start, replace(said, size=size, mode=0o777), out, what)

    def _copied_from(self, start: int, said: SharedMemory, out: IO[bytes], what: str) -> SharedMemory:
        pieces = tuple(
            (address - start, pages)
            for first, flags in self._resident(start, said.size)
            for address, pages in stretches(flags, first)
        )
        # To mincore(2) what is swapped out is as absent as a hole; smaps counts it, mapped by pages or not.
        if any(area.swapped for area in self._areas_of(start, said.size)):
            raise _Refused(_SWAPPED)
        require_room(Path(out.name).parent, sum(pages for _, pages in pieces), what)
        with _memory_of(self._tracee.pid) as memory:
            for offset, pages in pieces:
                _copy_stretch(memory, start + offset, pages * PAGE_SIZE, out)
        return replace(said, pieces=pieces)

    def _size(self) -> int:
        """Bytes of all of it: as much as is mapped, unless there is more behind."""
        low, high = self._mapped, self._mapped + PAGE_SIZE
        with self._open(high) as start:
            # A file may end before its mapping does.
            if not self._is_anonymous and not self._is_there(start + low - PAGE_SIZE):
                low, high = 0, low
            more = high > self._mapped and self._is_there(start + high - PAGE_SIZE)
        while more:
            low, high = high, 2 * high
            with self._open(high) as start:
                more = self._is_there(start + high - PAGE_SIZE)
        # Pages up to `low` are there, the last one of `high` is not.
        if high - low > PAGE_SIZE:
            with self._open(high) as start:
                while high - low > PAGE_SIZE:
                    middle = (low + high) // 2 // PAGE_SIZE * PAGE_SIZE
                    if self._is_there(start + middle - PAGE_SIZE):
                        low = middle
                    else:
                        high = middle
        return low

    def _is_there(self, address: int) -> bool:
        """Whether there is a page. Reading one that is a hole fills it: then it becomes a hole again."""
        _, (resident,) = next(self._resident(address, PAGE_SIZE))
        page = b""
        with _memory_of(self._tracee.pid) as memory, suppress(OSError):
            page = os.pread(memory, PAGE_SIZE, address)
        if page and not resident:
            if any(page):
                raise _Refused(_SWAPPED)
            try:
                self._tracee.system_call(call_number("madvise"), address, PAGE_SIZE, mmap.MADV_REMOVE)
            except OSError as error:
                why = os.strerror(error.errno or errno.EIO)
                raise _Refused(f"of which the end cannot be found without filling it ({why})") from error
        return bool(page)

    def _areas_of(self, start: int, size: int) -> Iterator[Area]:
        """What smaps says now of the mappings at these addresses."""
        return (area for area in read_areas(self._tracee.pid) if area.start < start + size and start < area.end)

    @contextmanager
    def _open(self, size: int) -> Iterator[int]:
        assert self._area is not None
        call = self._tracee.system_call
        start = call(call_number("mremap"), self._area.start, 0, size, MREMAP_MAYMOVE, 0)
        try:
            if self._area.offset:
                call(call_number("remap_file_pages"), start, size, 0, 0, MAP_NONBLOCK)
            yield start
        finally:
            if self._tracee.is_stopped:
                call(call_number("munmap"), start, size)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Have room in the process for what the kernel says."""
        call = self._tracee.system_call
        self._answer = call(call_number("mmap"), 0, _ANSWER_BYTES, _READ_WRITE, _PRIVATE, -1, 0)
        try:
            yield
        finally:
            if self._tracee.is_stopped:
                call(call_number("munmap"), self._answer, _ANSWER_BYTES)

    def _resident(self, start: int, size: int) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
        """Which pages hold something, from an address on."""
        step = _ANSWER_BYTES * PAGE_SIZE
        for first in range(start, start + size, step):
            part = min(step, start + size - first)
            self._tracee.system_call(call_number("mincore"), first, part, self._answer)
            found = np.frombuffer(self._tracee.read(self._answer, part // PAGE_SIZE), dtype=np.uint8)
            yield first, found & 1 != 0


def _copy_stretch(memory: int, address: int, size: int, out: IO[bytes]) -> None:
    while size:
        data = os.pread(memory, min(_CHUNK, size), address)
        if not data:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        _put(out, data)
        address, size = address + len(data), size - len(data)
