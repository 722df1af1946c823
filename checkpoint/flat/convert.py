# SPDX-License-Identifier: Apache-2.0
"""Convert a CRIU checkpoint to the flat phase image of the direct restorer.

What that restorer cannot bring back is refused here, by name: such a phase is for CRIU alone.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import struct
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from checkpoint.criu.fields import (
    CoreEntry,
    ItimerEntry,
    MmEntry,
    RlimitEntry,
    RseqEntry,
    SaEntry,
    TaskCoreEntry,
    TaskRlimitsEntry,
    TaskTimersEntry,
    ThreadCoreEntry,
    ThreadInfoX86,
    ThreadSasEntry,
    UserDescT,
    UserX86CetEntry,
    UserX86FpregsEntry,
    UserX86XsaveEntry,
)
from checkpoint.criu.images import CheckpointImages, Vma, VmaStatus
from checkpoint.criu.protobuf import Message
from checkpoint.criu.unsupported import unsupported
from checkpoint.event import EVENT_BYTES
from checkpoint.flat.descriptors import NotFlat, Numbered, name_of, open_descriptors
from checkpoint.flat.image import (
    LIMITS,
    PARK_ROOM,
    SIGNALS,
    USER_END,
    Action,
    FlatImage,
    Header,
    Layout,
    Limit,
    Mapping,
    Registers,
    Run,
    Timer,
)
from checkpoint.flat.vdso import NotAVdso, with_system_calls
from checkpoint.linux import ADDR_NO_RANDOMIZE, MAP_GROWSDOWN, MAP_NORESERVE, PAGE_SIZE

_NOT_MAPPED = VmaStatus.VVAR | VmaStatus.VSYSCALL | VmaStatus.GUARD
_NO_LIMIT = (1 << 64) - 1
_NO_EXE = (1 << 32) - 1
_PARK_STEP = 1 << 40
"""The park is at a multiple of this: far from where a kernel loads programs, libraries and stacks."""
_PARK_DISTANCE = 1 << 21

_X87, _SSE = 1, 2
_XSAVE_PARTS = (
    (2, "ymm_high", UserX86XsaveEntry.ymmh_space, "I"), (5, "opmask", UserX86XsaveEntry.opmask_reg, "Q"),
    (6, "zmm_high", UserX86XsaveEntry.zmm_upper, "Q"), (7, "zmm_more", UserX86XsaveEntry.hi16_zmm, "Q"),
)  # fmt: skip
"""Extended state: number of the component, field of the header, field of CRIU's message, format of its values."""
_OTHER_PARTS = {0, 1, 8, 9}
"""x87, SSE, the processor's trace (the kernel's own), protection keys."""
_FXSAVE_WORDS = (UserX86FpregsEntry.cwd, UserX86FpregsEntry.swd, UserX86FpregsEntry.twd, UserX86FpregsEntry.fop)
_FXSAVE_REST = (
    UserX86FpregsEntry.rip, UserX86FpregsEntry.rdp, UserX86FpregsEntry.mxcsr, UserX86FpregsEntry.mxcsr_mask,
)  # fmt: skip
_ACTION = (SaEntry.sigaction, SaEntry.flags, SaEntry.restorer, SaEntry.mask)
_TIMERS = (TaskTimersEntry.real, TaskTimersEntry.virt, TaskTimersEntry.prof)
_TIMER = (ItimerEntry.isec, ItimerEntry.iusec, ItimerEntry.vsec, ItimerEntry.vusec)
_LAYOUT = (
    MmEntry.mm_start_code, MmEntry.mm_end_code, MmEntry.mm_start_data, MmEntry.mm_end_data, MmEntry.mm_start_brk,
    MmEntry.mm_brk, MmEntry.mm_start_stack, MmEntry.mm_arg_start, MmEntry.mm_arg_end, MmEntry.mm_env_start,
    MmEntry.mm_env_end,
)  # fmt: skip
"""Fields of CRIU's messages in the order of our structures."""
_HARMLESS_PKRU = (0, 0x55555554)
"""No key restricted; the kernel's default, which restricts keys that nobody has."""


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
    files = Numbered()
    flat.mappings = [_mapping(vma, images, files, huge) for vma in mapped]
    flat.runs = [Run(run.vaddr, run.pages) for run in images.page_runs]
    flat.patches = list(_patched_vdso(images))
    flat.stamps = sorted({page for event in events for page in _pages(event)})
    readable = [vma for vma in mapped if vma.prot & mmap.PROT_READ]
    ends = [vma.end for vma in readable]
    flat.touch_order = [
        page for page in touched if (at := bisect_right(ends, page)) < len(ends) and readable[at].start <= page
    ]
    flat.calls = sorted(set(calls))
    _process(flat, images)
    _processor(flat.header, images)
    open_descriptors(flat, images, files, outputs, written)
    flat.files = files.names
    flat.header.park = _park(mapped)
    return flat


def _own_reasons(images: CheckpointImages) -> Iterator[str]:
    """What CRIU restores and the direct restorer does not."""
    for vma in images.vmas:
        if vma.status & VmaStatus.GUARD:
            yield f"guard pages at {vma.start:#x}-{vma.end:#x}"
        elif vma.end > USER_END and not vma.status & VmaStatus.VSYSCALL:
            yield f"memory at {vma.start:#x}, beyond 47-bit addresses (5-level paging)"
    timers = _part(images.core, CoreEntry.tc, TaskCoreEntry.timers)
    if timers.messages(TaskTimersEntry.posix):
        yield "POSIX timers (timer_create)"
    information = _part(images.core, CoreEntry.thread_info)
    xsave = _part(information, ThreadInfoX86.fpregs, UserX86FpregsEntry.xsave)
    if _part(xsave, UserX86XsaveEntry.cet).integer(UserX86CetEntry.cet, 0):
        yield "a shadow stack"
    if xsave.integers(UserX86XsaveEntry.pkru)[:1] not in [[], *([v] for v in _HARMLESS_PKRU)]:
        yield "protection keys"
    known = _OTHER_PARTS | {part[0] for part in _XSAVE_PARTS}
    state = xsave.integer(UserX86XsaveEntry.xstate_bv, 0)
    for number in range(64):
        if state >> number & 1 and number not in known:
            yield f"part {number} of the processor's extended state"
    # Kernel threads of a process may not be dumped at all; its 32-bit segments would be.
    if any(segment.integer(UserDescT.usable, 0) for segment in information.messages(ThreadInfoX86.tls)):
        yield "thread-local storage in the global descriptor table (32-bit code)"


def _part(message: Message, *numbers: int) -> Message:
    """The message nested at these field numbers; an empty one where there is none."""
    for number in numbers:
        message = message.message(number) or Message()
    return message


def _pages(event: int) -> Iterator[int]:
    first, last = event // PAGE_SIZE, (event + EVENT_BYTES - 1) // PAGE_SIZE
    return (page * PAGE_SIZE for page in range(first, last + 1))


def _mapping(vma: Vma, images: CheckpointImages, files: Numbered, huge: Sequence[tuple[int, int]]) -> Mapping:
    shared = bool(vma.status & VmaStatus.FILE_SHARED)
    had_huge = vma.advice >> mmap.MADV_HUGEPAGE & 1 or any(start < vma.end and vma.start < end for start, end in huge)
    return Mapping(
        start=vma.start,
        end=vma.end,
        file_offset=vma.file_offset if vma.is_file else 0,
        advice=vma.advice,
        prot=vma.prot,
        flags=(mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | vma.flags & (MAP_GROWSDOWN | MAP_NORESERVE),
        file=files(name_of(images, vma.file_id)) + 1 if vma.is_file else 0,
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
    task, thread = _part(core, CoreEntry.tc), _part(core, CoreEntry.thread_core)
    header.blocked_signals = thread.integer(ThreadCoreEntry.blk_sigset, task.integer(TaskCoreEntry.blk_sigset, 0))
    stack, rseq = _part(thread, ThreadCoreEntry.sas), _part(thread, ThreadCoreEntry.rseq_entry)
    header.stack_pointer = stack.integer(ThreadSasEntry.ss_sp, 0)
    header.stack_size = stack.integer(ThreadSasEntry.ss_size, 0)
    header.stack_flags = stack.integer(ThreadSasEntry.ss_flags, 0)
    header.clear_tid = _part(core, CoreEntry.thread_info).integer(ThreadInfoX86.clear_tid_addr, 0)
    header.robust_list = thread.integer(ThreadCoreEntry.futex_rla, 0)
    header.robust_size = thread.integer(ThreadCoreEntry.futex_rla_len, 0)
    header.rseq = rseq.integer(RseqEntry.rseq_abi_pointer, 0)
    header.rseq_size = rseq.integer(RseqEntry.rseq_abi_size, 0)
    header.rseq_signature = rseq.integer(RseqEntry.signature, 0)
    # CRIU 4.1 reads the kernel's hexadecimal number as a decimal one. Every program is captured under this one.
    header.personality = ADDR_NO_RANDOMIZE
    header.umask = images.umask
    header.no_huge_pages = images.mm.integer(MmEntry.thp_disabled, 0)
    header.cwd = flat.string(images.files[images.cwd_file_id].path)
    name = images.comm.encode("utf-8", "surrogateescape")[:15]
    ctypes.memmove(header.name, name, len(name))
    numbers = [n for n in range(1, SIGNALS + 1) if n not in (signal.SIGKILL, signal.SIGSTOP)]
    actions = task.messages(TaskCoreEntry.sigactions)
    if len(actions) != len(numbers):
        raise NotFlat([f"actions of {len(actions)} signals where {len(numbers)} are known"])
    for number, action in zip(numbers, actions, strict=True):
        header.actions[number - 1] = Action(*(action.integer(field) for field in _ACTION))
    limits = [
        Limit(item.integer(RlimitEntry.cur), item.integer(RlimitEntry.max))
        for item in _part(task, TaskCoreEntry.rlimits).messages(TaskRlimitsEntry.rlimits)
    ]
    for number in range(LIMITS):
        header.limits[number] = limits[number] if number < len(limits) else Limit(_NO_LIMIT, _NO_LIMIT)
    for number, field in enumerate(_TIMERS):
        timer = _part(task, TaskCoreEntry.timers, field)
        header.timers[number] = Timer(*(timer.integer(part, 0) for part in _TIMER))
    header.mm = Layout(*(images.mm.integer(place) for place in _LAYOUT), 0, 0, _NO_EXE)


def _processor(header: Header, images: CheckpointImages) -> None:
    header.registers = Registers(*(images.registers[name] for name, *_ in Registers._fields_))
    fpu = _part(images.core, CoreEntry.thread_info, ThreadInfoX86.fpregs)
    words = [fpu.integer(number) & 0xFFFF for number in _FXSAVE_WORDS]
    data = struct.pack("<4H2Q2I", *words, *(fpu.integer(number) for number in _FXSAVE_REST))
    for field in (UserX86FpregsEntry.st_space, UserX86FpregsEntry.xmm_space):
        data += b"".join(value.to_bytes(4, "little") for value in fpu.integers(field))
    _fill(header.legacy, data)
    xsave = fpu.message(UserX86FpregsEntry.xsave)
    if xsave is None:
        header.xstate = _X87 | _SSE
        return
    # Both always: without SSE's bit the kernel would load its own MXCSR. Of the others, all zero is how they start:
    # left out, they are the same, and the processor need not have them.
    header.xstate = _X87 | _SSE
    for number, name, field, form in _XSAVE_PARTS:
        values = xsave.integers(field)
        if xsave.integer(UserX86XsaveEntry.xstate_bv) >> number & 1 and any(values):
            header.xstate |= 1 << number
            _fill(getattr(header, name), struct.pack(f"<{len(values)}{form}", *values))


def _fill(array: ctypes.Array[ctypes.c_uint8], data: bytes) -> None:
    if len(data) > len(array):
        raise NotFlat([f"{len(data)} bytes of processor state where {len(array)} are known"])
    ctypes.memmove(array, data, len(data))


def _park(mapped: Sequence[Vma]) -> int:
    """An address around which nothing is mapped, with room for the largest image there can be."""
    size = PARK_ROOM + (64 << 20) + _PARK_DISTANCE
    taken = [(0, PAGE_SIZE), *((vma.start, vma.end) for vma in mapped), (USER_END, USER_END)]
    for (_, low), (high, _) in pairwise(taken):
        for park in range((low // _PARK_STEP + 1) * _PARK_STEP, high - size, _PARK_STEP):
            if park - low > _PARK_DISTANCE and 0x100000000000 <= park < 0x500000000000:
                return park
    raise NotFlat(["no free range of addresses for the restorer"])
