# SPDX-License-Identifier: Apache-2.0
"""`scripts/bench selection`: programs recorded, and ways to select judged by them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import environment
from benchmarks.programs import Benchmark, resolved
from benchmarks.selection.reconstruction import evaluate
from benchmarks.selection.recorded_runs import RecordedRuns, record
from checkpoint.errors import ProbeError
from checkpoint.process.program import Program, resolve_program

RUNS, INTERVAL = 4, 0.02
"""Timing runs of each program; seconds."""

PROGRAMS = (
    "sorter", "stencil", "gzip", "bzip2", "python3", "perl", "sqlite3", "clustalw", "bc", "glpsol", "phyml",
)  # fmt: skip


def _program(benchmark: Benchmark, data: Path) -> Program:
    stdin = str(data / benchmark.stdin)
    return resolve_program(resolved(benchmark), stdin=stdin, cwd=str(data), env=environment(benchmark))


def measure(
    benchmarks: Sequence[Benchmark], folder: Path, data: Path, seeds: Sequence[int], say: Callable[[str], None]
) -> dict[str, Any]:
    """The record: `programs`, by name and method. Runs are recorded in `folder` once and found there again."""
    folder.mkdir(parents=True, exist_ok=True)
    programs: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for benchmark in benchmarks:
        path = folder / f"{benchmark.name}.npz"
        begun = time.monotonic()
        try:
            if not path.exists():
                say(f"bench: {benchmark.name}: trace, {RUNS} timing runs")
                record(_program(benchmark, data), runs=RUNS, interval=INTERVAL).save(path)
            programs[benchmark.name] = evaluate(RecordedRuns.load(path), seeds)
        except ProbeError as error:
            failures[benchmark.name] = f"{type(error).__name__}: {error}"
        say(f"bench: {benchmark.name}: {time.monotonic() - begun:.0f} s")
    return {"name": "selection", "seeds": len(seeds), "programs": programs, "failures": failures}
