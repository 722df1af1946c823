# SPDX-License-Identifier: Apache-2.0
"""SimPoint's files: what others' tools read, and points that others' tools have chosen.

Three text files, as SimPoint 3.2 reads and writes them. PREFIX.bb has one line per interval,
`T:block:count :block:count`, with blocks from 1 and counts of executions times instructions; PREFIX.simpoints has lines
`interval cluster` and PREFIX.weights `weight cluster`, both from 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from checkpoint.errors import ProbeError, StorageError
from checkpoint.foreign_file import read_foreign
from probe.formats.arrays import BoolArray, FloatArray, IntArray
from probe.formats.choices import SelectionOptions
from probe.formats.profile import Profile
from probe.formats.selection import Phase, Selection
from probe.selection.clustering import project
from probe.selection.select import select_phases
from probe.selection.strata import Intervals, seconds_spread

MOST_WEIGHT = 1.001
"""What weights may add up to: they are written with few digits."""


@dataclass(frozen=True)
class Point:
    """One interval, by its number in the traced run, and its share of the run's instructions."""

    interval: int
    weight: float


@dataclass(frozen=True)
class Exported:
    """The files written, and how many intervals and points are in them."""

    files: tuple[Path, ...]
    intervals: int
    points: int


def export(profile: Profile, prefix: Path, options: SelectionOptions | None = None) -> Exported:
    """Write PREFIX.bb, PREFIX.simpoints and PREFIX.weights, the points by SimPoint's own rule. Raises StorageError."""
    chosen = replace(options or SelectionOptions(), refine_by_time=False, resolution=0.0, drop_below=0.0)
    work = profile.instructions()
    # No times: the representative is the interval nearest to its centroid.
    selection = select_phases(
        profile.vectors(), work, np.maximum(work, 1.0), np.ones(profile.intervals, dtype=bool), chosen
    )
    names = tuple(prefix.with_name(f"{prefix.name}.{ending}") for ending in ("bb", "simpoints", "weights"))
    writers: tuple[Callable[[TextIO], None], ...] = (
        lambda file: _write_vectors(profile, file),
        lambda file: file.writelines(f"{p.representative} {p.id}\n" for p in selection.phases),
        lambda file: file.writelines(f"{p.weight:.9f} {p.id}\n" for p in selection.phases),
    )
    for name, write in zip(names, writers, strict=True):
        partial = name.with_name(f".{name.name}.{os.getpid()}")
        try:
            with partial.open("w") as file:
                write(file)
            partial.replace(name)
        except OSError as error:
            raise StorageError(f"{name}: could not be written: {error.strerror}") from error
        finally:
            partial.unlink(missing_ok=True)
    return Exported(names, profile.intervals, len(selection.phases))


def _write_vectors(profile: Profile, file: TextIO) -> None:
    counts, instructions = profile.counts, profile.blocks.instructions.astype(np.int64)
    for low, high in zip(counts.indptr[:-1], counts.indptr[1:], strict=True):
        columns = counts.indices[low:high]
        values = counts.data[low:high].astype(np.int64) * instructions[columns]
        pairs = zip((columns + 1).tolist(), values.tolist(), strict=True)
        file.write("T" + " ".join(f":{block}:{value}" for block, value in pairs) + "\n")


def read_points(simpoints: Path, weights: Path) -> tuple[Point, ...]:
    """The points of two files, in the order of the run. Raises ProbeError where they do not fit together."""
    intervals, shares = _by_cluster(simpoints), _by_cluster(weights)
    if intervals.keys() != shares.keys():
        odd = sorted(intervals.keys() ^ shares.keys())
        raise ProbeError(f"{simpoints} and {weights} do not belong together: only one of them has clusters {odd}")
    if not intervals:
        raise ProbeError(f"{simpoints}: no point in it")
    points = []
    for cluster, interval in intervals.items():
        weight = shares[cluster]
        if not (interval >= 0 and interval.is_integer()):
            raise ProbeError(f"{simpoints}: {interval:g} of cluster {cluster} is not the number of an interval")
        if not 0 < weight <= MOST_WEIGHT:
            raise ProbeError(f"{weights}: {weight:g} of cluster {cluster} is not a weight between 0 and 1")
        points.append(Point(int(interval), weight))
    if sum(p.weight for p in points) > MOST_WEIGHT:
        raise ProbeError(f"{weights}: the weights add up to {sum(p.weight for p in points):g}, more than 1")
    return tuple(sorted(points, key=lambda p: p.interval))


def _by_cluster(path: Path) -> dict[int, float]:
    found: dict[int, float] = {}
    try:
        lines = read_foreign(path).decode().splitlines()
    except (StorageError, UnicodeDecodeError) as error:
        raise ProbeError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value, cluster = line.split()
            key, share = int(cluster), float(value)
        except ValueError:
            raise ProbeError(f"{path}, line {number}: {line[:40]!r} is not a number and a cluster") from None
        if key in found:
            raise ProbeError(f"{path}, line {number}: cluster {key} is there twice")
        found[key] = share
    return found


def select_points(
    points: Sequence[Point],
    first_row: IntArray,
    vectors: Any,
    work: FloatArray,
    seconds: FloatArray,
    eligible: BoolArray,
    options: SelectionOptions,
) -> tuple[Selection, list[str]]:
    """The selection that the points are, and what had to be changed. Arguments as of `select_phases`.

    `first_row`: first traced interval of each timed one, as in TimedProfile. Weights are the points' own. Members are
    the intervals nearest to a point by their vectors: for people, and for the spread. Time shares follow from weight
    and the point's own time. A point that cannot be captured (the first and the last interval) is represented by the
    nearest interval that can. Raises ProbeError for points beyond the end of the run.
    """
    traced = int(first_row[-1])
    beyond = [p.interval for p in points if p.interval >= traced]
    if beyond:
        raise ProbeError(
            f"points {beyond} lie beyond the run's {traced} intervals: they were chosen with another --interval, "
            "another tracer or another input"
        )
    run = Intervals.of(project(vectors, options.dimensions, options.seed), work, seconds, eligible)
    weights: dict[int, float] = {}
    warnings = []
    for point in points:
        timed = int(np.searchsorted(first_row, point.interval, side="right")) - 1
        if not eligible[timed] or work[timed] <= 0:
            able = np.flatnonzero(eligible & (work > 0))
            if not len(able):
                raise ProbeError("no interval of this run can be captured; give it more work, or a shorter --interval")
            timed = int(able[np.argmin(((run.points[able] - run.points[timed]) ** 2).sum(axis=1))])
            warnings.append(f"point {point.interval} cannot be captured; its nearest interval, {timed}, stands for it")
        weights[timed] = weights.get(timed, 0.0) + point.weight
    return _selection(run, weights, options), warnings


def _selection(run: Intervals, weights: dict[int, float], options: SelectionOptions) -> Selection:
    chosen = np.array(sorted(weights), dtype=np.int64)
    weight = np.array([weights[i] for i in chosen.tolist()])
    distance = np.array([((run.points - run.points[i]) ** 2).sum(axis=1) for i in chosen.tolist()])
    labels = distance.argmin(axis=0).astype(np.int64)
    labels[chosen] = np.arange(len(chosen))
    estimated = weight * run.work.sum() * run.seconds[chosen] / run.work[chosen]
    share = estimated / estimated.sum() * min(float(weight.sum()), 1.0)
    phases = []
    for number, interval in enumerate(chosen.tolist()):
        members = np.flatnonzero(labels == number).astype(np.int64)
        spread = seconds_spread(run, members)
        phases.append(Phase(number, interval, members, float(weight[number]), float(share[number]), spread))
    return Selection(
        phases=tuple(phases),
        labels=labels,
        dropped_time_share=max(0.0, 1.0 - float(weight.sum())),
        k_bic=len(phases),
        seed=options.seed,
        cuts=0,
        selection_error=float(estimated.sum() / weight.sum() / run.seconds.sum() - 1.0),
        held_out_error=None,
        merges=(),
        options=options,
    )
