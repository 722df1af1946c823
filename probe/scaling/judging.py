# SPDX-License-Identifier: Apache-2.0
"""Judge runs before curves go through them: which are left out, and what makes the others doubtful."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkpoint.errors import Unpredictable
from probe.formats.arrays import FloatArray
from probe.scaling.forms import LEAST_SIZES
from probe.store.parallel_run import ENERGY_SOURCES, ParallelRun

EXTRAPOLATION_WARNED, EXTRAPOLATION_REFUSED = 2.0, 4.0
"""Times the largest number of cores that was measured (or parts of the smallest)."""

_ROUNDING = 0.02
"""Half a second, as a share of the shortest run, from which on whole seconds are warned of."""

_WORK_EXPONENT = 0.1
"""Deviation from 1 of the power of work that times grow with."""

_WORK_RANGE = 10.0
_UNLIKE = 0.1
"""Difference, as a share, between runs that should take equally long."""


@dataclass(frozen=True)
class Judged:
    """Runs to fit, and warnings: sentences without an end."""

    runs: tuple[ParallelRun, ...]
    warnings: tuple[str, ...]


def judge(runs: Sequence[ParallelRun], what: str) -> Judged:
    """Leave out runs that shared or oversubscribed their cores. Raises Unpredictable for fewer than LEAST_SIZES sizes.

    what: the kernel and node type, for messages.
    """
    warnings = []
    crowded = [run for run in runs if run.oversubscribed]
    if crowded:
        worst = max(crowded, key=lambda run: run.ranks * run.threads / run.cores)
        warnings.append(
            f"{len(crowded)} of {len(runs)} runs left out: they ran up to {worst.ranks * worst.threads} threads on "
            f"{worst.cores} cores (oversubscribed, or SMT threads counted as cores)"
        )
    shared = [run for run in runs if run.shared and not run.oversubscribed]
    if shared:
        warnings.append(f"{len(shared)} of {len(runs)} runs left out: they shared their nodes or cores with others")
    usable = tuple(run for run in runs if not run.shared and not run.oversubscribed)
    sizes = sorted({run.cores for run in usable})
    if len(sizes) < LEAST_SIZES:
        there = ", ".join(map(str, sizes)) or "none"
        left = f" ({'; '.join(warnings)})" if warnings else ""
        raise Unpredictable(
            f"{what}: runs on {len(sizes)} different numbers of cores ({there}){left}; a curve needs {LEAST_SIZES}: "
            "run it on others with `probe bench`"
        )
    return Judged(usable, (*warnings, *_same_sizes(usable), *_same_parameters(usable), *_rounded(usable)))


def _same_sizes(runs: Sequence[ParallelRun]) -> list[str]:
    """Numbers of cores that were reached in different ways, as 4 x 1 and 2 x 2."""
    shapes: dict[int, set[tuple[int, int]]] = {}
    for run in runs:
        shapes.setdefault(run.cores, set()).add((run.ranks, run.threads))
    mixed = {cores: ways for cores, ways in shapes.items() if len(ways) > 1}
    if not mixed:
        return []
    cores, ways = next(iter(sorted(mixed.items())))
    shown = " and ".join(f"{ranks} ranks x {threads} threads" for ranks, threads in sorted(ways))
    return [f"equal numbers of cores in different shapes count as one size: {cores} cores are {shown}"]


def _same_parameters(runs: Sequence[ParallelRun]) -> list[str]:
    """Configurations with other files and equal parameters, whose times differ: something decisive is no parameter."""
    groups: dict[tuple[object, ...], dict[str, list[float]]] = {}
    for run in runs:
        key = (run.cores, tuple(sorted(run.parameters.items())), run.work)
        groups.setdefault(key, {}).setdefault(run.config, []).append(run.runtime)
    said = []
    for (cores, *_), by_config in groups.items():
        means = {config: float(np.median(times)) for config, times in by_config.items()}
        if len(means) > 1 and max(means.values()) > (1 + _UNLIKE) * min(means.values()):
            slow, fast = max(means, key=lambda c: means[c]), min(means, key=lambda c: means[c])
            said.append(
                f"equal parameters under two configurations: {slow[:8]} takes {means[slow]:g} s and {fast[:8]} "
                f"{means[fast]:g} s on {cores} cores; something that decides is no parameter"
            )
    return said[:1]


def whole_seconds(runs: Sequence[ParallelRun]) -> bool:
    """Whether all times look as if they had been rounded to seconds."""
    return all(value == int(value) for run in runs for value in (run.runtime, run.mpi or 0.0))


def _rounded(runs: Sequence[ParallelRun]) -> list[str]:
    shortest = min(run.runtime for run in runs)
    if not whole_seconds(runs) or 0.5 / shortest <= _ROUNDING:
        return []
    return [f"times are whole seconds, and the shortest is {shortest:g} s: rounding alone is {50 / shortest:.0f} %"]


def doubts_of_work(runs: Sequence[ParallelRun], expected: FloatArray, work: float | None = None) -> list[str]:
    """Whether time grows with work as the expression says. expected: seconds of each run by the curve."""
    said = []
    amounts = np.array([run.work for run in runs])
    if len(np.unique(amounts)) > 1:
        ratio = np.log(np.array([run.runtime for run in runs]) / expected)
        exponent = 1 + float(np.polyfit(np.log(amounts), ratio, 1)[0])
        if abs(exponent - 1) > _WORK_EXPONENT:
            said.append(
                f"time grows as work to the power of {exponent:.2f}, not in proportion; correct the work expression"
            )
    if work is not None and not amounts.min() / _WORK_RANGE <= work <= amounts.max() * _WORK_RANGE:
        said.append(f"work {work:.3g} is far from what was measured ({amounts.min():.3g} to {amounts.max():.3g})")
    return said


def doubts_of_distance(cores: Sequence[float], measured: Sequence[int], what: str) -> list[str]:
    """Warnings for sizes beyond those measured. Raises Unpredictable for those that are too far."""
    smallest, largest = min(measured), max(measured)
    distance = max(max(max(cores) / largest, smallest / min(cores)), 1.0)
    if distance > EXTRAPOLATION_REFUSED:
        raise Unpredictable(
            f"{what}: {max(cores) if max(cores) > largest else min(cores):g} cores are {distance:.3g} times away from "
            f"those measured ({smallest} to {largest}); more than {EXTRAPOLATION_REFUSED:g} times is refused: run it "
            "nearer"
        )
    if distance > EXTRAPOLATION_WARNED:
        return [f"extrapolated {distance:.3g} times beyond the sizes measured ({smallest} to {largest} cores)"]
    return []


def doubts_of_types(runs: Sequence[ParallelRun]) -> list[str]:
    """Types of nodes whose sizes do not meet: what is the type and what the size cannot be told apart."""
    sizes: dict[str, set[int]] = {}
    for run in runs:
        sizes.setdefault(run.node_type, set()).add(run.cores)
    said = []
    names = sorted(sizes)
    for position, first in enumerate(names):
        for second in names[position + 1 :]:
            if not sizes[first] & sizes[second]:
                said.append(
                    f"node type and size are confounded: {first} has runs on {_range(sizes[first])} cores alone, "
                    f"{second} on {_range(sizes[second])}; run both on one size"
                )
    return said


def _range(sizes: set[int]) -> str:
    return f"{min(sizes)}" if len(sizes) == 1 else f"{min(sizes)} to {max(sizes)}"


def counted(runs: Sequence[ParallelRun]) -> dict[int, int]:
    """Runs by number of cores."""
    return dict(sorted(Counter(run.cores for run in runs).items()))


def usual_power(runs: Sequence[ParallelRun]) -> tuple[float, str] | None:
    """Median of watts per core over the runs with energy by the most trusted source, and this; None without any."""
    source = next((one for one in ENERGY_SOURCES if any(run.energy_source == one for run in runs)), None)
    if source is None:
        return None
    watts = [(run.energy or 0.0) / (run.cores * run.runtime) for run in runs if run.energy_source == source]
    value = float(np.median(watts))
    return (value, source) if math.isfinite(value) and value > 0 else None
