# SPDX-License-Identifier: Apache-2.0
"""Convert a CRIU checkpoint to the flat phase image of the direct restorer.

What that restorer cannot bring back is refused here, by name: such a phase is for CRIU alone.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from checkpoint.criu.images import CheckpointImages, File, FileKind, Vma, VmaStatus
from checkpoint.criu.pagemap import PAGE_SIZE
from checkpoint.criu.protobuf import Message
from checkpoint.criu.unsupported import unsupported
from checkpoint.event import EVENT_BYTES
from checkpoint.flat.image import (
    LIMITS,
    PARK_ROOM,
    SIGNALS,
    USER_END,
    Action,
    FlatImage,
    Header,
    Kind,
    Layout,
    Limit,
    Mapping,
    OpenDescriptor,
    Registers,
    Run,
    Timer,
)
from checkpoint.flat.vdso import NotAVdso, with_system_calls
from checkpoint.process.program import ADDR_NO_RANDOMIZE

_NOT_MAPPED = VmaStatus.VVAR | VmaStatus.VSYSCALL | VmaStatus.GUARD
_MAP_SHARED, _MAP_PRIVATE, _MAP_GROWSDOWN, _MAP_NORESERVE = 1, 2, 0x100, 0x4000
_PROT_READ = 1
_MADV_HUGEPAGE = 14
_SIGKILL, _SIGSTOP = 9, 19
_NO_LIMIT = (1 << 64) - 1
_NO_EXE = (1 << 32) - 1
_O_DIRECT = 0o40000
_PARK_STEP = 1 << 40
"""The park is at a multiple of this: far from where a kernel loads programs, libraries and stacks."""
_PARK_DISTANCE = 1 << 21

_X87, _SSE, _AVX = 1, 2, 4
_XSAVE_PARTS = ((2, "ymm_high", 2, "I"), (5, "opmask", 5, "Q"), (6, "zmm_high", 6, "Q"), (7, "zmm_more", 7, "Q"))
"""Extended state: number of the component, field of the header, field of CRIU's message, format of its values."""
_PKRU_FIELD, _CET_FIELD = 8, 9
_HARMLESS_PKRU = (0, 0x55555554)
"""No key restricted; the kernel's default, which restricts keys that nobody has."""


class NotFlat(Exception):
    """The direct restorer cannot bring this checkpoint back; the reasons, in plain words."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))


def flatten(
    images: CheckpointImages,
    events: Sequence[int],
    *,
    outputs: Sequence[str] = (),
    written: Collection[str] = (),
    huge: Sequence[tuple[int, int]] = (),
    touched: Sequence[int] = (),
    calls: Sequence[int] = (),
) -> FlatImage:
    """The flat image of a checkpoint of one process.

    `events`: addresses of its event records. `outputs`: files open for appending that become scratch files;
    `written`: other files it writes, of which it gets copies. `huge`: address ranges that had huge pages. `touched`:
    pages in order of first touch. `calls`: numbers of the system calls it may make. Raises NotFlat.
    """
    if reasons := [*unsupported(images), *_own_reasons(images)]:
        raise NotFlat(list(dict.fromkeys(reasons)))
    flat = FlatImage(Header())
    mapped = [vma for vma in images.vmas if not vma.status & _NOT_MAPPED]
    files = _Numbered()
    flat.mappings = [_mapping(vma, images, files, huge) for vma in mapped]
    flat.runs = [Run(run.vaddr, run.pages) for run in images.page_runs]
    flat.patches = list(_patched_vdso(images))
    flat.stamps = sorted({page for event in events for page in _pages(event)})
    readable = [vma for vma in mapped if vma.prot & _PROT_READ]
    ends = [vma.end for vma in readable]
    flat.touch_order = [
        page for page in touched if (at := bisect_right(ends, page)) < len(ends) and readable[at].start <= page
    ]
    flat.calls = sorted(set(calls))
    _process(flat, images)
    _processor(flat.header, images)
    _descriptors(flat, images, files, outputs, written)
    flat.files = files.names
    flat.header.park = _park(mapped)
    return flat


class _Numbered:
    """Names numbered in the order in which they are first asked for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)


def _own_reasons(images: CheckpointImages) -> Iterator[str]:
    """What CRIU restores and the direct restorer does not."""
    for vma in images.vmas:
        if vma.status & VmaStatus.GUARD:
            yield f"guard pages at {vma.start:#x}-{vma.end:#x}"
        elif vma.end > USER_END and not vma.status & VmaStatus.VSYSCALL:
            yield f"memory at {vma.start:#x}, beyond 47-bit addresses (5-level paging)"
    timers = _part(images.core, 3, 7)
    if timers.messages(4):
        yield "POSIX timers (timer_create)"
    xsave = _part(images.core, 2, 3, 13)
    if _part(xsave, _CET_FIELD).integer(1, 0):
        yield "a shadow stack"
    if xsave.integers(_PKRU_FIELD)[:1] not in [[], *([v] for v in _HARMLESS_PKRU)]:
        yield "protection keys"
    known = {0, 1, 8, 9, *(part[0] for part in _XSAVE_PARTS)}
    state = xsave.integer(1, 0)
    for number in range(64):
        if state >> number & 1 and number not in known:
            yield f"part {number} of the processor's extended state"
    # Kernel threads of a process may not be dumped at all; its 32-bit segments would be.
    if _part(images.core, 2).messages(4) and any(d.integer(10, 0) for d in _part(images.core, 2).messages(4)):
        yield "thread-local storage in the global descriptor table (32-bit code)"


def _part(message: Message, *numbers: int) -> Message:
    """The message nested at these field numbers; an empty one where there is none."""
    for number in numbers:
        message = message.message(number) or Message()
    return message


def _pages(event: int) -> Iterator[int]:
    first, last = event // PAGE_SIZE, (event + EVENT_BYTES - 1) // PAGE_SIZE
    return (page * PAGE_SIZE for page in range(first, last + 1))


def _mapping(vma: Vma, images: CheckpointImages, files: _Numbered, huge: Sequence[tuple[int, int]]) -> Mapping:
    shared = bool(vma.status & VmaStatus.FILE_SHARED)
    had_huge = vma.advice >> _MADV_HUGEPAGE & 1 or any(start < vma.end and vma.start < end for start, end in huge)
    return Mapping(
        start=vma.start,
        end=vma.end,
        file_offset=vma.file_offset if vma.is_file else 0,
        advice=vma.advice,
        prot=vma.prot,
        flags=(_MAP_SHARED if shared else _MAP_PRIVATE) | vma.flags & (_MAP_GROWSDOWN | _MAP_NORESERVE),
        file=files(images.files[vma.file_id].path) + 1 if vma.is_file else 0,
        small=int(not had_huge),
    )


def _patched_vdso(images: CheckpointImages) -> Iterator[tuple[int, bytes]]:
    for vma in images.vmas:
        if not vma.status & VmaStatus.VDSO:
            continue
        offset, data = 0, b""
        with images.pages_image.open("rb") as pages:
            for run in images.page_runs:
                if vma.start <= run.vaddr < vma.end:
                    pages.seek(offset)
                    data += pages.read(run.pages * PAGE_SIZE)
                offset += run.pages * PAGE_SIZE
        if len(data) != vma.end - vma.start:
            raise NotFlat(["a vDSO whose pages are not all in the checkpoint"])
        try:
            yield vma.start, with_system_calls(data)
        except NotAVdso as error:
            raise NotFlat([str(error)]) from error


def _process(flat: FlatImage, images: CheckpointImages) -> None:
    header, core = flat.header, images.core
    task, thread = _part(core, 3), _part(core, 5)
    header.blocked_signals = thread.integer(6, task.integer(5, 0))
    stack, rseq = _part(thread, 7), _part(thread, 15)
    header.stack_pointer, header.stack_size = stack.integer(1, 0), stack.integer(2, 0)
    header.stack_flags = stack.integer(3, 0)
    header.clear_tid = _part(core, 2).integer(1, 0)
    header.robust_list, header.robust_size = thread.integer(1, 0), thread.integer(2, 0)
    header.rseq = rseq.integer(1, 0)
    header.rseq_size, header.rseq_signature = rseq.integer(2, 0), rseq.integer(3, 0)
    # CRIU 4.1 reads the kernel's hexadecimal number as a decimal one. Every program is captured under this one.
    header.personality = ADDR_NO_RANDOMIZE
    header.umask = images.umask
    header.no_huge_pages = images.mm.integer(17, 0)
    header.cwd = flat.string(images.files[images.cwd_file_id].path)
    name = images.comm.encode("utf-8", "surrogateescape")[:15]
    ctypes.memmove(header.name, name, len(name))
    numbers = [n for n in range(1, SIGNALS + 1) if n not in (_SIGKILL, _SIGSTOP)]
    actions = task.messages(15)
    if len(actions) != len(numbers):
        raise NotFlat([f"actions of {len(actions)} signals where {len(numbers)} are known"])
    for number, action in zip(numbers, actions, strict=True):
        header.actions[number - 1] = Action(*(action.integer(field) for field in (1, 2, 3, 4)))
    limits = [Limit(item.integer(1), item.integer(2)) for item in _part(task, 8).messages(1)]
    for number in range(LIMITS):
        header.limits[number] = limits[number] if number < len(limits) else Limit(_NO_LIMIT, _NO_LIMIT)
    for number in range(3):
        timer = _part(task, 7, number + 1)
        header.timers[number] = Timer(*(timer.integer(field, 0) for field in (1, 2, 3, 4)))
    places = (1, 2, 3, 4, 6, 7, 5, 8, 9, 10, 11)
    header.mm = Layout(*(images.mm.integer(place) for place in places), 0, 0, _NO_EXE)


def _processor(header: Header, images: CheckpointImages) -> None:
    header.registers = Registers(*(images.registers[name] for name, *_ in Registers._fields_))
    fpu = _part(images.core, 2, 3)
    words = [fpu.integer(number) & 0xFFFF for number in (1, 2, 3, 4)]
    data = struct.pack("<4H2Q2I", *words, fpu.integer(5), fpu.integer(6), fpu.integer(7), fpu.integer(8))
    data += b"".join(value.to_bytes(4, "little") for value in [*fpu.integers(9), *fpu.integers(10)])
    _fill(header.legacy, data)
    xsave = fpu.message(13)
    if xsave is None:
        header.xstate = _X87 | _SSE
        return
    # Both always: without SSE's bit the kernel would load its own MXCSR. Of the others, all zero is how they start:
    # left out, they are the same, and the processor need not have them.
    header.xstate = _X87 | _SSE
    for number, name, field, form in _XSAVE_PARTS:
        values = xsave.integers(field)
        if xsave.integer(1) >> number & 1 and any(values):
            header.xstate |= 1 << number
            _fill(getattr(header, name), struct.pack(f"<{len(values)}{form}", *values))


def _fill(array: ctypes.Array[ctypes.c_uint8], data: bytes) -> None:
    if len(data) > len(array):
        raise NotFlat([f"{len(data)} bytes of processor state where {len(array)} are known"])
    ctypes.memmove(array, data, len(data))


def _descriptors(
    flat: FlatImage, images: CheckpointImages, files: _Numbered, outputs: Sequence[str], written: Collection[str]
) -> None:
    copies = _Numbered()
    first: dict[int, int] = {}
    changing = {f.path for d in images.descriptors if (f := images.files[d.file_id]).writable}
    if both := sorted(changing.intersection(files.names).difference(outputs)):
        raise NotFlat([f"{both[0]} is mapped and open for writing"])
    for item in sorted(images.descriptors, key=lambda d: d.fd):
        file = images.files[item.file_id]
        found = OpenDescriptor(number=item.fd, flags=file.flags, cloexec=item.flags & 1)
        if item.file_id in first:
            found.kind, found.file = Kind.SAME_AS, first[item.file_id]
        elif file.path in outputs:
            found.kind, found.file = Kind.OUTPUT, list(outputs).index(file.path)
        elif file.flags & _O_DIRECT:
            raise NotFlat([f"{file.path} is open for direct input and output (O_DIRECT)"])
        elif stat.S_ISDIR(file.mode) and file.position:
            raise NotFlat([f"the folder {file.path}, open in the middle of being listed"])
        elif not stat.S_ISREG(file.mode):
            found.kind, found.path = Kind.PATH, flat.string(file.path)
            found.flags |= os.O_DIRECTORY if stat.S_ISDIR(file.mode) else 0
        elif file.writable or file.path in changing:
            # One that only reads it must see what the others write.
            if file.path not in written:
                raise NotFlat([f"{file.path} is open for writing and was not copied"])
            found.kind, found.file, found.position = Kind.WRITTEN, copies(file.path), _position(file)
        else:
            found.kind, found.file, found.position = Kind.COPY, files(file.path), _position(file)
        first.setdefault(item.file_id, item.fd)
        flat.descriptors.append(found)
    flat.written = copies.names


def _position(file: File) -> int:
    return file.position if file.kind == FileKind.REGULAR else 0


def _park(mapped: Sequence[Vma]) -> int:
    """An address around which nothing is mapped, with room for the largest image there can be."""
    size = PARK_ROOM + (64 << 20) + _PARK_DISTANCE
    taken = [(0, PAGE_SIZE), *((vma.start, vma.end) for vma in mapped), (USER_END, USER_END)]
    for (_, low), (high, _) in pairwise(taken):
        for park in range((low // _PARK_STEP + 1) * _PARK_STEP, high - size, _PARK_STEP):
            if park - low > _PARK_DISTANCE and 0x100000000000 <= park < 0x500000000000:
                return park
    raise NotFlat(["no free range of addresses for the restorer"])
