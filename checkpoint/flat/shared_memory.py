# SPDX-License-Identifier: Apache-2.0
"""Convert shared memory and pending signals of a captured process to what the direct restorer makes anew."""

from __future__ import annotations

import ctypes
from bisect import bisect_right

from checkpoint.flat.descriptors import NotFlat, Numbered
from checkpoint.flat.file_names import SHARED_PAGES
from checkpoint.flat.image import MOST_OBJECTS, MOST_PENDING, OF_OBJECT, FlatImage, MemoryObject, Pending, Piece, Run
from checkpoint.linux import PAGE_SIZE
from checkpoint.state.process_state import ProcessState, Vma
from checkpoint.state.shared_memory import SharedMemory

_MEMFD = "/memfd:"
_LONGEST_NAME = 240
"""Bytes of a name that memfd_create(2) takes, about."""


def numbered_objects(images: ProcessState) -> dict[int, int]:
    """Positions of pieces of shared memory in the image by their numbers in `images`."""
    return {one.number: position for position, one in enumerate(images.shared)}


def object_mapping(vma: Vma, images: ProcessState) -> int:
    """What a mapping of shared memory has as its file; 0 for any other."""
    if not vma.is_memory:
        return 0
    return OF_OBJECT | numbered_objects(images)[vma.file_id]


def put_shared(flat: FlatImage, images: ProcessState, files: Numbered) -> None:
    """Put shared memory and pending signals of `images` into `flat`; `files`: copies by name. Raises NotFlat."""
    if len(images.shared) > MOST_OBJECTS:
        raise NotFlat([f"{len(images.shared)} pieces of shared memory, where at most {MOST_OBJECTS} are restored"])
    if len(images.queued) > MOST_PENDING:
        raise NotFlat([f"{len(images.queued)} pending signals, where at most {MOST_PENDING} are sent again"])
    for position, one in enumerate(images.shared):
        flat.objects.append(MemoryObject(one.size, flat.string(_name(one)), one.mode, one.seals))
        flat.pieces += [Piece(position, 0, offset, pages) for offset, pages in one.pieces]
    if images.shared_pages:
        flat.contents_file = files(SHARED_PAGES)
    flat.present = list(_present(images))
    for signal in images.queued:
        entry = Pending(int(signal.to_thread), 0)
        ctypes.memmove(entry.information, signal.information, len(entry.information))
        flat.pending.append(entry)


def _name(one: SharedMemory) -> str:
    """What memfd_create is told, which /proc then shows."""
    name = one.name.removeprefix(_MEMFD).encode("utf-8", "surrogateescape")
    return name[:_LONGEST_NAME].decode("utf-8", "surrogateescape")


def _present(images: ProcessState) -> list[Run]:
    """Pages to be asked for in advance: those that the page table had, up to the end of the memory."""
    sizes = {one.number: -(-one.size // PAGE_SIZE) * PAGE_SIZE for one in images.shared}
    mapped = sorted((vma for vma in images.vmas if vma.is_memory), key=lambda vma: vma.start)
    starts = [vma.start for vma in mapped]
    found = []
    for address, pages in sorted(images.present):
        at = bisect_right(starts, address) - 1
        if at >= 0 and address < mapped[at].end:
            vma = mapped[at]
            end = min(address + pages * PAGE_SIZE, vma.end, vma.start + sizes[vma.file_id] - vma.file_offset)
            if address < end:
                found.append(Run(address, (end - address) // PAGE_SIZE))
    return found
