# SPDX-License-Identifier: Apache-2.0
"""Profiles by the native tracer, and profiles made up of a few counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp
from programs import run
from tracing import program_of, streams_of

from checkpoint.process.program import Program
from probe.formats.arrays import IntArray
from probe.formats.profile import BlockTable, Profile
from probe.tracers.native import trace

INTERVAL = 0.01
# Long enough for some twenty intervals of INTERVAL.
SIZES = {
    "nbody": "60",
    "stencil": "300",
    "sweep": "3",
    "redzone": "1500",
    "jumptable": "150",
    "callpop": "8000",
    "signals": "80",
}


def profile_of(path: Path, *arguments: str, interval: float = INTERVAL) -> Profile:
    """Trace `path` and check its output against its plain run."""
    with streams_of() as streams:
        profile = trace(program_of(path, *arguments), interval=interval, streams=streams)
        assert streams.stdout.read_text() == run(path, *arguments).stdout
    return profile


def column_of(profile: Profile, image: Path, address: int) -> int | None:
    """The column of the block that holds `address`."""
    table = profile.blocks
    held = (table.start <= address) & (address < table.start + table.size)
    held &= np.array([profile.images[i][0] == str(image) for i in table.image.tolist()], dtype=bool)
    found = np.flatnonzero(held)
    return int(found[0]) if len(found) else None


def totals(profile: Profile) -> IntArray:
    return np.asarray(profile.counts.sum(axis=0)).ravel()


def made(counts: IntArray) -> Profile:
    """A profile with these executions, N x B."""
    intervals, columns = counts.shape
    table = BlockTable(
        image=np.zeros(columns, dtype=np.int32),
        site=np.arange(columns, dtype=np.int64) * 16,
        start=np.arange(columns, dtype=np.int64) * 16,
        size=np.full(columns, 16, dtype=np.int32),
        instructions=np.full(columns, 4, dtype=np.int32),
    )
    return Profile(
        program=Program(argv=("made",), executable="/made", cwd="/"),
        tracer="native",
        unit="seconds",
        interval=0.05,
        counts=sp.csr_array(counts),
        seconds=np.full(intervals, 0.05),
        blocks=table,
        executed=table,
        images=(("/made", "0" * 64),),
        cpu_seconds=1.0,
        prologue=0.0,
        removed_sites=0,
        installed_sites=columns,
        install_seconds=0.0,
    )
