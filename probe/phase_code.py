# SPDX-License-Identifier: Apache-2.0
"""What each phase executes, calls and touches: the probe's member `data/code` (docs/probe-format.md).

Made when the probe is packed, read by `probe explain`. Whoever reads it does not trust it.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from elftools.elf.elffile import ELFFile

from checkpoint.errors import ProbeFileDamaged
from checkpoint.images import CheckpointImages, VmaStatus, file_mappings, read_checkpoint
from checkpoint.pagemap import PAGE_SIZE
from probe.flattening import FlatPhase
from probe.profile import Profile
from probe.selected import Selection

CODE_NAME = "code"
FORMAT_VERSION = 1
NO_FILE = -1
"""In place of an image's number: code that is in no file."""

MOST_BLOCKS = 512
"""Blocks of a phase that are kept, those with most instructions."""
MOST_BYTES = 64 << 20
_MOST_MAPPINGS = 64
_LARGEST = 1 << 64


@dataclass(frozen=True)
class PhaseCode:
    """One phase. Positions in `images`, or NO_FILE; link-time addresses.

    instructions    counted ones of all its intervals
    blocks          (image, address, bytes, instructions) of its blocks with most of them
    seen            (image, address, times) of the code that the representative was found in, looked at in equal
                    steps of time, system calls aside; empty where it was not looked at
    calls           (number, times) of the representative's system calls; `all_calls`: none is missing
    memory          (kind, name, pages mapped, pages touched) of its mappings, the most touched first
    """

    id: int
    instructions: float
    blocks: tuple[tuple[int, int, int, float], ...]
    seen: tuple[tuple[int, int, int], ...]
    calls: tuple[tuple[int, int], ...]
    all_calls: bool
    memory: tuple[tuple[str, str, int, int], ...]


@dataclass(frozen=True)
class ProbeCode:
    """All phases, and (path, SHA-256 or "") of the images that they refer to."""

    images: tuple[tuple[str, str], ...]
    phases: tuple[PhaseCode, ...]


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
        checkpoint = read_checkpoint(checkpoints[phase.phase])
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


def _seen(phase: FlatPhase, checkpoint: CheckpointImages, images: _Images) -> tuple[tuple[int, int, int], ...]:
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


def _memory(checkpoint: CheckpointImages, touched: Any) -> tuple[tuple[str, str, int, int], ...]:
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


def encode(code: ProbeCode) -> bytes:
    """The member's bytes."""
    value = {
        "version": FORMAT_VERSION,
        "images": [list(image) for image in code.images],
        "phases": [vars(phase) for phase in code.phases],
    }
    return json.dumps(value, separators=(",", ":")).encode()


def decode(data: bytes) -> ProbeCode:
    """Inverse of `encode`; everything is checked. Raises ProbeFileDamaged for anything else, and other versions."""
    try:
        value = json.loads(data)
        if not isinstance(value, dict) or "version" not in value:
            raise ValueError("no version")
        if value["version"] != FORMAT_VERSION:
            raise ProbeFileDamaged(
                f"the probe's member data/{CODE_NAME} has version {value['version']!r}; this program reads "
                f"{FORMAT_VERSION}: use a newer one"
            )
        images = tuple((_text(path), _text(sha256)) for path, sha256 in value["images"])
        phases = tuple(_phase(one, len(images)) for one in value["phases"])
        if len({p.id for p in phases}) != len(phases):
            raise ValueError("a phase twice")
        return ProbeCode(images, phases)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProbeFileDamaged(
            f"the probe's member data/{CODE_NAME} is damaged: {error!r}; build the probe again"
        ) from error


def _phase(value: Any, images: int) -> PhaseCode:
    def image(number: Any) -> int:
        return _number(number, NO_FILE, images)

    instructions = _amount(value["instructions"])
    blocks = tuple((image(i), _number(a), _number(n, 0, 1 << 31), _amount(x)) for i, a, n, x in value["blocks"])
    if len(blocks) > MOST_BLOCKS or sum(b[3] for b in blocks) > instructions * (1 + 1e-6):
        raise ValueError("more in the blocks than in the phase")
    if not isinstance(value["all_calls"], bool):
        raise ValueError("all_calls")
    return PhaseCode(
        _number(value["id"], 0, 1 << 31),
        instructions,
        blocks,
        tuple((image(i), _number(a), _number(n, 1)) for i, a, n in value["seen"]),
        tuple((_number(a, 0, 1 << 32), _number(n, 1)) for a, n in value["calls"]),
        value["all_calls"],
        tuple((_text(k), _text(n), _number(a), _number(b)) for k, n, a, b in value["memory"]),
    )


def _number(value: Any, least: int = 0, end: int = _LARGEST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < end:
        raise ValueError(f"{value!r} is no number from {least} on below {end}")
    return value


def _amount(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise ValueError(f"{value!r} is no amount")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 8192:
        raise ValueError(f"{str(value)[:80]!r} is no name")
    return value
