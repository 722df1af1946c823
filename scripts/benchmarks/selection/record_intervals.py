#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record what the selection sees of a real run, small enough for the tests: one file of tests/recorded.

Usage: record_intervals.py WORK-FOLDER FILE.npz     (a folder that `probe build --work` has left)
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from probe.formats.intervals import vectors, work
from probe.formats.profile import load_profile
from probe.formats.timing import load_timing

GROUPS = 48
"""Blocks are added up in this many groups, by a fixed draw: what runs together stays together, the rest stays apart."""


def record(folder: Path, target: Path) -> None:
    """Write vectors (N x GROUPS), work (N) and CPU seconds (N) of the timed intervals."""
    profile, timed = load_profile(folder / "profile.npz"), load_timing(folder / "timing.npz")
    whole = vectors(profile, timed)
    group = np.random.default_rng(1).integers(GROUPS, size=whole.shape[1])
    folded = np.zeros((whole.shape[0], GROUPS))
    for number in range(GROUPS):
        folded[:, number] = np.asarray(whole[:, np.flatnonzero(group == number)].sum(axis=1)).reshape(-1)
    np.savez_compressed(
        target,
        vectors=folded.astype(np.float32),
        work=work(profile, timed),
        seconds=np.maximum(timed.cpu, 1e-9).astype(np.float32),
    )


if __name__ == "__main__":
    record(Path(sys.argv[1]), Path(sys.argv[2]))
