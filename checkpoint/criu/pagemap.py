# SPDX-License-Identifier: Apache-2.0
"""The page map of a checkpoint: which addresses the raw pages of pages-N.img belong to.

The pages image has no offsets, only pages in page map order: taking pages out means rewriting both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from checkpoint.criu.entries import damaged, read_entries, write_entries
from checkpoint.criu.fields import PagemapEntry, PagemapHead
from checkpoint.criu.protobuf import Field, Message, ProtobufError, WireType
from checkpoint.linux import PAGE_SIZE
from checkpoint.state.process_state import PAGE_LAZY, PAGE_PARENT, PAGE_PRESENT, PageRun

_KNOWN = {
    PagemapEntry.vaddr, PagemapEntry.compat_nr_pages, PagemapEntry.in_parent, PagemapEntry.flags,
    PagemapEntry.nr_pages,
}  # fmt: skip
_U32_MAX = (1 << 32) - 1
_ADDRESS_END = 1 << 64


def read_pagemap(path: Path) -> tuple[int, tuple[PageRun, ...]]:
    """(pages id, runs in rising order) of a pagemap image of CRIU 4.1 or 4.2; ProbeFileDamaged otherwise.

    Refused besides damage: runs that live in a parent image, runs left to a lazy restore, unknown fields
    (newer versions compress pages).
    """
    entries = read_entries(path, "pagemap")
    if not entries:
        raise damaged(path, "it has no head")
    try:
        pages_id = entries[0].integer(PagemapHead.pages_id)
        runs: list[PageRun] = []
        end = 0
        for entry in entries[1:]:
            unknown = entry.numbers() - _KNOWN
            if unknown:
                raise damaged(path, f"field {min(unknown)} of a page run is unknown")
            short = entry.integer(PagemapEntry.compat_nr_pages)
            pages = entry.integer(PagemapEntry.nr_pages, 0)
            run = PageRun(entry.integer(PagemapEntry.vaddr), pages or short, entry.integer(PagemapEntry.flags, 0))
            if short and pages and short != pages:
                raise damaged(path, f"the run at {run.vaddr:#x} has two lengths, {short} and {pages}")
            if run.flags & PAGE_PARENT or entry.integer(PagemapEntry.in_parent, 0):
                raise damaged(path, "its pages are in a parent image (incremental dumps are not supported)")
            if run.flags not in (PAGE_PRESENT, PAGE_PRESENT | PAGE_LAZY):
                raise damaged(path, f"the run at {run.vaddr:#x} has flags {run.flags:#x}")
            if run.vaddr % PAGE_SIZE or run.vaddr < end or not run.pages or run.end > _ADDRESS_END:
                raise damaged(path, f"the run of {run.pages} pages at {run.vaddr:#x} is empty or out of place")
            end = run.end
            runs.append(run)
    except ProtobufError as error:
        raise damaged(path, str(error)) from error
    return pages_id, tuple(runs)


def write_pagemap(path: Path, pages_id: int, runs: Sequence[PageRun]) -> None:
    """Write a pagemap image that CRIU 4.1 and 4.2 both read; StorageError if it cannot be written.

    4.1 takes a run's length from compat_nr_pages, 4.2 from nr_pages, and either fails without its own.
    """
    entries = [Message([Field(PagemapHead.pages_id, WireType.VARINT, pages_id)])]
    for run in runs:
        if run.pages > _U32_MAX:
            raise ValueError(f"a run of {run.pages} pages is longer than a page map can say")
        values = (
            (PagemapEntry.vaddr, run.vaddr), (PagemapEntry.compat_nr_pages, run.pages),
            (PagemapEntry.flags, run.flags), (PagemapEntry.nr_pages, run.pages),
        )  # fmt: skip
        entries.append(Message([Field(number, WireType.VARINT, value) for number, value in values]))
    write_entries(path, "pagemap", entries)
