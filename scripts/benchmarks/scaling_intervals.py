# SPDX-License-Identifier: Apache-2.0
"""Intervals of scaling curves: how often they hold a further run, by distance, on made runs of known curves.

No curve here but ComPat's own, and no seed, is one that `probe.scaling.fitting.DRIFT` was set on. As a program:
`python3 -m benchmarks.scaling_intervals [SEEDS [NOISE]]` in scripts/; NOISE such as 0.05 alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from probe.formats.arrays import FloatArray
from probe.scaling.model import fit_kernel
from probe.store.parallel_run import ParallelRun

DISTANCES: Final = (0.75, 1.5, 2.0, 3.0, 4.0)
"""Times the largest number of cores that was measured."""

DESIGNS: Final = (((1, 2, 4, 8, 16, 32), 2), ((2, 4, 8, 16, 32, 64), 1), ((2, 4, 8, 16), 2), ((4, 8, 16), 3))
"""Sizes that are measured, and how often each."""

NOISES: Final = (0.02, 0.05)
FIRST_SEED: Final = 20_000
_DRAWS = 400

Truth = Callable[[FloatArray], FloatArray]

COMPAT: Final[tuple[Truth, Truth]] = (
    lambda x: 1000 / x + 4,
    lambda x: 0.05 * x + 0.0005 * x**2 + 3 * np.log2(x) + 1,
)
"""Computing and MPI of the paper's forms."""

OTHERS: Final[tuple[tuple[Truth, Truth], ...]] = (
    (lambda x: 900 / x + 6 * (1 - np.exp(-x / 50)), lambda x: 0.5 + 0.8 * x ** (1 / 3) * np.log2(x)),
    (lambda x: 1200 / x**1.03 + 5, lambda x: 25 / x**0.5 + 0.05 * x),
    (lambda x: 700 / x * (1 + 0.1 * np.sqrt(np.log2(x))), lambda x: 2 * np.log2(x) + 0.001 * x**2),
    (lambda x: 1000 / (x + 0.5) + 3, lambda x: 0.2 + 6 * x / (x + 15)),
    (lambda x: 1000 / x + 0.02 * x, lambda x: 1 + 0.3 * np.log2(x) ** 1.5),
)
"""Curves that no form has, or few."""


@dataclass(frozen=True)
class Row:
    """One prediction: whether its interval held a further run, its width and the error, as shares of the truth."""

    distance: float
    held: bool
    width: float
    error: float


def made(truth: tuple[Truth, Truth], sizes: Iterable[int], repeats: int, noise: float, seed: int) -> list[ParallelRun]:
    """Runs with noise on computing and MPI, each for itself."""
    generator = np.random.default_rng(seed)
    x = np.repeat(np.array(list(sizes), dtype=np.float64), repeats)
    computing = truth[0](x) * (1 + noise * generator.standard_normal(len(x)))
    mpi = np.where(x > 1, truth[1](x) * (1 + noise * generator.standard_normal(len(x))), 0.0)
    rows = zip(x.astype(int).tolist(), computing.tolist(), mpi.tolist(), strict=True)
    common = {"app": "made", "kernel": "k", "node_type": "n", "work": 1.0}
    return [
        ParallelRun(**common, source=str(n), cores=c, ranks=c, runtime=t + m, mpi=m)  # type: ignore[arg-type]
        for n, (c, t, m) in enumerate(rows)
    ]


def judged(truth: tuple[Truth, Truth], sizes: tuple[int, ...], repeats: int, noise: float, seed: int) -> list[Row]:
    """One row for each distance."""
    model = fit_kernel(made(truth, sizes, repeats, noise, seed))
    generator = np.random.default_rng(seed + 1_000_000)
    rows = []
    for distance in DISTANCES:
        cores = round(distance * max(sizes))
        found = model.predict(cores, 1.0, draws=_DRAWS)
        x = np.array([float(cores)])
        parts = [float(part(x)[0]) for part in truth]
        seen = sum(part * (1 + noise * generator.standard_normal()) for part in parts)
        width, error = (found.high - found.low) / sum(parts), abs(found.seconds / sum(parts) - 1)
        rows.append(Row(distance, found.low <= seen <= found.high, width, error))
    return rows


def table(seeds: int, noises: Sequence[float] = NOISES) -> str:
    """The table of docs/scaling.md."""
    lines = ["| curves | cores, times the largest measured | held | width | error |", "|---|---|---|---|---|"]
    for name, truths in (("ComPat's", (COMPAT,)), ("others", OTHERS)):
        each = seeds if truths == (COMPAT,) else max(seeds // len(truths), 1)
        rows = [
            row
            for position, truth in enumerate(truths)
            for sizes, repeats in DESIGNS
            for noise in noises
            for seed in range(FIRST_SEED + each * position, FIRST_SEED + each * (position + 1))
            for row in judged(truth, sizes, repeats, noise, seed)
        ]
        for distance in DISTANCES:
            here = [row for row in rows if row.distance == distance]
            held = 100 * sum(row.held for row in here) / len(here)
            width, error = (100 * float(np.median([getattr(row, key) for row in here])) for key in ("width", "error"))
            lines.append(f"| {name} | {distance:g} | {held:.1f} % of {len(here)} | {width:.0f} % | {error:.0f} % |")
    return "\n".join(lines)


if __name__ == "__main__":
    said = sys.argv[1:]
    print(table(int(said[0]) if said else 200, [float(noise) for noise in said[1:]] or NOISES))
