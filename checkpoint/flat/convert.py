# SPDX-License-Identifier: Apache-2.0
"""Convert a captured process to the flat phase image of the direct restorer.

What that restorer cannot bring back is refused here, by name: such a phase is for CRIU alone.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from checkpoint.binary.vdso import NotAVdso
from checkpoint.criu.unsupported import unsupported
from checkpoint.event import EVENT_BYTES
from checkpoint.flat.descriptors import NotFlat, Numbered, name_of, open_descriptors
from checkpoint.flat.image import (
    LIMITS,
    MAX_BYTES,
    MOST_THREADS,
    PARK_ROOM,
    SIGNALS,
    THREAD_ROOM,
    USER_END,
    VDSO_ROOM,
    Action,
    FlatImage,
    Header,
    Layout,
    Limit,
    Mapping,
    Registers,
    Run,
    Thread,
    Timer,
)
from checkpoint.flat.shared_memory import object_mapping, put_shared
from checkpoint.flat.vdso import CLOCKS, with_system_calls
from checkpoint.linux import ADDR_NO_RANDOMIZE, MAP_GROWSDOWN, MAP_NORESERVE, PAGE_SIZE
from checkpoint.state.process_state import (
    ExtendedState,
    OtherThread,
    ProcessState,
    SignalState,
    ThreadState,
    Vma,
    VmaStatus,
)

_NOT_MAPPED = VmaStatus.VVAR | VmaStatus.VSYSCALL | VmaStatus.GUARD
_NO_LIMIT = (1 << 64) - 1
_NO_EXE = (1 << 32) - 1
_NODES = (0,) * CLOCKS
"""For clocks that are the node's."""
LARGEST_PARK = PARK_ROOM + MAX_BYTES + THREAD_ROOM * MOST_THREADS + VDSO_ROOM
"""Bytes of the park that the largest image needs."""
_PARK_STEP = 1 << 40
"""The park is at a multiple of this: far from where a kernel loads programs, libraries and stacks."""
_PARK_DISTANCE = 1 << 21

_X87_AND_SSE = 3
_XSAVE_PARTS = ((2, "ymm_high"), (5, "opmask"), (6, "zmm_high"), (7, "zmm_more"))
"""Extended state: number of the component, field of state and header."""
_OTHER_PARTS = {0, 1, 8, 9}
"""x87, SSE, the processor's trace (the kernel's own), protection keys."""
_HARMLESS_PKRU = (0, 0x55555554)
"""No key restricted; the kernel's default, which restricts keys that nobody has: or one that a program keeps shut."""


def uses_protection_keys(images: ProcessState) -> bool:
    """Whether a thread restricts its access to memory by keys. A restored process has none: its pages are as open as
    their mappings, the instructions for the keys work, and pkey_mprotect(2) with a key from before fails."""
    threads = (images.extended, *(one.extended for one in images.others))
    return any(one.protection_keys not in (None, *_HARMLESS_PKRU) for one in threads)


def flatten(
    images: ProcessState,
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
    files = Numbered()
    flat.mappings = [_mapping(vma, images, files, huge) for vma in mapped]
    flat.runs = [Run(run.vaddr, run.pages) for run in images.page_runs]
    flat.patches, flat.clocks = _patched_vdso(images)
    flat.stamps = sorted({page for event in events for page in _pages(event)})
    readable = [vma for vma in mapped if vma.prot & mmap.PROT_READ]
    ends = [vma.end for vma in readable]
    flat.touch_order = [
        page for page in touched if (at := bisect_right(ends, page)) < len(ends) and readable[at].start <= page
    ]
    flat.calls = sorted(set(calls))
    _process(flat, images)
    _processor(flat.header, images.registers, images.extended)
    flat.threads = [_thread(one) for one in images.others]
    put_shared(flat, images, files)
    open_descriptors(flat, images, files, outputs, written)
    flat.files = files.names
    flat.header.park = _park(mapped)
    return flat


def _own_reasons(images: ProcessState) -> Iterator[str]:
    """What CRIU restores and the direct restorer does not."""
    for vma in images.vmas:
        if vma.status & VmaStatus.GUARD:
            yield f"guard pages at {vma.start:#x}-{vma.end:#x}"
        elif vma.end > USER_END and not vma.status & VmaStatus.VSYSCALL:
            yield f"memory at {vma.start:#x}, beyond 47-bit addresses (5-level paging)"
    if images.posix_timers:
        yield "POSIX timers (timer_create)"
    for extended in (images.extended, *(one.extended for one in images.others)):
        yield from _extended_reasons(extended)
    # Kernel threads of a process may not be dumped at all; its 32-bit segments would be.
    if images.segments:
        yield "thread-local storage in the global descriptor table (32-bit code)"


def _extended_reasons(extended: ExtendedState) -> Iterator[str]:
    if extended.shadow_stack:
        yield "a shadow stack"
    known = _OTHER_PARTS | {number for number, _ in _XSAVE_PARTS}
    for number in range(64):
        if extended.in_use >> number & 1 and number not in known:
            yield f"part {number} of the processor's extended state"


def _pages(event: int) -> Iterator[int]:
    first, last = event // PAGE_SIZE, (event + EVENT_BYTES - 1) // PAGE_SIZE
    return (page * PAGE_SIZE for page in range(first, last + 1))


def _mapping(vma: Vma, images: ProcessState, files: Numbered, huge: Sequence[tuple[int, int]]) -> Mapping:
    shared = bool(vma.status & VmaStatus.FILE_SHARED or (vma.is_memory and vma.flags & mmap.MAP_SHARED))
    had_huge = vma.advice >> mmap.MADV_HUGEPAGE & 1 or any(start < vma.end and vma.start < end for start, end in huge)
    return Mapping(
        start=vma.start,
        end=vma.end,
        file_offset=vma.file_offset if vma.is_file or vma.is_memory else 0,
        advice=vma.advice,
        prot=vma.prot,
        flags=(mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | vma.flags & (MAP_GROWSDOWN | MAP_NORESERVE),
        file=files(name_of(images, vma.file_id)) + 1 if vma.is_file else object_mapping(vma, images),
        small=int(not had_huge),
    )


def _patched_vdso(images: ProcessState) -> tuple[list[tuple[int, bytes]], int]:
    """The patch, and the address of its table of clocks. Threads may wait for each other until a time that the kernel
    tells: theirs are the node's, as those that nobody noted."""
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
            patched, table = with_system_calls(data, (() if images.others else images.clocks) or _NODES)
        except NotAVdso as error:
            raise NotFlat([str(error)]) from error
        return [(vma.start, patched)], vma.start + table if table else 0
    return [], 0


def _process(flat: FlatImage, images: ProcessState) -> None:
    header, signals = flat.header, images.signals
    _kept(header, signals, images.thread, images.comm)
    # CRIU 4.1 reads the kernel's hexadecimal number as a decimal one. Every program is captured under this one.
    header.personality = ADDR_NO_RANDOMIZE
    header.umask = images.umask
    header.no_huge_pages = images.no_huge_pages
    header.cwd = flat.string(images.files[images.cwd_file_id].path)
    numbers = [n for n in range(1, SIGNALS + 1) if n not in (signal.SIGKILL, signal.SIGSTOP)]
    if len(signals.actions) != len(numbers):
        raise NotFlat([f"actions of {len(signals.actions)} signals where {len(numbers)} are known"])
    for number, action in zip(numbers, signals.actions, strict=True):
        header.actions[number - 1] = Action(*action)
    limits = images.limits
    for number in range(LIMITS):
        header.limits[number] = Limit(*limits[number]) if number < len(limits) else Limit(_NO_LIMIT, _NO_LIMIT)
    for number, timer in enumerate(images.timers):
        header.timers[number] = Timer(*timer)
    header.mm = Layout(*(getattr(images.layout, name) for name, *_ in Layout._fields_[:11]), 0, 0, _NO_EXE)


def _thread(one: OtherThread) -> Thread:
    said = Thread()
    _kept(said, one.signals, one.thread, one.comm)
    _processor(said, one.registers, one.extended)
    return said


def _kept(header: Header | Thread, signals: SignalState, thread: ThreadState, comm: str) -> None:
    """What the kernel keeps of a thread."""
    header.blocked_signals = signals.blocked
    header.stack_pointer, header.stack_size = signals.stack_address, signals.stack_size
    header.stack_flags = signals.stack_flags
    header.clear_tid = thread.clear_tid
    header.robust_list, header.robust_size = thread.robust_list, thread.robust_size
    header.rseq, header.rseq_size, header.rseq_signature = thread.rseq, thread.rseq_size, thread.rseq_signature
    name = comm.encode("utf-8", "surrogateescape")[:15]
    ctypes.memmove(header.name, name, len(name))


def _processor(header: Header | Thread, registers: dict[str, int], extended: ExtendedState) -> None:
    header.registers = Registers(*(registers[name] for name, *_ in Registers._fields_))
    _fill(header.legacy, extended.legacy)
    # Both always: without SSE's bit the kernel would load its own MXCSR. Of the others, all zero is how they start:
    # left out, they are the same, and the processor need not have them.
    header.xstate = _X87_AND_SSE
    for number, name in _XSAVE_PARTS:
        data = getattr(extended, name)
        if extended.in_use >> number & 1 and any(data):
            header.xstate |= 1 << number
            _fill(getattr(header, name), data)


def _fill(array: ctypes.Array[ctypes.c_uint8], data: bytes) -> None:
    if len(data) > len(array):
        raise NotFlat([f"{len(data)} bytes of processor state where {len(array)} are known"])
    ctypes.memmove(array, data, len(data))


def _park(mapped: Sequence[Vma]) -> int:
    """An address around which nothing is mapped, with room for the largest image there can be."""
    size = LARGEST_PARK + _PARK_DISTANCE
    taken = [(0, PAGE_SIZE), *((vma.start, vma.end) for vma in mapped), (USER_END, USER_END)]
    for (_, low), (high, _) in pairwise(taken):
        for park in range((low // _PARK_STEP + 1) * _PARK_STEP, high - size, _PARK_STEP):
            if park - low > _PARK_DISTANCE and 0x100000000000 <= park < 0x500000000000:
                return park
    raise NotFlat(["no free range of addresses for the restorer"])
