# SPDX-License-Identifier: Apache-2.0
"""A profile's intervals with the native times that the timing run gave them, and their file."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from checkpoint.errors import StorageError
from probe.formats.arrays import BoolArray, FloatArray, IntArray

_COUNTS = ("unmarked", "missing", "out_of_order", "agreeing", "compared", "shifted")


@dataclass(frozen=True)
class Outside:
    """What no interval holds: the processes that the program started, in the timing run. Seconds; their commands."""

    wall: float = 0.0
    cpu: float = 0.0
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class TimedProfile:
    """The profile's intervals with their native times, bad boundaries merged away. M intervals.

    counts         M x B sparse, as in the profile
    seconds, cpu   M, wall and CPU time in the timing run
    columns, executions  M - 1: boundary i (start of interval i + 1) is execution `executions[i]` of block `columns[i]`
    first_row      M + 1, first profile interval of each; the last entry is the profile's number of intervals
    wall_seconds   of the whole timing run, from entry point to exit
    unmarked       boundaries with no block active on both sides (a starved or blocked process, one flat loop)
    missing, out_of_order  boundaries that failed in the timing run: the program did not repeat itself there
    agreeing, compared     markers whose total executions equal those of the traced run, and all markers compared
    kernel         CPU seconds in the kernel, M, by its ticks; NaN for the first and the last; empty if not stamped
    beside         M, whether a child of the program lived in the interval, or a thread that it may wait for ran; empty
                   where it had none
    outside        time of these children, which no interval holds: `seconds` and `cpu` are the program's own
    shifted        those of the agreeing whose totals differ, but by less than MOST_SHIFT intervals (exact tracers)
    resident       bytes of memory that the program had at its fullest; 0 where that is not known
    """

    counts: sp.csr_array = field(repr=False)
    seconds: FloatArray = field(repr=False)
    cpu: FloatArray = field(repr=False)
    columns: IntArray = field(repr=False)
    executions: IntArray = field(repr=False)
    first_row: IntArray = field(repr=False)
    wall_seconds: float
    unmarked: int
    missing: int
    out_of_order: int
    agreeing: int
    compared: int
    shifted: int = 0
    kernel: FloatArray = field(default_factory=lambda: np.zeros(0), repr=False)

    beside: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=bool), repr=False)
    outside: Outside = field(default_factory=Outside)
    resident: int = 0

    @property
    def alone(self) -> BoolArray:
        """Whether the program was by itself in the interval, (M,)."""
        return ~self.beside if len(self.beside) else np.ones(self.intervals, dtype=bool)

    def room_before(self, interval: int) -> int:
        """How many intervals right before this one, the first not among them, the program was by itself."""
        before = self.alone[1:interval][::-1]
        return len(before) if before.all() else int(np.argmin(before))

    @property
    def intervals(self) -> int:
        return len(self.seconds)


def sum_rows(counts: sp.csr_array, first: IntArray) -> sp.csr_array:
    """Rows first[i]..first[i + 1] added up."""
    groups = len(first) - 1
    which = np.repeat(np.arange(groups), np.diff(first))
    gather = sp.csr_array((np.ones(len(which)), (which, np.arange(len(which)))), shape=(groups, counts.shape[0]))
    return sp.csr_array(gather @ counts)


def join_intervals(timed: TimedProfile, together: int) -> TimedProfile:
    """The same run in fewer intervals: each holds `together` of the profile's, as far as their boundaries are known."""
    group = timed.first_row[:-1] // together
    inner = np.flatnonzero(np.diff(group)) + 1
    first = np.concatenate([[0], inner])
    kernel = np.add.reduceat(timed.kernel, first) if len(timed.kernel) else timed.kernel
    return replace(
        timed,
        counts=sum_rows(timed.counts, np.concatenate([first, [timed.intervals]])),
        seconds=np.add.reduceat(timed.seconds, first),
        cpu=np.add.reduceat(timed.cpu, first),
        kernel=kernel,
        beside=np.logical_or.reduceat(timed.beside, first) if len(timed.beside) else timed.beside,
        columns=timed.columns[inner - 1],
        executions=timed.executions[inner - 1],
        first_row=np.concatenate([timed.first_row[first], timed.first_row[-1:]]),
    )


def save_timing(timed: TimedProfile, path: Path) -> None:
    """Write as .npz, next to the profile."""
    scalars = ("wall_seconds", *_COUNTS)
    np.savez_compressed(
        path,
        counts_data=timed.counts.data,
        counts_indices=timed.counts.indices,
        counts_indptr=timed.counts.indptr,
        counts_shape=np.array(timed.counts.shape),
        outside=np.array([timed.outside.wall, timed.outside.cpu]),
        resident=timed.resident,
        commands=np.array(timed.outside.commands, dtype=np.str_),
        **{
            n: getattr(timed, n)
            for n in ("seconds", "cpu", "kernel", "beside", "columns", "executions", "first_row", *scalars)
        },
    )


def load_timing(path: Path) -> TimedProfile:
    """Read what `save_timing` wrote. Raises StorageError where it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as z:
            counts = sp.csr_array(
                (z["counts_data"], z["counts_indices"], z["counts_indptr"]), shape=tuple(z["counts_shape"])
            )
            whole: dict[str, Any] = {n: int(z[n]) for n in _COUNTS}
            return TimedProfile(
                counts=counts,
                seconds=z["seconds"],
                cpu=z["cpu"],
                kernel=z["kernel"] if "kernel" in z.files else np.zeros(0),
                columns=z["columns"],
                executions=z["executions"],
                first_row=z["first_row"],
                wall_seconds=float(z["wall_seconds"]),
                resident=int(z["resident"]) if "resident" in z.files else 0,
                **_outside(z),
                **whole,
            )
    except (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise StorageError(f"{path}: not a readable timing: {error}; build without --resume") from error


def _outside(stored: Any) -> dict[str, Any]:
    """The fields about children; none in a file of an earlier version."""
    if "outside" not in stored.files:
        return {}
    wall, cpu = stored["outside"].tolist()
    return {"beside": stored["beside"].astype(bool), "outside": Outside(wall, cpu, tuple(stored["commands"].tolist()))}
