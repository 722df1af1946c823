# SPDX-License-Identifier: Apache-2.0
"""A program's intervals timed several times: what a selection is made from, and other runs to judge it by."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from checkpoint.process.program import Program, Streams
from probe.formats.arrays import FloatArray, IntArray
from probe.formats.intervals import vectors
from probe.formats.timing import TimedProfile
from probe.node.measuring import away_from, measuring_cpu
from probe.pipeline.validate import validate
from probe.tracers import trace_program


@dataclass(frozen=True)
class RecordedRuns:
    """One program: block vectors (N x B, executions x instructions), work (N), and CPU seconds of every interval in
    each of R timing runs (R x N). Only boundaries that all runs could mark part intervals."""

    vectors: sp.csr_array
    work: FloatArray
    seconds: FloatArray

    def save(self, path: Path) -> None:
        """Write as .npz."""
        v = self.vectors
        np.savez_compressed(
            path, data=v.data, indices=v.indices, indptr=v.indptr, shape=np.array(v.shape), work=self.work,
            seconds=self.seconds,
        )  # fmt: skip

    @staticmethod
    def load(path: Path) -> RecordedRuns:
        """What `save` wrote."""
        with np.load(path, allow_pickle=False) as z:
            rows = sp.csr_array((z["data"], z["indices"], z["indptr"]), shape=tuple(z["shape"]))
            return RecordedRuns(rows, z["work"], z["seconds"])


def record(program: Program, *, runs: int, interval: float) -> RecordedRuns:
    """Trace the program once, in intervals of so many seconds, and time them in `runs` more runs. Raises ProbeError."""
    cpu = measuring_cpu()
    with tempfile.TemporaryDirectory() as folder, away_from(cpu):

        def streams(name: str) -> Streams:
            return Streams(Path(folder) / f"{name}.stdout", Path(folder) / f"{name}.stderr")

        profile = trace_program(program, tracer="native", interval=interval, streams=streams("trace"), cpu=cpu)
        timed = [validate(profile, streams=streams(f"run-{n}"), cpu=cpu) for n in range(runs)]
    whole = vectors(profile, timed[0])
    edges = timed[0].first_row
    for one in timed[1:]:
        edges = np.intersect1d(edges, one.first_row)
    joined = _joined(len(timed[0].first_row) - 1, np.searchsorted(timed[0].first_row, edges)) @ whole
    seconds = np.array([_seconds(one, edges) for one in timed])
    return RecordedRuns(sp.csr_array(joined), np.asarray(joined.sum(axis=1)).reshape(-1), seconds)


def _joined(rows: int, first: IntArray) -> sp.csr_array:
    """The matrix that adds up rows first[i]..first[i + 1] of a matrix with `rows` rows."""
    group = np.repeat(np.arange(len(first) - 1), np.diff(first))
    return sp.csr_array((np.ones(rows), (group, np.arange(rows))), shape=(len(first) - 1, rows))


def _seconds(timed: TimedProfile, edges: IntArray) -> FloatArray:
    so_far = np.concatenate([[0.0], np.cumsum(np.maximum(timed.cpu, 1e-9))])
    return np.diff(so_far[np.searchsorted(timed.first_row, edges)])
