# SPDX-License-Identifier: Apache-2.0
"""Capture directly wherever `probe build --capture criu` lets CRIU dump, and note what differs.

`HOOKED` is what runs the `probe` command with that: both captures are of one stop of one process.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from checkpoint.capture.direct import Captured, capture_process
from checkpoint.criu.tool import Criu
from checkpoint.errors import ProbeError
from checkpoint.linux import PAGE_SIZE
from checkpoint.process.tracee import Tracee
from checkpoint.state.process_state import FileKind, ProcessState, Vma, VmaStatus, file_mappings
from probe.pipeline.runs import standing

HOOKED = "from benchmarks.rootless.both import compare_stops; compare_stops({path!r})"

ALLOWED = (
    "pages of zeros, which CRIU leaves out",
    "pages equal to their files', into which CRIU put a system call and took it out again",
    "MADV_WIPEONFORK, which CRIU does not note",
    "what is left of an interval timer: time goes on between both",
    "the kernel's own mappings [vvar] and [vsyscall]",
)
"""Differences that are none."""

_NAMED = 4
"""Missing pages of a stop that are named."""

_WIPE_ON_FORK = 1 << 18
_KERNEL_OWNED = VmaStatus.VVAR | VmaStatus.VSYSCALL
_SHARED_PRIVATE_FIXED = 0x10F
"""Flags of mmap(2) that both note: sharing, and growing down."""

Record = dict[str, Any]
Pages = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]


def compare_stops(record: str) -> None:
    """Let each dump by CRIU from here on be compared, as a line of JSON in the file `record`."""
    by_criu = standing.dump_process

    def both(tracee: Tracee, folder: Path, criu: Criu) -> Captured:
        own = folder.with_name(f"{folder.name}-directly")
        own.mkdir(mode=0o700)
        try:
            try:
                state = capture_process(tracee, own, folder.name).state
            except ProbeError as error:
                _note(record, {"phase": folder.name, "refused": str(error)})
                return by_criu(tracee, folder, criu)
            done = by_criu(tracee, folder, criu)
            _note(record, {"phase": folder.name, **differences(state, done.state)})
            return done
        finally:
            shutil.rmtree(own)

    standing.dump_process = both


def _note(record: str, found: Record) -> None:
    with Path(record).open("a") as file:
        file.write(json.dumps(found) + "\n")


def differences(direct: ProcessState, criu: ProcessState) -> Record:
    """Names of the parts of the header that differ, and numbers of pages: that both hold, that one alone holds, that
    hold something else. `zeros`: pages that only the direct capture holds, and that are zero. `unwritten`: that only
    CRIU's holds, and that are as in their files."""
    ours, theirs = pages(direct), pages(criu)
    both, mine, others = np.intersect1d(ours[0], theirs[0], assume_unique=True, return_indices=True)
    extra = np.setdiff1d(np.arange(len(ours[0])), mine)
    filled = sum(bool(ours[1][at].any()) for at in extra)
    lacking = np.setdiff1d(np.arange(len(theirs[0])), others)
    changed = np.array([at for at in lacking if not _as_in_file(criu, int(theirs[0][at]), theirs[1][at])], dtype=int)
    return {
        "header": [name for name, (one, other) in _parts(direct, criu).items() if one != other],
        "pages": len(both),
        "missing": len(changed),
        "unwritten": len(lacking) - len(changed),
        "extra": filled,
        "zeros": len(extra) - filled,
        "contents": _unequal(ours[1], mine, theirs[1], others),
        "places": _places(criu, theirs[0][changed]),
    }


def _mapping_at(state: ProcessState, address: int) -> Vma | None:
    return next((vma for vma in state.vmas if vma.start <= address < vma.end), None)


def _as_in_file(state: ProcessState, address: int, contents: npt.NDArray[np.uint8]) -> bool:
    vma = _mapping_at(state, address)
    if vma is None or not vma.is_file:
        return False
    try:
        with Path(state.files[vma.file_id].path).open("rb") as file:
            file.seek(vma.file_offset + address - vma.start)
            return file.read(PAGE_SIZE).ljust(PAGE_SIZE, b"\0") == contents.tobytes()
    except OSError:
        return False  # removed while it is mapped


def _places(state: ProcessState, addresses: npt.NDArray[np.uint64]) -> list[str]:
    """Where pages are that are missing, a few of them: their mappings, and how far from their starts."""
    found = []
    for address in addresses[:_NAMED].tolist():
        vma = _mapping_at(state, address)
        if vma is None:
            found.append(f"{address:#x} in no mapping")
            continue
        name = state.files[vma.file_id].path if vma.is_file else f"status {vma.status:#x}"
        found.append(f"{address:#x} in {vma.start:#x}-{vma.end:#x}, {name}, protection {vma.prot}")
    return found


def _unequal(
    ours: npt.NDArray[np.uint8], mine: Any, theirs: npt.NDArray[np.uint8], others: Any, step: int = 4096
) -> int:
    """How many of these pages differ; `step` of them are looked at together."""
    return sum(
        int((ours[mine[at : at + step]] != theirs[others[at : at + step]]).any(axis=1).sum())
        for at in range(0, len(mine), step)
    )


def pages(state: ProcessState) -> Pages:
    """Addresses, (N,), and contents, (N, PAGE_SIZE), of all pages held."""
    if not state.pages:
        return np.zeros(0, dtype=np.uint64), np.zeros((0, PAGE_SIZE), dtype=np.uint8)
    addresses = [run.vaddr + PAGE_SIZE * np.arange(run.pages, dtype=np.uint64) for run in state.page_runs]
    contents = np.memmap(state.pages_image, dtype=np.uint8, mode="r").reshape(-1, PAGE_SIZE)
    return np.concatenate(addresses).astype(np.uint64), contents


def _parts(direct: ProcessState, criu: ProcessState) -> dict[str, tuple[Any, Any]]:
    return {
        "registers": (direct.registers, criu.registers),
        "vector registers": (_vectors(direct), _vectors(criu)),
        "signals": (direct.signals, criu.signals),
        "thread": (direct.thread, criu.thread),
        "layout": (direct.layout, criu.layout),
        "limits": (direct.limits, criu.limits),
        "name": (direct.comm, criu.comm),
        "umask": (direct.umask, criu.umask),
        "huge pages": (direct.no_huge_pages, criu.no_huge_pages),
        "timers": ([t[:2] for t in direct.timers], [t[:2] for t in criu.timers]),
        "mappings": (_mappings(direct), _mappings(criu)),
        "mapped files": (file_mappings(direct), file_mappings(criu)),
        "descriptors": (_descriptors(direct), _descriptors(criu)),
    }


def _vectors(state: ProcessState) -> tuple[object, ...]:
    """Of CRIU's dump a component that is not in use is zeros, of ours it is not there: the processor loads the same."""
    one = state.extended
    parts = (one.ymm_high, one.opmask, one.zmm_high, one.zmm_more)
    used = (part if any(part) else b"" for part in parts)
    return (one.in_use, one.legacy, *used, one.protection_keys, one.shadow_stack)


def _mappings(state: ProcessState) -> list[tuple[int, ...]]:
    return [
        (
            vma.start, vma.end, vma.prot, vma.flags & _SHARED_PRIVATE_FIXED,
            vma.file_offset * (vma.is_file or vma.is_memory), vma.advice & ~_WIPE_ON_FORK,
        )
        for vma in state.vmas if not vma.status & _KERNEL_OWNED
    ]  # fmt: skip


def _descriptors(state: ProcessState) -> list[tuple[object, ...]]:
    found = []
    for item in sorted(state.descriptors, key=lambda d: d.fd):
        file = state.files[item.file_id]
        same = min(d.fd for d in state.descriptors if d.file_id == item.file_id)
        known = (file.path, file.flags, file.position, file.mode) if file.kind == FileKind.REGULAR else ()
        found.append((item.fd, item.flags, same, file.kind, *known))
    return found


def summary(lines: Iterable[str]) -> Record:
    """Of all stops of a program: how many, the parts that ever differed, and sums of pages."""
    stops = [json.loads(line) for line in lines]
    compared: Sequence[Record] = [stop for stop in stops if "refused" not in stop]
    return {
        "stops": len(compared),
        "refused": sorted({stop["refused"] for stop in stops if "refused" in stop}),
        "header": sorted({name for stop in compared for name in stop["header"]}),
        "places": sorted({place for stop in compared for place in stop["places"]}),
        **{
            key: sum(stop[key] for stop in compared)
            for key in ("pages", "missing", "extra", "zeros", "unwritten", "contents")
        },
    }  # fmt: skip
