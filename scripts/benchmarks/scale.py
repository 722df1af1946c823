# SPDX-License-Identifier: Apache-2.0
"""Selection and reading of very large profiles: seconds and memory, each in a process of its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from checkpoint.process.program import Program
from probe.formats.arrays import IntArray
from probe.formats.profile import BlockTable, Profile, load_profile, save_profile
from probe.selection.select import select_phases

INTERVALS, BLOCKS, ACTIVE = 100_000, 50_000, 200
"""Of the selection; ACTIVE blocks in each interval."""

LONGEST_INTERVALS, LONGEST_ACTIVE = 20_000, 2_000
"""Of the largest profile that a run of any length gives: no more intervals, and no more entries, are kept
(`probe.tracers.joining`)."""

_KINDS = 40


def _vectors(intervals: int, active: int) -> tuple[sp.csr_array, IntArray, np.random.Generator]:
    """Rows of `active` of BLOCKS blocks, of _KINDS kinds of code; which kind each row is of."""
    rng = np.random.default_rng(1)
    blocks = np.array([np.sort(rng.choice(BLOCKS, active, replace=False)) for _ in range(_KINDS)])
    executions = rng.integers(1, 1000, (_KINDS, active))
    kinds = np.sort(rng.integers(_KINDS, size=intervals))
    rng.shuffle(kinds.reshape(-1, 50))
    indices = blocks[kinds].astype(np.int32).reshape(-1)
    data = (executions[kinds] * rng.uniform(0.95, 1.05, (intervals, 1))).astype(np.int64).reshape(-1)
    starts = np.arange(0, intervals * active + 1, active)
    return sp.csr_array((data, indices, starts), shape=(intervals, BLOCKS)), kinds, rng


def _select() -> dict[str, Any]:
    counts, kinds, rng = _vectors(INTERVALS, ACTIVE)
    work = np.asarray(counts.sum(axis=1), dtype=np.float64).reshape(-1)
    rates = 10 ** rng.uniform(-0.5, 1.5, _KINDS)
    slow = np.where(rng.random(INTERVALS) < 0.1, 3.0, 1.0)
    seconds = work * rates[kinds] * slow * np.exp(rng.normal(0, 0.03, INTERVALS))
    eligible = np.ones(INTERVALS, dtype=bool)
    begun, used = time.monotonic(), time.process_time()
    found = select_phases(counts, work, seconds / seconds.mean() * 0.05, eligible)
    return {
        "seconds": time.monotonic() - begun, "cpu_seconds": time.process_time() - used, "phases": len(found.phases),
        "selection_error": found.selection_error,
    }  # fmt: skip


def _write(path: Path) -> None:
    counts, _, _ = _vectors(LONGEST_INTERVALS, LONGEST_ACTIVE)
    column = np.arange(BLOCKS)
    blocks = BlockTable(
        np.zeros(BLOCKS, np.int32), column, column, np.full(BLOCKS, 9, np.int32), np.full(BLOCKS, 4, np.int32)
    )
    made = Profile(
        program=Program(("made",), "/made", "/"), tracer="native", unit="seconds", interval=1.6, counts=counts,
        seconds=np.full(LONGEST_INTERVALS, 1.8), blocks=blocks, executed=blocks, images=(), cpu_seconds=36_000.0,
        prologue=0.0, removed_sites=0, installed_sites=BLOCKS, install_seconds=1.0,
    )  # fmt: skip
    save_profile(made, path)


def _read(path: Path) -> dict[str, Any]:
    begun = time.monotonic()
    profile = load_profile(path)
    vectors = profile.vectors()
    return {"seconds": time.monotonic() - begun, "bytes": path.stat().st_size, "entries": int(vectors.nnz)}


def _in_a_process(what: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, what, *arguments], check=True, capture_output=True, text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(say: Callable[[str], None]) -> dict[str, Any]:
    """The record: `select` and `read`, each with its seconds and the largest resident size of its process (MB)."""
    say(f"bench: selecting from {INTERVALS:,} intervals x {BLOCKS:,} blocks")
    record: dict[str, Any] = {"name": "scale", "select": _in_a_process("select")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.profile"
        say(f"bench: a profile of {LONGEST_INTERVALS:,} intervals with {LONGEST_ACTIVE:,} blocks in each")
        _write(path)
        record["read"] = _in_a_process("read", str(path))
    return record


if __name__ == "__main__":
    result = _select() if sys.argv[1] == "select" else _read(Path(sys.argv[2]))
    result["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(result))
