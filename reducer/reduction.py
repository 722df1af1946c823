# SPDX-License-Identifier: Apache-2.0
"""Taking the untouched pages out of a checkpoint.

`drop` removes them from page map and pages image: at restore they are zero pages on demand. `zero` is the thesis's
way: they stay and become zeros, so that the layout of the images is what CRIU wrote.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from checkpoint.capture.stored import NAME as STATE_NAME
from checkpoint.capture.stored import write_state
from checkpoint.criu.pagemap import write_pagemap
from checkpoint.flat.file_names import SHARED_PAGES, deleted_name
from checkpoint.flat.image import NAME as FLAT_NAME
from checkpoint.linux import PAGE_SIZE
from checkpoint.private_file import copy_private, create_private
from checkpoint.state.process_state import PageRun, ProcessState
from reducer.choices import Reduction
from reducer.output_file import storage_errors
from reducer.touched_set import with_positions

_CHUNK = 1 << 22


@dataclass(frozen=True)
class Reduced:
    """A reduced checkpoint: its folder, pages kept and pages taken out (as runs)."""

    folder: Path
    kept: int
    dropped: tuple[PageRun, ...]

    @property
    def dropped_pages(self) -> int:
        return sum(run.pages for run in self.dropped)


def reduce_checkpoint(images: ProcessState, keep: npt.NDArray[np.bool_], folder: Path, how: Reduction) -> Reduced:
    """Write the checkpoint to `folder` (new) with only the pages that `keep` flags. StorageError on a full disk.

    `keep` has one flag per page in the order of the pages image. On any error `folder` is removed.
    """
    kept_runs, dropped = _split(images, keep)
    with storage_errors("write", folder, int(keep.sum()) * PAGE_SIZE):
        folder.mkdir(mode=0o700, parents=True)
        try:
            target = folder / images.pages_image.name
            _write_description(images, folder, kept_runs if how == "drop" else None)
            if how == "drop":
                _copy_pages(images.pages_image, target, keep)
            else:
                _zero_pages(images.pages_image, target, keep)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return Reduced(folder, int(keep.sum()), tuple(dropped))


def _write_description(images: ProcessState, folder: Path, runs: Sequence[PageRun] | None) -> None:
    """Everything but the pages, with the page map `runs` (None: as it is)."""
    if (images.folder / STATE_NAME).exists():
        write_state(replace(images, folder=folder, page_runs=images.page_runs if runs is None else tuple(runs)))
        for number in {n for n in images.removed_files.values() if n is not None}:
            copy_private(images.folder / deleted_name(number), folder / deleted_name(number))
        if images.shared_pages:
            copy_private(images.folder / SHARED_PAGES, folder / SHARED_PAGES)
        return
    for path in images.folder.glob("*.img"):
        if path.name not in (images.pages_image.name, FLAT_NAME):
            copy_private(path, folder / path.name)
    if runs is not None:
        write_pagemap(folder / f"pagemap-{images.pid}.img", images.pages_id, runs)


def _split(images: ProcessState, keep: npt.NDArray[np.bool_]) -> tuple[list[PageRun], list[PageRun]]:
    """The page map's runs cut into those kept and those dropped."""
    kept: list[PageRun] = []
    dropped: list[PageRun] = []
    for run, first in with_positions(images.page_runs):
        for low, high, flag in _stretches(keep[first : first + run.pages]):
            part = PageRun(run.vaddr + low * PAGE_SIZE, high - low, run.flags)
            (kept if flag else dropped).append(part)
    return kept, dropped


def _stretches(flags: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int, bool]]:
    """(first, end, value) of each stretch of equal flags."""
    if not len(flags):
        return
    edges = np.flatnonzero(flags[1:] != flags[:-1]) + 1
    bounds = [0, *edges.tolist(), len(flags)]
    for low, high in itertools.pairwise(bounds):
        yield low, high, bool(flags[low])


def _copy_pages(source: Path, target: Path, keep: npt.NDArray[np.bool_]) -> None:
    with source.open("rb") as pages, create_private(target, buffering=0) as out:
        for low, high, flag in _stretches(keep):
            if flag:
                _copy(pages, out, low * PAGE_SIZE, (high - low) * PAGE_SIZE)


def _zero_pages(source: Path, target: Path, keep: npt.NDArray[np.bool_]) -> None:
    """As `_copy_pages`, but with holes for what is dropped: holes read as zeros."""
    with source.open("rb") as pages, create_private(target, buffering=0) as out:
        out.truncate(len(keep) * PAGE_SIZE)
        for low, high, flag in _stretches(keep):
            if flag:
                out.seek(low * PAGE_SIZE)
                _copy(pages, out, low * PAGE_SIZE, (high - low) * PAGE_SIZE)


def _copy(source: IO[bytes], out: IO[bytes], offset: int, size: int) -> None:
    while size:
        done = os.sendfile(out.fileno(), source.fileno(), offset, min(size, _CHUNK))
        if not done:
            raise OSError(f"{source.name}: ends before its page map does")
        offset += done
        size -= done
