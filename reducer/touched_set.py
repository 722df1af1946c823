# SPDX-License-Identifier: Apache-2.0
"""The touched set of a phase: the pages it needs, found by restoring it lazily once.

The thesis took it from a Pin trace and lost six phases of one program to accesses across a page border. The kernel's
own page faults miss nothing: both pages of such an access fault, and so does a page that only a system call writes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from checkpoint.criu.tool import Criu
from checkpoint.flat.image import FlatImage
from checkpoint.linux import PAGE_SIZE
from checkpoint.restore.criu_restore import PageDropped, RestoreJob, observe_touches
from checkpoint.restore.observation import observe
from checkpoint.state.process_state import PAGE_LAZY, PageRun, ProcessState, VmaStatus

MARGIN_SHARE = 0.1
"""The phase runs on for this share of its region behind the end, so that a slightly longer region finds its pages."""

STATIC_BYTES = 256 << 10
"""Of zeroed static data behind each mapped image, and of a heap that joins it, pages are kept up to here."""

_RED_ZONE = 128


@dataclass(frozen=True)
class TouchedSet:
    """Pages touched from the warm-up's start to the margin behind the region, in order of the first touch.

    `address` (page aligned) and `written` (the first touch was a write) have one length. `in_groups`: neighbours of
    touched pages are among them, since the kernel shows no single ones.
    """

    address: npt.NDArray[np.uint64]
    written: npt.NDArray[np.bool_]
    in_groups: bool = False

    def __len__(self) -> int:
        return len(self.address)


def record_touched_set(
    job: RestoreJob, images: ProcessState, criu: Criu, *, scratch: Path, region_seconds: float
) -> TouchedSet:
    """Restore the phase lazily and note every first touch. Errors as checkpoint.restore.criu_restore.time_phase."""
    found = observe_touches(
        job, criu, images.page_runs, images.pages_image, scratch=scratch, margin=MARGIN_SHARE * region_seconds
    )
    raw = np.array(found, dtype=np.uint64)
    page = raw & ~np.uint64(PAGE_SIZE - 1)
    _, first = np.unique(page, return_index=True)
    first.sort()
    return TouchedSet(page[first], (raw[first] & np.uint64(1)).astype(bool))


def record_touched_directly(
    job: RestoreJob, images: ProcessState, flat: FlatImage, restorer: Path, *, scratch: Path, region_seconds: float
) -> TouchedSet:
    """The same by the direct restorer, as any user: pages in the order of their addresses, and all of the stack, which
    cannot be mapped from a file. Raises PhaseFailed, NodeUnfit."""
    spans = [(run.vaddr, run.pages) for run in images.page_runs if run.flags & PAGE_LAZY]
    found = observe(
        job, flat, images.pages_image, restorer, spans, lazily=True, scratch=scratch,
        margin=MARGIN_SHARE * region_seconds,
    )  # fmt: skip
    pages = np.array(found.pages, dtype=np.uint64)
    return TouchedSet(pages, np.isin(pages, np.array(found.written, dtype=np.uint64)), found.in_groups)


def check_reduced_directly(
    job: RestoreJob,
    reduced: ProcessState,
    flat: FlatImage,
    restorer: Path,
    dropped: Sequence[PageRun],
    *,
    scratch: Path,
) -> None:
    """Restore the reduced phase once as usual, and look which of its dropped pages were asked for all the same. Raises
    PageDropped, PhaseFailed, NodeUnfit."""
    spans = [(run.vaddr, run.pages) for run in dropped]
    found = observe(job, flat, reduced.pages_image, restorer, spans, lazily=False, scratch=scratch)
    if found.pages:
        address = found.pages[0]
        raise PageDropped(f"phase {job.phase}: the page at {address:#x} was dropped and is asked for", address)


def check_reduced(
    job: RestoreJob, reduced: ProcessState, dropped: Sequence[PageRun], criu: Criu, *, scratch: Path
) -> None:
    """Restore the reduced phase once with a guard on every dropped page. Raises PageDropped, or as time_phase."""
    guard = [(run.vaddr, run.pages) for run in dropped]
    observe_touches(job, criu, reduced.page_runs, reduced.pages_image, scratch=scratch, margin=0.0, dropped=guard)


def pages_to_keep(images: ProcessState, touched: TouchedSet) -> npt.NDArray[np.bool_]:
    """One flag per page of the pages image, in its order.

    Kept besides the touched ones: everything CRIU does not restore lazily (copied file pages, the vDSO: without its
    own page a private file mapping would silently show the file's bytes), the top of the stack, the thread's area, the
    area of restartable sequences, which the kernel writes whenever it takes the processor away, and the images' zeroed
    static data. A program that reports its progress by the clock finds its streams there, in one run alone.
    """
    keep = np.zeros(images.pages, dtype=bool)
    wanted = np.union1d(touched.address, np.array(sorted(_always_kept(images)), dtype=np.uint64))
    for run, first in with_positions(images.page_runs):
        if not run.flags & PAGE_LAZY:
            keep[first : first + run.pages] = True
            continue
        low, high = np.searchsorted(wanted, np.array([run.vaddr, run.end], dtype=np.uint64))
        inside = (wanted[low:high] - np.uint64(run.vaddr)) // np.uint64(PAGE_SIZE)
        keep[first + inside.astype(np.int64)] = True
    return keep


def _always_kept(images: ProcessState) -> set[int]:
    """Pages (addresses) that the kernel or the loader's code may touch in one run and not in the next."""
    areas = []
    if stack := images.registers.get("sp"):
        areas.append((stack - _RED_ZONE, stack + 1))
    if base := images.registers.get("fs_base"):
        areas.append((base, base + 1))
    thread = images.thread
    if thread.rseq:
        areas.append((thread.rseq, thread.rseq + max(thread.rseq_size, 1)))
    for before, behind in itertools.pairwise(images.vmas):
        zeroed = before.status & VmaStatus.FILE_PRIVATE and behind.status & VmaStatus.ANON_PRIVATE
        if zeroed and before.end == behind.start:
            areas.append((behind.start, min(behind.end, behind.start + STATIC_BYTES)))
    return {page for start, end in areas for page in range(start & -PAGE_SIZE, end, PAGE_SIZE)}


def with_positions(runs: Sequence[PageRun]) -> Iterator[tuple[PageRun, int]]:
    """Each run with the position of its first page in the pages image."""
    position = 0
    for run in runs:
        yield run, position
        position += run.pages
