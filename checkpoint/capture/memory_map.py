# SPDX-License-Identifier: Apache-2.0
"""The mappings of a process as /proc/PID/smaps has them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from checkpoint.linux import MAP_GROWSDOWN, MAP_HUGETLB, MAP_NORESERVE, PAGE_SIZE
from checkpoint.page_table import PageTable
from checkpoint.process.maps import SEGMENT, MapEntry, captured_as_memory, key_of
from checkpoint.state.process_state import PAGE_LAZY, PAGE_PRESENT, PageRun, Vma, VmaStatus

_ADVICE = {"rr": 1, "sr": 2, "dc": 10, "mg": 12, "hg": 14, "nh": 15, "dd": 16, "wf": 18}
"""Values of madvise by the letters that smaps has for them (Documentation/filesystems/proc.rst)."""
_PROTECTION = {"r": mmap.PROT_READ, "w": mmap.PROT_WRITE, "x": mmap.PROT_EXEC}
_FLAGS = {"gd": MAP_GROWSDOWN, "nr": MAP_NORESERVE, "ht": MAP_HUGETLB}
_KERNEL = {
    "[vdso]": VmaStatus.VDSO, "[vvar]": VmaStatus.VVAR, "[vvar_vclock]": VmaStatus.VVAR,
    "[vsyscall]": VmaStatus.VSYSCALL, "[uprobes]": VmaStatus.UPROBES,
}  # fmt: skip
_SHARED = (
    (SEGMENT, VmaStatus.SYSV_IPC), ("/memfd:", VmaStatus.MEMFD), ("/dev/zero (deleted)", VmaStatus.ANON_SHARED),
    ("/[aio]", VmaStatus.AIO_RING), ("socket:", VmaStatus.SOCKET), ("anon_inode:", VmaStatus.SOCKET),
    ("/anon_hugepage", VmaStatus.ANON_SHARED),
)  # fmt: skip
_NOT_COPIED = VmaStatus.VVAR | VmaStatus.VSYSCALL | VmaStatus.FILE_SHARED | VmaStatus.GUARD


@dataclass
class Area:
    """One mapping; `flags`: the letters behind VmFlags; `huge`: it holds transparent huge pages; `swapped`: pages of it
    are swapped out; `as_memory`: of a file that is captured as shared memory, since nobody else has it: a deleted file
    that is in memory alone, and mapped shared somewhere, a file that is written by a mapping, or a removed segment of
    System V."""

    start: int
    end: int
    permissions: str
    offset: int
    inode: int
    path: str
    flags: frozenset[str] = field(default_factory=frozenset)
    huge: bool = False
    device: int = 0
    swapped: bool = False
    as_memory: bool = False

    @property
    def is_shared(self) -> bool:
        return self.permissions[3] == "s"

    @property
    def status(self) -> int:
        """What it is, as bits of VmaStatus."""
        if self.path in _KERNEL:
            return _KERNEL[self.path] | VmaStatus.REGULAR
        if "ss" in self.flags:
            return VmaStatus.SHADOW_STACK
        special = next((status for start, status in _SHARED if self.path.startswith(start)), 0)
        if special or self.as_memory:
            return VmaStatus.MEMFD if self.as_memory else special
        if self.inode and self.path.startswith("/"):
            return VmaStatus.REGULAR | (VmaStatus.FILE_SHARED if self.is_shared else VmaStatus.FILE_PRIVATE)
        if self.is_shared:
            return VmaStatus.ANON_SHARED
        named = {"[heap]": VmaStatus.HEAP, "[stack]": VmaStatus.STACK}.get(self.path, 0)
        return VmaStatus.REGULAR | VmaStatus.ANON_PRIVATE | named

    @property
    def file(self) -> str:
        """Path of the file that it maps, "" if that is none."""
        return self.path if self.status & (VmaStatus.FILE_PRIVATE | VmaStatus.FILE_SHARED) else ""

    def vma(self, file_id: int) -> Vma:
        """The same for a process's state."""
        prot = sum(bit for letter, bit in _PROTECTION.items() if letter in self.permissions)
        flags = mmap.MAP_SHARED if self.is_shared else mmap.MAP_PRIVATE
        flags |= 0 if self.inode else mmap.MAP_ANONYMOUS
        for letters, bit in _FLAGS.items():
            flags |= bit if letters in self.flags else 0
        advice = sum(1 << value for letters, value in _ADVICE.items() if letters in self.flags)
        offset = self.offset if self.file or self.status & (VmaStatus.MEMFD | VmaStatus.ANON_SHARED) else 0
        return Vma(self.start, self.end, prot, flags, self.status, file_id, offset, advice)


def read_areas(pid: int) -> list[Area]:
    """All mappings of a process, in address order. Walks its page tables: 50 ms for each GB of it."""
    found: list[Area] = []
    with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        for line in lines:
            fields = line.rstrip("\n").split(None, 5)
            if not fields[0].endswith(":"):
                found.append(_area(fields))
            elif fields[0] == "VmFlags:":
                found[-1].flags = frozenset(line.split()[1:])
            elif fields[0] == "AnonHugePages:":
                found[-1].huge = fields[1] != "0"
            elif fields[0] == "Swap:":
                found[-1].swapped = fields[1] != "0"
    _mark_memory(found, pid)
    return found


def _mark_memory(areas: list[Area], pid: int) -> None:
    mapped = [MapEntry(a.start, a.end, a.permissions, a.offset, a.path, (a.device, a.inode)) for a in areas]
    captured = captured_as_memory(pid, mapped)
    for area, one in zip(areas, mapped, strict=True):
        area.as_memory = one.key in captured


def _area(fields: list[str]) -> Area:
    start, end = (int(part, 16) for part in fields[0].split("-"))
    # A newline in a name is all that the kernel writes otherwise.
    path = fields[5].replace("\\012", "\n") if len(fields) > 5 else ""
    device, inode = key_of(fields[3], fields[4], path)
    return Area(start, end, fields[1], int(fields[2], 16), inode, path, device=device)


def page_runs(areas: list[Area], table: PageTable) -> list[PageRun]:
    """The pages that make up the process: its own ones of private memory, and the vDSO."""
    runs: list[PageRun] = []
    for area in areas:
        status = area.status
        if status & VmaStatus.VDSO:
            runs.append(PageRun(area.start, (area.end - area.start) // PAGE_SIZE, PAGE_PRESENT))
        elif not area.is_shared and not status & _NOT_COPIED:
            lazy = PAGE_LAZY if status & VmaStatus.ANON_PRIVATE else 0
            own = table.own_pages(area.start, area.end)
            runs += [PageRun(address, pages, PAGE_PRESENT | lazy) for address, pages in own]
    return runs


def guard_areas(areas: list[Area], table: PageTable) -> Iterator[Vma]:
    """Guard regions inside private mappings, as mappings of their own kind behind all others."""
    for area in areas:
        if not area.is_shared and area.status & (VmaStatus.ANON_PRIVATE | VmaStatus.FILE_PRIVATE):
            for address, pages in table.guarded(area.start, area.end):
                yield Vma(address, address + pages * PAGE_SIZE, 0, mmap.MAP_PRIVATE, VmaStatus.GUARD, 0, 0, 0)


def mode_of(path: str) -> int:
    """st_mode of a mapped file, of an ordinary file where it cannot be asked."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116
    except OSError:
        return 0o100644
