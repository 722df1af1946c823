# SPDX-License-Identifier: Apache-2.0
"""The members of a probe that people look at: its table of intervals, what each phase executes and touches."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from elftools.elf.elffile import ELFFile

from checkpoint.capture.stored import read_state
from checkpoint.linux import PAGE_SIZE
from checkpoint.state.process_state import ProcessState, VmaStatus, file_mappings
from probe.formats.arrays import FloatArray
from probe.formats.checkpoints import FlatPhase
from probe.formats.interval_table import MOST_COORDINATES, IntervalTable
from probe.formats.phase_code import MOST_BLOCKS, NO_FILE, PhaseCode, ProbeCode
from probe.formats.profile import Profile
from probe.formats.selection import Selection
from probe.formats.timing import TimedProfile
from probe.selection.clustering import project


def interval_table(rows: sp.csr_array, amounts: FloatArray, timed: TimedProfile, selection: Selection) -> IntervalTable:
    """The table of a run from its vectors (`rows`, N x B), projected as they were for the selection, and the work of
    the intervals (`amounts`, N)."""
    options = selection.options
    coordinates, explained = principal(project(rows, options.dimensions, options.seed))
    return IntervalTable(selection.labels, timed.levels("wall"), timed.levels("cpu"), amounts, coordinates, explained)


def principal(points: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(coordinates, share of the variance along each) of `points`, N x d, along their principal axes.

    Principal component analysis (Pearson 1901) by the eigenvectors of the covariance; at most MOST_COORDINATES. Each
    axis points to where its largest component is positive, so that equal points give equal pictures.
    """
    centred = points - points.mean(axis=0)
    variances, axes = np.linalg.eigh(centred.T @ centred)
    order = np.argsort(variances)[::-1][:MOST_COORDINATES]
    axes = axes[:, order]
    largest = np.abs(axes).argmax(axis=0)
    axes = axes * np.where(axes[largest, np.arange(len(order))] < 0, -1.0, 1.0)
    total = float(np.maximum(variances, 0.0).sum())
    shares = np.maximum(variances[order], 0.0) / total if total > 0 else np.zeros(len(order))
    return centred @ axes, shares


_MOST_MAPPINGS = 64


def phase_code(
    profile: Profile,
    rows: sp.csr_array,
    selection: Selection,
    flat: Sequence[FlatPhase],
    checkpoints: Mapping[int, Path],
    touched: Mapping[int, Path],
) -> ProbeCode:
    """What was found out of each phase. `rows`: vectors of the intervals, N x B. `checkpoints`: its folder; `touched`:
    its list of touched pages, if any."""
    images = _Images(profile)
    found = []
    for phase in flat:
        chosen = next(p for p in selection.phases if p.id == phase.phase)
        sums = np.asarray(rows[chosen.members].sum(axis=0), dtype=np.float64).ravel()
        largest = [int(c) for c in np.argsort(-sums, kind="stable")[:MOST_BLOCKS] if sums[c] > 0]
        checkpoint = read_state(checkpoints[phase.phase])
        pages = np.fromfile(touched[phase.phase], dtype="<u8") if phase.phase in touched else np.zeros(0, dtype="<u8")
        blocks = profile.blocks
        found.append(
            PhaseCode(
                phase.phase,
                float(sums.sum()),
                tuple(
                    (int(blocks.image[c]), int(blocks.start[c]), int(blocks.size[c]), float(sums[c])) for c in largest
                ),
                _seen(phase, checkpoint, images),
                phase.calls,
                phase.all_calls,
                _memory(checkpoint, pages),
            )
        )
    return ProbeCode(tuple(images.known), tuple(found))


class _Images:
    """Numbers images by their paths, and knows where their segments lie."""

    def __init__(self, profile: Profile) -> None:
        self.known = list(profile.images)
        self._segments: dict[str, list[tuple[int, int, int]]] = {}

    def number(self, path: str) -> int:
        for number, (known, _) in enumerate(self.known):
            if known == path:
                return number
        self.known.append((path, ""))
        return len(self.known) - 1

    def address(self, path: str, offset: int) -> int | None:
        """Link-time address of the byte at `offset`; None where the file has no segment there."""
        if path not in self._segments:
            try:
                with open(path, "rb") as file:
                    loads = ELFFile(file).iter_segments("PT_LOAD")
                    self._segments[path] = [(s["p_offset"], s["p_filesz"], s["p_vaddr"]) for s in loads]
            except Exception:  # gone meanwhile, or none of ours: the parser lets nearly anything escape
                self._segments[path] = []
        return next((v + offset - start for start, n, v in self._segments[path] if start <= offset < start + n), None)


def _seen(phase: FlatPhase, checkpoint: ProcessState, images: _Images) -> tuple[tuple[int, int, int], ...]:
    mappings = file_mappings(checkpoint)
    starts = [m.start for m in mappings]
    found: dict[tuple[int, int], int] = {}
    for address, times in phase.seen:
        at = bisect.bisect_right(starts, address) - 1
        place = (NO_FILE, address)
        if at >= 0 and address < mappings[at].end:
            mapping = mappings[at]
            linked = images.address(mapping.path, address - mapping.start + mapping.offset)
            if linked is not None:
                place = (images.number(mapping.path), linked)
        found[place] = found.get(place, 0) + times
    return tuple((image, address, times) for (image, address), times in sorted(found.items()))


def _memory(checkpoint: ProcessState, touched: Any) -> tuple[tuple[str, str, int, int], ...]:
    touched = np.sort(touched & ~np.uint64(PAGE_SIZE - 1))
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for vma in checkpoint.vmas:
        if vma.status & VmaStatus.GUARD:
            continue
        low, high = np.searchsorted(touched, np.array([vma.start, vma.end], dtype=np.uint64))
        place = _kind(vma.status), checkpoint.files[vma.file_id].path if vma.is_file else ""
        mapped, used = sums.get(place, (0, 0))
        sums[place] = mapped + (vma.end - vma.start) // PAGE_SIZE, used + int(high - low)
    largest = sorted(sums.items(), key=lambda item: (-item[1][1], -item[1][0], item[0]))[:_MOST_MAPPINGS]
    return tuple((*place, *pages) for place, pages in largest)


def _kind(status: int) -> str:
    named = (
        (VmaStatus.HEAP, "heap"),
        (VmaStatus.STACK, "stack"),
        (VmaStatus.FILE_PRIVATE | VmaStatus.FILE_SHARED, "file"),
        (VmaStatus.VDSO | VmaStatus.VVAR | VmaStatus.VSYSCALL, "kernel"),
    )
    return next((name for bits, name in named if status & bits), "anonymous")


def touched_name(phase: int) -> str:
    """Name of the probe's member with the touched pages of a phase (probe/pipeline/reduce.py)."""
    return f"touched-{phase}"
