# SPDX-License-Identifier: Apache-2.0
"""Find a process's open files before CRIU is asked to dump it: files it writes, and what reaches outside it.

What leads to the process itself is fine: pipes and pairs of Unix sockets of which it holds both ends, eventfds, epoll
sets, timers, signalfds, deleted files; shared memory that no other process has. Where CRIU takes no part, so is a
socket that nobody is connected to, and a pipe that the process only writes to, as a worker does whose wrapper reads
what it prints: a restored phase prints to nobody.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from checkpoint.errors import ProgramUnsupported
from checkpoint.process.maps import (
    ANONYMOUS,
    DELETED,
    MEMFD,
    SEGMENT,
    MapEntry,
    captured_as_memory,
    held_by_others,
    named_process,
    read_maps,
)
from checkpoint.process.sockets import duplicate, nameless_pairs, unconnected_socket
from checkpoint.state.own_descriptors import ends_with_clock

ONLY_CRIU = "which only CRIU captures"
"""Ends what is said of a thing that direct capture cannot hold, and CRIU can."""

OTHER = ", which "
"""Stands between shared memory, or a pipe, and the process that has it too."""

LARGEST_DELETED = 64 << 20
"""Bytes of a deleted file that a probe carries."""

PLAIN_DEVICES = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}

_OUTSIDE = {
    "anon_inode:[io_uring]": "an io_uring",
    "anon_inode:[perf_event]": "a performance counter",
    "anon_inode:[fanotify]": "a fanotify descriptor",
    "anon_inode:[pidfd]": "a pidfd",
    "anon_inode:[userfaultfd]": "a userfaultfd",
    "anon_inode:inotify": "an inotify descriptor",
    "/memfd:": "a memfd of huge pages",
    "/dev/pts/": "a terminal",
    "/dev/tty": "a terminal",
}
_INSIDE = ("anon_inode:[eventpoll]", "anon_inode:[signalfd]")

_MAPPINGS = {
    "/anon_hugepage": "huge pages (hugetlb)",
    SEGMENT: "System V shared memory",
    "/memfd:": "shared memory (a memfd of huge pages)",
}
"""Shared mappings by the names the kernel gives them, of which CRIU would say something less plain."""

_IS_DESCRIPTOR, _MEMORY = "(descriptor ", "a memfd"
"""In the name of what a descriptor is of; begins the name of one that is memory all the same."""

_INSTEAD_OF_PIPES = "Probe the computing program by itself, with files in place of pipes and sockets."
_INSTEAD_OF_MEMORY = "Run it without huge pages and without memory that other processes share."


@dataclass(frozen=True)
class _Open:
    """A descriptor as /proc shows it. `flags` as for open(2)."""

    pid: int
    number: str
    target: str

    @property
    def status(self) -> os.stat_result:
        return Path(f"/proc/{self.pid}/fd/{self.number}").stat()

    @property
    def key(self) -> tuple[int, int]:
        """Device and inode; zeros where it is gone."""
        with contextlib.suppress(OSError):
            status = self.status
            return status.st_dev, status.st_ino
        return 0, 0

    @property
    def information(self) -> Mapping[str, str]:
        """What fdinfo says, the last of equal names."""
        lines = Path(f"/proc/{self.pid}/fdinfo/{self.number}").read_text().splitlines()
        return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    @property
    def flags(self) -> int:
        return int(self.information["flags"], 8)

    @property
    def inode(self) -> int:
        return int(self.target.partition("[")[2].rstrip("]"))

    def named(self, kind: str) -> str:
        return f"{kind} {_IS_DESCRIPTOR}{self.number})"


def outside(pid: int, *, by_criu: bool = False) -> list[str]:
    """What process `pid` holds and no probe can: descriptors that reach outside it, and memory that CRIU does not dump.
    `by_criu`: also pipes that it writes and others read, which CRIU restores broken; sockets that nobody is connected
    to, for which CRIU needs the address; all segments of System V, which CRIU dumps with their namespace alone. Empty
    once it is gone."""
    with contextlib.suppress(OSError):
        descriptors = list(_descriptors(pid))
        mappings = read_maps(pid)
        memory = _shared_memory(pid, mappings, descriptors, by_criu)
        others = held_by_others(pid, memory)
        return [
            *_outside_descriptors([one for one in descriptors if not memory or one.key not in memory], by_criu),
            *_outside_memory(pid, [one for one in mappings if one.key not in memory]),
            *(f"{memory[key]}{OTHER}{named_process(other)} has too" for key, other in others.items()),
        ]
    return []


def _shared_memory(
    pid: int, mappings: Iterable[MapEntry], descriptors: Iterable[_Open], by_criu: bool
) -> dict[tuple[int, int], str]:
    """What is captured as shared memory, named, by device and inode: memfds, shared anonymous mappings, and what
    `captured_as_memory` finds. Not what has huge pages."""
    found: dict[tuple[int, int], str] = {}
    held = [one for one in mappings if not one.path.startswith(SEGMENT) or (not by_criu and _is_plain_memory(one.key))]
    captured = captured_as_memory(pid, held)
    for one in held:
        if one.path.startswith(MEMFD) or one.path == ANONYMOUS:
            is_memory = _is_plain_memory(one.key)
        else:
            # The same file may be mapped privately too, which is not the mapping to name.
            is_memory = one.key in captured and one.permissions.endswith("s")
        if is_memory:
            found[one.key] = _named_memory(one)
    for descriptor in descriptors:
        if descriptor.target.startswith(MEMFD) and _is_plain_memory(descriptor.key):
            found[descriptor.key] = descriptor.named("a memfd")
    return found


def _named_memory(one: MapEntry) -> str:
    where = f"at {one.start:#x}-{one.end:#x}"
    if one.path.startswith(SEGMENT):
        return f"System V shared memory {where}"
    if one.path.startswith(MEMFD) or one.path == ANONYMOUS:
        return f"shared memory {where}"
    if one.path.endswith(DELETED):
        return f"shared memory ({one.path.removesuffix(DELETED)}) {where}"
    return f"{one.path} mapped shared {where}"


def _is_plain_memory(key: tuple[int, int]) -> bool:
    """Whether memory, by device and inode, has no huge pages."""
    return key[0] == _memory_device()


@lru_cache(maxsize=1)
def _memory_device() -> int:
    """The device that the kernel says memory without huge pages is on; 0 where it does not."""
    with contextlib.suppress(OSError):
        file = os.memfd_create("device", os.MFD_CLOEXEC)
        try:
            return os.fstat(file).st_dev
        finally:
            os.close(file)
    return 0


def refusal(name: str, found: Collection[str]) -> ProgramUnsupported:
    """The error that a program holds these things all the time."""
    named = [one.partition(OTHER)[0] for one in found]
    memory = [_IS_DESCRIPTOR not in one or one.startswith(_MEMORY) for one in named]
    advice = [_INSTEAD_OF_PIPES] * (not all(memory)) + [_INSTEAD_OF_MEMORY] * any(memory)
    return ProgramUnsupported(
        f"{name}: while it runs, it holds {', '.join(found)}; what is at the other end is not there when a phase is "
        f"restored. {' '.join(advice)}"
    )


def refusal_of_phases(name: str, faults: Mapping[int, Collection[str]]) -> ProgramUnsupported:
    """The error that names all that is at fault, with the phases where it is; `faults` of each phase."""
    phases: dict[str, list[int]] = defaultdict(list)
    for phase, found in faults.items():
        for fault in found:
            phases[fault].append(phase)
    named = [f"{fault} (phase {', '.join(map(str, sorted(of)))})" for fault, of in phases.items()]
    by_criu = [fault for fault in phases if fault.endswith(ONLY_CRIU)]
    if phases and len(by_criu) == len(phases):
        return ProgramUnsupported(
            f"{name}: direct capture cannot hold {'; '.join(named)}: build as root with --capture criu",
            "; ".join(by_criu),
        )
    said = (
        f"{name}: a probe cannot hold {'; '.join(named)}: it reaches outside the process, or is not there "
        "when a phase is restored. Close it before the computation starts, or probe the computing program by itself, "
        "with files in place of pipes and sockets."
    )
    return ProgramUnsupported(said, "; ".join(by_criu))


def is_write_end(flags: int) -> bool:
    """Whether a pipe's end is the one that is written to."""
    return flags & os.O_ACCMODE == os.O_WRONLY


def _descriptors(pid: int) -> Iterator[_Open]:
    for entry in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda p: int(p.name)):
        # It may have been closed since the folder was listed.
        with contextlib.suppress(OSError):
            yield _Open(pid, entry.name, str(entry.readlink()))


def _outside_descriptors(descriptors: Collection[_Open], by_criu: bool) -> Iterator[str]:
    pairs: dict[int, int] | None = None
    inodes = {one.inode for one in descriptors if one.target.startswith("socket:[")}
    for one in descriptors:
        with contextlib.suppress(OSError):
            if one.target.startswith("socket:["):
                pairs = nameless_pairs() if pairs is None else pairs
                alone = not by_criu and one.inode not in pairs.values() and _is_unconnected(one)
                if pairs.get(one.inode) not in inodes and not alone:
                    yield one.named("a socket")
            elif (fault := _fault_of(one, descriptors, by_criu)) is not None:
                yield fault


def _is_unconnected(one: _Open) -> bool:
    with duplicate(one.pid, int(one.number)) as twin:
        return twin is not None and unconnected_socket(twin) is not None


def _fault_of(one: _Open, descriptors: Collection[_Open], by_criu: bool) -> str | None:
    """Why a descriptor that is no socket reaches outside; None if it does not."""
    if one.target.startswith("pipe:["):
        return _fault_of_pipe(one, descriptors, by_criu)
    for start, judge in _JUDGES.items():
        if one.target.startswith(start):
            return judge(one)
    kind = next((what for start, what in _OUTSIDE.items() if one.target.startswith(start)), None)
    if kind is not None:
        return one.named(kind)
    if one.target.startswith("anon_inode:"):
        return None if one.target in _INSIDE else one.named(one.target)
    return _fault_of_file(one)


def _fault_of_pipe(one: _Open, descriptors: Collection[_Open], by_criu: bool) -> str | None:
    if one.flags & os.O_DIRECT:
        return one.named("a pipe of packets")
    ends = {is_write_end(other.flags) for other in descriptors if other.target == one.target}
    if len(ends) == 2 or (True in ends and not by_criu) or (other := _held_elsewhere(one)) is None:
        return None
    return f"{one.named('a pipe')}{OTHER}{named_process(other)} has too"


def _held_elsewhere(one: _Open) -> int | None:
    """Another process that has a descriptor of the same pipe; None where there is none."""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        if folder.parent.name == str(one.pid):
            continue
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path) == one.target:  # noqa: PTH115 (a tenth of the time)
                        return int(folder.parent.name)
    return None


def _fault_of_timer(one: _Open) -> str | None:
    said = one.information
    busy = any(int(number) for name in ("ticks", "it_value") for number in re.findall(r"\d+", said.get(name, "")))
    ends = ends_with_clock(int(said.get("clockid", "0")), int(said.get("settime flags", "0"), 8))
    return one.named("a timer that ends when the clock is set") if busy and ends else None


def _fault_of_event(one: _Open) -> str | None:
    # CRIU makes it an ordinary one, whose reads take the whole count.
    counts = one.information.get("eventfd-semaphore", "0") != "0"
    return one.named("an eventfd that counts (EFD_SEMAPHORE)") if counts else None


_Judge = Callable[[_Open], "str | None"]
_JUDGES: Mapping[str, _Judge] = {
    "anon_inode:[timerfd]": _fault_of_timer,
    "anon_inode:[eventfd]": _fault_of_event,
}


def _fault_of_file(one: _Open) -> str | None:
    status = one.status
    if stat.S_ISFIFO(status.st_mode):
        return one.named("a named pipe")
    if stat.S_ISBLK(status.st_mode) or (stat.S_ISCHR(status.st_mode) and one.target not in PLAIN_DEVICES):
        return one.named(f"the device {one.target}")
    if one.target.endswith(DELETED):
        return _fault_of_deleted(status, f"descriptor {one.number}, {one.target.removesuffix(DELETED)}")
    return None


def _fault_of_deleted(status: os.stat_result, where: str) -> str | None:
    if status.st_nlink or not stat.S_ISREG(status.st_mode):
        return f"a deleted file ({where})"
    if status.st_size > LARGEST_DELETED:
        return f"a deleted file of more than {LARGEST_DELETED >> 20} MB ({where})"
    return None


def _outside_memory(pid: int, mappings: Iterable[MapEntry]) -> Iterator[str]:
    for one in mappings:
        where = f"at {one.start:#x}-{one.end:#x}"
        shared = one.permissions.endswith("s")
        special = next((what for start, what in _MAPPINGS.items() if one.path.startswith(start)), None)
        if special is not None and one.path.endswith(DELETED) and (shared or "huge" in special):
            yield f"{special} {where}"
        elif shared and "w" in one.permissions and one.path.startswith("/"):
            yield f"{one.path} mapped shared and writable {where}"
        elif one.path.startswith("/") and one.path.endswith(DELETED):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/map_files/{one.start:x}-{one.end:x}").stat()
                if (
                    fault := _fault_of_deleted(status, f"{one.path.removesuffix(DELETED)}, mapped {where}")
                ) is not None:
                    yield fault


def written_files(pid: int) -> set[str]:
    """Paths of the regular files that a process has open for writing; empty once it is gone."""
    found = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            target = entry.readlink()
            if str(target).startswith("/") and _is_writable(pid, entry.name) and target.is_file():
                found.add(str(target))
    except OSError:
        pass
    return found


def _is_writable(pid: int, descriptor: str) -> bool:
    for line in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False
