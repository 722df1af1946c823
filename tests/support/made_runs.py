# SPDX-License-Identifier: Apache-2.0
"""Runs of a kernel with known curves and noise."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from probe.store.parallel_run import ParallelRun

COMPUTING = (1000.0, 4.0)
MPI = (0.05, 0.0005, 3.0, 1.0)


def computing(x: float) -> float:
    a, b = COMPUTING
    return a / x + b


def mpi(x: float) -> float:
    a, b, c, d = MPI
    return float(a * x + b * x * x + c * np.log2(x) + d) if x > 1 else 0.0


def made_runs(
    sizes: Iterable[int],
    repeats: int = 1,
    noise: float = 0.0,
    *,
    seed: int = 0,
    work: float = 1.0,
    kernel: str = "gem",
    node_type: str = "haswell",
    factor: float = 1.0,
    watts: float | None = None,
    **more: object,
) -> list[ParallelRun]:
    """Runs of `work` units; `factor`: of computing time; `watts` per core."""
    generator = np.random.default_rng(seed)
    runs = []
    for x in sizes:
        for repeat in range(repeats):
            c = factor * work * computing(x) * (1 + noise * generator.standard_normal())
            m = work * mpi(x) * (1 + noise * generator.standard_normal())
            energy = {} if watts is None else {"energy": watts * x * (c + m), "energy_source": "accounting"}
            values = {"cores": x, "ranks": x, "runtime": c + m, "mpi": m, **energy, **more}
            source = f"{kernel}:{node_type}:{x}:{repeat}:{work}:{seed}"
            runs.append(
                ParallelRun(app="fusion", kernel=kernel, node_type=node_type, work=work, source=source, **values)  # type: ignore[arg-type]
            )
    return runs
