# SPDX-License-Identifier: Apache-2.0
"""Mappings of a process: its images, and room for stubs near them."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpoint.binary.elf import ElfImage
from checkpoint.linux import PAGE_SIZE

SEGMENT = "/SYSV"
"""Begins the names that mappings of System V segments have, in which the key follows."""

MEMFD, ANONYMOUS = "/memfd:", "/dev/zero (deleted)"
"""Begins the names that mappings of memfds have; the name that shared anonymous mappings have."""

DELETED = " (deleted)"
"""Ends the names of files that are gone."""

_SEGMENTS = 1 << 40
"""Set in the number of a segment, which is no inode, but stands where mappings have inodes. The first segment has 0."""

_SHM_DEST = 0o1000
"""In the mode of a segment that was removed (linux/shm.h)."""

_REACH = 0x7000_0000
"""Farthest a stub area may begin from its image: the 2 GB of a rel32 jump less the size of any image and area."""

_FAR = 0x6800_0000
"""Preferred distance. The heap grows up from the executable and mappings grow down from the libraries: an area
well away from both leaves the addresses that a program sees the same with and without stubs."""

_LOWEST_ADDRESS = 0x10000
_HIGHEST_ADDRESS = 0x7FFF_FFFF_E000

_STACK_ROOM = 128 << 20
"""What the kernel keeps free below the stack, at the least, so that it can grow (mmap_base)."""

_CHOOSING_PREFIXES = (
    "libblas", "libcblas", "libopenblas", "libatlas", "libmkl", "liblapack", "libcrypto", "libssl", "libgcrypt",
    "libnettle", "libgmp", "libmpir",
)  # fmt: skip
"""How the names of images begin that work a lot, by code which they choose per CPU (cpuid)."""

FOREIGN_PREFIXES = (
    "ld-", "libc.", "libc-", "libm.", "libm-", "libmvec", "libpthread", "librt.", "librt-", "libdl.", "libdl-",
    "libgcc_s", "libgomp", "libomp", "libiomp", "libmpi", "vgpreload", *_CHOOSING_PREFIXES,
)  # fmt: skip
"""The same of all images whose functions are chosen per CPU (IFUNC, cpuid), or that spin: counts there differ between
machines. MPI spins; what stands in for it (probe.mpi.replay) has its names. And of what Valgrind puts into the programs
it runs."""


LARGEST_MAPPED = 256 << 20
"""Bytes of a file that is written by a mapping: each phase holds all of it."""


@dataclass(frozen=True)
class MapEntry:
    """One line of /proc/PID/maps."""

    start: int
    end: int
    permissions: str
    offset: int
    path: str
    key: tuple[int, int] = (0, 0)
    """As of `key_of`; zeros for private anonymous memory."""


def read_maps(pid: int) -> list[MapEntry]:
    """All mappings of a process, in address order."""
    return parsed_maps(Path(f"/proc/{pid}/maps").read_text())


def parsed_maps(text: str) -> list[MapEntry]:
    """The mappings that the text of a /proc/PID/maps tells of, in address order."""
    entries = []
    for line in text.splitlines():
        fields = line.split(None, 5)
        start, end = (int(part, 16) for part in fields[0].split("-"))
        entries.append(
            MapEntry(
                start,
                end,
                fields[1],
                int(fields[2], 16),
                fields[5] if len(fields) > 5 else "",
                key_of(fields[3], fields[4], fields[5] if len(fields) > 5 else ""),
            )
        )
    return entries


def key_of(device: str, inode: str, path: str) -> tuple[int, int]:
    """Device and inode, as os.stat has them, of what a line of maps says is mapped; told apart from these the number of
    a segment of System V."""
    major, minor = (int(part, 16) for part in device.split(":"))
    return os.makedev(major, minor), int(inode) | (_SEGMENTS if path.startswith(SEGMENT) else 0)


def captured_as_memory(pid: int, mapped: Sequence[MapEntry]) -> set[tuple[int, int]]:
    """Of mappings of process `pid`, by device and inode: what is captured as shared memory, though it is no memfd.

    That is deleted files of a tmpfs that are mapped shared and have no other name, files that are written by a mapping,
    and removed segments of System V.
    """
    deleted = [one for one in mapped if one.path.endswith(DELETED)]
    files = {
        one.key: (one.start, one.end)
        for one in deleted
        if one.permissions.endswith("s") and not one.path.startswith((SEGMENT, MEMFD, ANONYMOUS))
    }
    devices = _tmpfs_devices(pid) if files else set()
    nameless = _without_names(pid, {key: place for key, place in files.items() if key[0] in devices})
    segments = {one.key for one in deleted if one.path.startswith(SEGMENT)}
    removed = _removed_segments() if segments else set()
    return _written_through(pid, mapped) | nameless | {key for key in segments if key[1] in removed}


def _tmpfs_devices(pid: int) -> set[int]:
    """Devices of the file systems in memory that a process sees; none where that cannot be asked."""
    found = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/mountinfo").read_text(errors="surrogateescape").splitlines():
            mounted, _, what = line.partition(" - ")
            if what.startswith("tmpfs "):
                major, minor = mounted.split()[2].split(":")
                found.add(os.makedev(int(major), int(minor)))
    return found


def _without_names(pid: int, mapped: Mapping[tuple[int, int], tuple[int, int]]) -> set[tuple[int, int]]:
    """Of deleted files, the addresses of a mapping of each by device and inode: those that no other name leads to.

    What neither a descriptor nor /proc/PID/map_files lets this user ask about is not among them: sem_open(3), for one,
    maps a file by a name that it removes, and gives it another.
    """
    found = set()
    places = [f"map_files/{start:x}-{end:x}" for start, end in mapped.values()]
    with contextlib.suppress(OSError):
        places += [f"fd/{entry.name}" for entry in Path(f"/proc/{pid}/fd").iterdir()] if mapped else []
    for place in places:
        with contextlib.suppress(OSError):
            status = os.stat(f"/proc/{pid}/{place}")  # noqa: PTH116
            if not status.st_nlink and (status.st_dev, status.st_ino) in mapped:
                found.add((status.st_dev, status.st_ino))
    return found


def _removed_segments() -> set[int]:
    """The segments of System V that were removed and are there as long as somebody has them attached (shmctl(2),
    IPC_RMID): their numbers as `key_of` has them."""
    found = set()
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
            _, number, mode, *_ = line.split()
            if int(mode, 8) & _SHM_DEST:
                found.add(int(number) | _SEGMENTS)
    return found


def _written_through(pid: int, mapped: Iterable[MapEntry]) -> set[tuple[int, int]]:
    """The files of a size that a probe can hold which process `pid` writes by a shared mapping, by device and inode.

    Not those in /dev/shm: other processes find them there by their names, and wait for what they hold (sem_open(3)).
    But by a name with the process's own number none finds it that does not look for it, as with Mono's counters.
    """
    number = re.compile(rf"(?<!\d){pid}(?!\d)")
    found = set()
    for one in mapped:
        path, key = one.path, one.key
        if "w" not in one.permissions or not one.permissions.endswith("s") or not path.startswith("/") or key in found:
            continue
        if path.startswith("/dev/") and not (path.startswith("/dev/shm/") and number.search(path)):
            continue
        with contextlib.suppress(OSError):
            status = Path(path).stat()
            is_it = (status.st_dev, status.st_ino) == key and stat.S_ISREG(status.st_mode)
            if is_it and status.st_size <= LARGEST_MAPPED:
                found.add(key)
    return found


def held_by_others(pid: int, keys: Collection[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Of what has no name, by device and inode: another process that maps it or has it open. Of processes that this
    user may not look into nothing is known."""
    found: dict[tuple[int, int], int] = {}
    if not keys:
        return found
    written = {_line_with(key): key for key in keys}
    namespace = _ipc_namespace(pid)
    for folder in Path("/proc").glob("[0-9]*"):
        other = int(folder.name)
        if other == pid:
            continue
        with contextlib.suppress(OSError):
            maps = (folder / "maps").read_bytes()
            mapped = {key for text, key in written.items() if text.search(maps)}
            # Of another namespace they are others, by the same numbers.
            elsewhere = any(n & _SEGMENTS for _, n in mapped) and _ipc_namespace(other) != namespace
            found.update({key: other for key in mapped if not (elsewhere and key[1] & _SEGMENTS)})
            for entry in os.scandir(folder / "fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(entry.path)  # noqa: PTH115 (a tenth of the time)
                    if target.endswith(DELETED) or target.startswith("/dev/shm/"):
                        status = os.stat(entry.path)  # noqa: PTH116
                        if (status.st_dev, status.st_ino) in keys:
                            found[status.st_dev, status.st_ino] = other
    return found


def _line_with(key: tuple[int, int]) -> re.Pattern[bytes]:
    """What the line of a mapping of it has."""
    device, inode = key
    begun = f" {os.major(device):02x}:{os.minor(device):02x} {inode & ~_SEGMENTS} "
    path = f" *{SEGMENT}" if inode & _SEGMENTS else f"(?! *{SEGMENT})"
    return re.compile(f"{begun}{path}".encode())


def _ipc_namespace(pid: int) -> str:
    """What names it; "" where this user may not ask."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/ipc")  # noqa: PTH115
    return ""


def named_process(pid: int) -> str:
    """A process in words, with what it calls itself."""
    name = ""
    with contextlib.suppress(OSError):
        said = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
        name = "".join(c if c.isprintable() else "?" for c in said)
    return f"process {pid} ({name})" if name else f"process {pid}"


def huge_ranges(pid: int) -> list[tuple[int, int]]:
    """Address ranges of the mappings of a process that hold transparent huge pages."""
    found: list[tuple[int, int]] = []
    span = (0, 0)
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *fields = line.split(None, 2)
        if not first.endswith(":"):
            start, end = first.split("-")
            span = (int(start, 16), int(end, 16))
        elif first == "AnonHugePages:" and int(fields[0]):
            found.append(span)
    return found


def image_paths(maps: Sequence[MapEntry]) -> list[str]:
    """Files that have an executable mapping, in address order."""
    return list(dict.fromkeys(e.path for e in maps if e.path.startswith("/") and "x" in e.permissions))


def is_own(path: str) -> bool:
    """Whether an image's code may carry counters: not the C library, loader, or a library that picks by CPU."""
    return not Path(path).name.startswith(FOREIGN_PREFIXES)


def chooses_code(path: str) -> bool:
    """Whether an image picks by CPU and may carry counters all the same, in a program that works there."""
    return Path(path).name.startswith(_CHOOSING_PREFIXES)


def load_bias(image: ElfImage, maps: Sequence[MapEntry]) -> int:
    """What loading added to the image's link-time addresses. Raises LookupError where it is not mapped."""
    for segment in image.segments:
        page = segment.offset & ~0xFFF
        for entry in maps:
            if entry.path == image.path and entry.offset == page and ("x" in entry.permissions) == segment.executable:
                return entry.start - (segment.vaddr & ~0xFFF)
    raise LookupError(image.path)


def find_gap(maps: Sequence[MapEntry], low: int, high: int, size: int) -> int:
    """Address of `size` free bytes within reach of an image that spans [low, high).

    Takes the place nearest to the preferred distance. Raises LookupError where nothing is free in reach.
    """
    edges = [_LOWEST_ADDRESS]
    for e in maps:
        if e.end <= _HIGHEST_ADDRESS + _LOWEST_ADDRESS:
            edges += [e.start - (_STACK_ROOM if e.path == "[stack]" else 0), e.end]
    edges.append(_HIGHEST_ADDRESS)
    best: int | None = None
    # Above it begins there, whatever its size: so far, and no farther, the heap can grow in every run.
    wishes = (low - _FAR, high + _FAR)
    for gap_low, gap_high in zip(edges[0::2], edges[1::2], strict=True):
        first = max(gap_low, high - _REACH, _LOWEST_ADDRESS)
        last = min(gap_high - size, low + _REACH - size)
        if first > last:
            continue
        for wish in wishes:
            place = min(max(wish, first), last) & ~0xFFF
            if place < first:
                place += PAGE_SIZE
            if place <= last and (best is None or _miss(place, wishes) < _miss(best, wishes)):
                best = place
    if best is None:
        raise LookupError(f"no {size} free bytes within 2 GB of {low:#x}")
    return best


def in_reach(one: int, size: int, other: int, of_other: int) -> bool:
    """Whether all of [one, one + size) is in reach of all of [other, other + of_other), both ways."""
    return max(one + size, other + of_other) - min(one, other) <= _REACH


def _miss(place: int, wishes: tuple[int, int]) -> int:
    return min(abs(place - wish) for wish in wishes)
