# SPDX-License-Identifier: Apache-2.0
"""Run the whole program once more with stamps at the boundaries of its intervals: a plain run in every other respect.

Only cheap markers are used, so that the run takes as long as without them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from probe.formats.arrays import FloatArray, IntArray
from probe.formats.profile import Profile
from probe.formats.timing import IntervalRun, TimedProfile
from probe.pipeline.boundaries import Candidate, site_counts
from probe.pipeline.outputs import output_streams
from probe.pipeline.validate import StampedRun, longest_rising, stamped_run
from probe.tracers.hot_sites import SAVING_SECONDS as MARKER_SECONDS

MOST_COST = 0.002
"""Share of the run that all stamps together may cost. Boundaries whose markers cost more are left out."""

_LEAST_SECONDS = 1e-9


def cheap_boundaries(profile: Profile, timed: TimedProfile) -> IntArray:
    """Positions of the boundaries to stamp, ascending: as many as MOST_COST allows, cheapest markers first."""
    executions = np.asarray(site_counts(profile).sum(axis=0), dtype=np.float64).ravel()
    columns, marked = np.unique(timed.columns, return_counts=True)
    cost = executions[columns] * MARKER_SECONDS / max(timed.wall_seconds, _LEAST_SECONDS)
    order = np.argsort(cost / marked, kind="stable")
    kept = columns[order][np.cumsum(cost[order]) <= MOST_COST]
    return np.flatnonzero(np.isin(timed.columns, kept)).astype(np.int64)


def interval_run(profile: Profile, timed: TimedProfile, folder: Path, name: str, cpu: int | None) -> IntervalRun:
    """Run the program; its output stays in `folder` under `name`. Raises ProgramFailed, Diverged."""
    at = cheap_boundaries(profile, timed)
    wanted = [Candidate(int(b) + 1, int(timed.columns[b]), int(timed.executions[b])) for b in at]
    return split(timed, at, stamped_run(profile, wanted, streams=output_streams(folder, name), cpu=cpu))


def split(timed: TimedProfile, at: IntArray, run: StampedRun) -> IntervalRun:
    """The run's times interval by interval, from stamps at the boundaries `at`.

    Between two stamps with other boundaries in between, time is shared out as in the timing run: such intervals are
    judged together.
    """
    stamped = np.flatnonzero(np.isfinite(run.wall))
    stamped = stamped[longest_rising(run.wall[stamped])]
    edges = np.concatenate([[0], at[stamped] + 1, [timed.intervals]])
    wall = np.concatenate([[run.started], run.wall[stamped], [run.ended]])
    last = run.cpu[stamped][-1] if len(stamped) else run.started_cpu
    cpu = np.concatenate([[run.started_cpu], run.cpu[stamped], [max(run.ended_cpu, last)]])
    return IntervalRun(
        wall=run.ended - run.started + run.started_cpu,
        cpu=max(run.ended_cpu, _LEAST_SECONDS),
        interval_wall=_shared_out(timed.seconds, edges, np.diff(wall)),
        interval_cpu=_shared_out(timed.cpu, edges, np.diff(cpu)),
    )


def _shared_out(like: FloatArray, edges: IntArray, seconds: FloatArray) -> FloatArray:
    """`seconds` of each group of intervals, from edges[g] to edges[g + 1], in the proportions of `like`."""
    like = np.maximum(like, _LEAST_SECONDS)
    group = np.repeat(np.arange(len(seconds)), np.diff(edges))
    whole = np.bincount(group, weights=like, minlength=len(seconds))
    return np.maximum(like * (seconds / whole)[group], _LEAST_SECONDS)
