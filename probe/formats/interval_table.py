# SPDX-License-Identifier: Apache-2.0
"""Table of every interval of the run, for people to look at: its phase, its times, where its vector lies.

A member of the probe, described byte by byte in docs/probe-format.md. Nothing that is restored or predicted needs it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from checkpoint.errors import ProbeFileDamaged
from probe.formats.arrays import FloatArray, IntArray
from probe.formats.manifest import Manifest
from reducer.unpack import ProbeArchive

MEMBER = "intervals"
"""Name of the probe's member."""

VERSION = 1
MOST_INTERVALS = 1_000_000
MOST_COORDINATES = 4

_HEAD = struct.Struct("<IIII")
"""Version, number of intervals, number of coordinates, 0."""

_STEPS = (1 << 16) - 1


@dataclass(frozen=True)
class IntervalTable:
    """N intervals in the order of the run.

    phases       N, id of each one's phase when the probe was built; -1 where that was dropped
    seconds, cpu N, wall and CPU seconds, as the phases' time shares have them: levels over the runs that were stamped
    work         N, counted instructions
    coordinates  N x c, principal coordinates of the projected basic-block vectors, c at most MOST_COORDINATES
    explained    c, share of the vectors' variance along each coordinate, the largest first
    """

    phases: IntArray = field(repr=False)
    seconds: FloatArray = field(repr=False)
    cpu: FloatArray = field(repr=False)
    work: FloatArray = field(repr=False)
    coordinates: FloatArray = field(repr=False)
    explained: FloatArray

    def __len__(self) -> int:
        return len(self.phases)


def encode(table: IntervalTable) -> bytes:
    """The member's contents: 16 + 12 c + (16 + 2 c) N bytes."""
    count, width = table.coordinates.shape
    lowest = table.coordinates.min(axis=0) if count else np.zeros(width)
    reach = table.coordinates.max(axis=0) - lowest if count else np.zeros(width)
    scale = np.divide(reach, _STEPS, out=np.zeros(width), where=reach > 0)
    steps = np.zeros((count, width))
    np.divide(table.coordinates - lowest, scale, out=steps, where=scale > 0)
    return b"".join(
        (
            _HEAD.pack(VERSION, count, width, 0),
            np.stack([lowest, scale, table.explained], axis=1).astype("<f4").tobytes(),
            table.phases.astype("<i4").tobytes(),
            table.seconds.astype("<f4").tobytes(),
            table.cpu.astype("<f4").tobytes(),
            table.work.astype("<f4").tobytes(),
            np.rint(steps).clip(0, _STEPS).astype("<u2").T.tobytes(),
        )
    )


def size_of(intervals: int, coordinates: int) -> int:
    """Bytes that `encode` makes of so many."""
    return _HEAD.size + 12 * coordinates + (16 + 2 * coordinates) * intervals


def decode(data: bytes, name: str) -> IntervalTable | None:
    """Inverse of `encode`, up to the rounding; None for a later version. `name` is the probe's, for errors.

    Raises ProbeFileDamaged for anything that `encode` does not write.
    """
    if len(data) < _HEAD.size:
        raise _damaged(name, f"it has {len(data)} bytes")
    version, count, width, _ = _HEAD.unpack_from(data)
    if version > VERSION:
        return None
    if version != VERSION or count > MOST_INTERVALS or width > MOST_COORDINATES or len(data) != size_of(count, width):
        raise _damaged(name, f"{len(data)} bytes for {count} intervals with {width} coordinates, version {version}")
    at = _HEAD.size

    def take(kind: str, number: int) -> npt.NDArray[Any]:
        nonlocal at
        values = np.frombuffer(data, dtype=kind, count=number, offset=at)
        at += values.nbytes
        return values

    scales = take("<f4", 3 * width).reshape(width, 3).astype(np.float64)
    phases = take("<i4", count).astype(np.int64)
    seconds, cpu, counted = (take("<f4", count).astype(np.float64) for _ in range(3))
    steps = take("<u2", width * count).reshape(width, count).T.astype(np.float64)
    for what, values in (("a phase", phases + 1), ("a time", seconds), ("a time", cpu), ("a work", counted)):
        if not (np.isfinite(values) & (values >= 0)).all():
            raise _damaged(name, f"{what} that is none")
    if not np.isfinite(scales).all() or (scales[:, 1:] < 0).any():
        raise _damaged(name, "a coordinate that is none")
    return IntervalTable(phases, seconds, cpu, counted, scales[:, 0] + steps * scales[:, 1], scales[:, 2])


def read_intervals(archive: ProbeArchive, manifest: Manifest, name: str) -> IntervalTable | None:
    """The table in an open probe; None where the probe has none (built before there was one), or of a later version.

    Raises ProbeFileDamaged where it is damaged, or is not that of this probe's phases.
    """
    if MEMBER not in archive.data_names:
        return None
    size = archive.members[f"data/{MEMBER}"].raw_size
    if size > size_of(MOST_INTERVALS, MOST_COORDINATES):
        raise _damaged(name, f"it claims {size} bytes")
    table = decode(archive.read_data(MEMBER), name)
    if table is None:
        return None
    if len(table) != manifest.timing.intervals:
        raise _damaged(name, f"it has {len(table)} intervals, the probe {manifest.timing.intervals}")
    for phase in manifest.phases:
        if not 0 <= phase.representative < len(table) or table.phases[phase.representative] != phase.id:
            raise _damaged(name, f"interval {phase.representative} does not belong to phase {phase.id}")
    return table


def _damaged(name: str, problem: str) -> ProbeFileDamaged:
    return ProbeFileDamaged(f"{name}: its table of intervals is damaged: {problem}; copy or build it again")
