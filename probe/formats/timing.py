# SPDX-License-Identifier: Apache-2.0
"""A profile's intervals with the native times that the timing run gave them, and their file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from checkpoint.errors import StorageError
from probe.formats.arrays import BoolArray, FloatArray, IntArray

_ARRAYS = ("seconds", "cpu", "columns", "executions", "first_row")
_LATER_ARRAYS = ("kernel", "again_wall", "again_cpu", "stamping")
"""Files from before there were these lack them."""

_SHARES = ("blocked_share", "waited_share", "loading")
"""Numbers that files from before there were these lack."""

_COUNTS = ("unmarked", "missing", "out_of_order", "agreeing", "compared", "shifted")


LEAST_SECONDS = 1e-9
"""What takes less, takes this: times are above zero."""

QUANTILE = 0.25
"""Share of the times below the level. Chosen from recorded runs: docs/estimators.md, "One location for all times"."""


def level(times: FloatArray) -> FloatArray:
    """Along the first axis: the lower quartile, linear between neighbours. NaN where there are no times.

    Other work slows a program and never speeds it up. So the median of times of which half were disturbed is one or the
    other by chance, and the lowest of them depends on how many there are; a quartile does neither.
    """
    times = np.asarray(times, dtype=np.float64)
    if not len(times):
        return np.full(times.shape[1:], np.nan)
    return np.asarray(np.quantile(times, QUANTILE, axis=0), dtype=np.float64)


@dataclass(frozen=True)
class IntervalRun:
    """One full run: its wall and CPU seconds from execve to exit, and those of each interval, (M,).

    What comes before the entry point is in the run's seconds and in no interval, as is the time of other processes.
    """

    wall: float
    cpu: float
    interval_wall: FloatArray = field(repr=False)
    interval_cpu: FloatArray = field(repr=False)


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
    again_wall, again_cpu  R x M, the intervals' times in R further runs, stamped at boundaries that cost nothing
    beside         M, whether a child of the program lived in the interval, or a thread that it may wait for ran; empty
                   where it had none
    outside        time of these children, which no interval holds: `seconds` and `cpu` are the program's own
    shifted        those of the agreeing whose totals differ, but by less than MOST_SHIFT intervals (exact tracers)
    resident       bytes of memory that the program had at its fullest; 0 where that is not known
    stamping       seconds that the stamps took in each interval, by what one takes, M; empty where that is not known
    blocked_share, waited_share  of the timing run the program slept, and waited for a processor
    loading        seconds of the program before its entry point, in no interval
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
    again_wall: FloatArray = field(default_factory=lambda: np.zeros((0, 0)), repr=False)
    again_cpu: FloatArray = field(default_factory=lambda: np.zeros((0, 0)), repr=False)
    beside: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=bool), repr=False)
    outside: Outside = field(default_factory=Outside)
    resident: int = 0
    stamping: FloatArray = field(default_factory=lambda: np.zeros(0), repr=False)
    blocked_share: float = 0.0
    waited_share: float = 0.0
    loading: float = 0.0

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

    def with_runs(self, runs: Sequence[IntervalRun]) -> TimedProfile:
        """The same with the intervals' times of more runs."""
        wall = [*self.again_wall, *(run.interval_wall for run in runs)]
        cpu = [*self.again_cpu, *(run.interval_cpu for run in runs)]
        return replace(self, again_wall=np.array(wall), again_cpu=np.array(cpu)) if runs else self

    @property
    def stamped_share(self) -> float:
        """Of the timing run, what its stamps took; all of it where earlier versions did not tell."""
        return float(self.stamping.sum()) / max(float(self.seconds.sum()), LEAST_SECONDS) if len(self.stamping) else 1.0

    def fastest(self, clock: str) -> float:
        """Seconds of the whole program in the fastest run with stubs: the timing run, less its stamps, or another."""
        plain, again = self.unstamped(), self.again_cpu if clock == "cpu" else self.again_wall
        whole, own = getattr(plain, clock), getattr(plain, f"interval_{clock}").sum()
        return float(min([whole, *(whole - own + again.sum(axis=1))]))

    def unstamped(self) -> IntervalRun:
        """The timing run as a plain one: less what its stamps took, but of no interval more than half."""
        stamping = self.stamping if len(self.stamping) else np.zeros(self.intervals)
        wall, cpu = (np.maximum(own - stamping, own / 2) for own in (self.seconds, self.cpu))
        return IntervalRun(
            wall=self.wall_seconds + self.loading - float((self.seconds - wall).sum()),
            cpu=float(cpu.sum()) + self.loading + self.outside.cpu,
            interval_wall=wall,
            interval_cpu=cpu,
        )

    def levels(self, clock: str) -> FloatArray:
        """Each interval's level over all runs by that clock, (M,)."""
        first, again = (self.cpu, self.again_cpu) if clock == "cpu" else (self.seconds, self.again_wall)
        return level(np.vstack([first, again])) if len(again) else first


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
    kernel, stamping = (np.add.reduceat(one, first) if len(one) else one for one in (timed.kernel, timed.stamping))
    return replace(
        timed,
        counts=sum_rows(timed.counts, np.concatenate([first, [timed.intervals]])),
        seconds=np.add.reduceat(timed.seconds, first),
        cpu=np.add.reduceat(timed.cpu, first),
        kernel=kernel,
        stamping=stamping,
        again_wall=_columns_joined(timed.again_wall, first),
        again_cpu=_columns_joined(timed.again_cpu, first),
        beside=np.logical_or.reduceat(timed.beside, first) if len(timed.beside) else timed.beside,
        columns=timed.columns[inner - 1],
        executions=timed.executions[inner - 1],
        first_row=np.concatenate([timed.first_row[first], timed.first_row[-1:]]),
    )


def _columns_joined(runs: FloatArray, first: IntArray) -> FloatArray:
    return np.add.reduceat(runs, first, axis=1) if len(runs) else runs


def save_timing(timed: TimedProfile, path: Path) -> None:
    """Write as .npz, next to the profile."""
    scalars = ("wall_seconds", *_SHARES, *_COUNTS)
    np.savez_compressed(
        path,
        counts_data=timed.counts.data,
        counts_indices=timed.counts.indices,
        counts_indptr=timed.counts.indptr,
        counts_shape=np.array(timed.counts.shape),
        outside=np.array([timed.outside.wall, timed.outside.cpu]),
        resident=timed.resident,
        commands=np.array(timed.outside.commands, dtype=np.str_),
        beside=timed.beside,
        **{n: getattr(timed, n) for n in (*_ARRAYS, *_LATER_ARRAYS, *scalars)},
    )


def load_timing(path: Path) -> TimedProfile:
    """Read what `save_timing` wrote. Raises StorageError where it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as z:
            counts = sp.csr_array(
                (z["counts_data"], z["counts_indices"], z["counts_indptr"]), shape=tuple(z["counts_shape"])
            )
            numbers: dict[str, Any] = {n: int(z[n]) for n in _COUNTS}
            numbers |= {n: float(z[n]) for n in _SHARES if n in z.files}
            return TimedProfile(
                counts=counts,
                **{name: z[name] for name in (*_ARRAYS, *_LATER_ARRAYS) if name in _ARRAYS or name in z.files},
                wall_seconds=float(z["wall_seconds"]),
                resident=int(z["resident"]) if "resident" in z.files else 0,
                **_outside(z),
                **numbers,
            )
    except (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise StorageError(f"{path}: not a readable timing: {error}; build without --resume") from error


def _outside(stored: Any) -> dict[str, Any]:
    """The fields about children; none in a file of an earlier version."""
    if "outside" not in stored.files:
        return {}
    wall, cpu = stored["outside"].tolist()
    return {"beside": stored["beside"].astype(bool), "outside": Outside(wall, cpu, tuple(stored["commands"].tolist()))}
