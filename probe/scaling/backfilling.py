# SPDX-License-Identifier: Apache-2.0
"""Simulation of a queue under EASY backfilling (Lifka, JSSPP 1995): first come first served, with a reservation.

The first job that does not fit gets the earliest time at which running jobs will have left it enough cores. Later jobs
may start before it where they do not delay that.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from checkpoint.errors import ProbeError


@dataclass(frozen=True)
class Job:
    """A job of the queue. submitted, seconds, limit in seconds; `seconds` is how long it will really run.

    priority: larger ones are first in line; equal ones in the order of submission.
    """

    name: str
    submitted: float
    cores: int
    seconds: float
    limit: float
    priority: float = 0.0


@dataclass(frozen=True)
class Running:
    """A job that runs: its cores, when it really ends, and when its limit ends it at the latest."""

    cores: int
    ends: float
    latest: float


def simulate(jobs: Sequence[Job], cores: int, *, now: float = 0.0, running: Sequence[Running] = ()) -> dict[str, float]:
    """When each job starts, by its name, on a partition of so many cores. Raises ProbeError for one that never fits."""
    if large := next((job for job in jobs if job.cores > cores), None):
        raise ProbeError(f"{large.name} asks for {large.cores} cores of {cores}; it never starts")
    state = _State(cores, now, running)
    coming = sorted(jobs, key=lambda job: job.submitted)
    position = 0
    while position < len(coming) or state.queue:
        while position < len(coming) and coming[position].submitted <= state.now:
            state.queue.append(coming[position])
            position += 1
        state.start_what_fits()
        following = [coming[position].submitted] if position < len(coming) else []
        if state.busy:
            following.append(state.busy[0][0])
        if not following:
            break
        state.advance(min(following))
    return state.starts


class _State:
    def __init__(self, cores: int, now: float, running: Sequence[Running]) -> None:
        self.now = now
        self.queue: list[Job] = []
        self.starts: dict[str, float] = {}
        # (real end, latest end, cores)
        self.busy = [(max(one.ends, now), max(one.latest, now), one.cores) for one in running]
        heapq.heapify(self.busy)
        self.free = cores - sum(one.cores for one in running)

    def advance(self, moment: float) -> None:
        """On to a moment; what has ended by then gives its cores back."""
        self.now = max(self.now, moment)
        while self.busy and self.busy[0][0] <= self.now:
            self.free += heapq.heappop(self.busy)[2]

    def start_what_fits(self) -> None:
        self.queue.sort(key=lambda job: (-job.priority, job.submitted))
        while self.queue and self.queue[0].cores <= self.free:
            self._start(self.queue.pop(0))
        if not self.queue:
            return
        shadow, spare = self._reservation(self.queue[0])
        for job in list(self.queue[1:]):
            ends_before = self.now + job.limit <= shadow
            if job.cores <= self.free and (ends_before or job.cores <= spare):
                self.queue.remove(job)
                self._start(job)
                if not ends_before:
                    spare -= job.cores

    def _start(self, job: Job) -> None:
        self.starts[job.name] = self.now
        self.free -= job.cores
        latest = self.now + max(job.limit, job.seconds)
        heapq.heappush(self.busy, (self.now + job.seconds, latest, job.cores))

    def _reservation(self, first: Job) -> tuple[float, int]:
        """When the first job will start at the latest, and cores that it will leave free then."""
        free = self.free
        for latest, cores in sorted((latest, cores) for _, latest, cores in self.busy):
            free += cores
            if free >= first.cores:
                return max(latest, self.now), free - first.cores
        # Cores that nobody gives back are not there: a node that is down.
        return float("inf"), 0
