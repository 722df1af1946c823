# SPDX-License-Identifier: Apache-2.0
"""Pauses between two copies of the counters: longer where looks take a processor from the program."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_LOOKS_PER_INTERVAL = 4
_SHORTEST = 0.005
"""Hot sites are looked for more often than intervals end, so that a new hot loop is not slowed down for long; but not
so often that the program keeps losing its counters from its cache to the tracer's."""

_MOST_LOOKING = 0.1
"""Share of a processor that looks may take where the program's threads want all of them. Threads that meet at barriers
all wait for the one that has lost its processor."""

_LONGEST = 0.05
"""However much looks take, intervals are no longer than they are by default."""

_NEW = 0.2
"""Weight of the last look in the mean of what looks take."""


class LookPauses:
    """The pauses of one run, of process `pid`. `threads`: how many of them work."""

    def __init__(self, pid: int, threads: int) -> None:
        self._crowded = threads >= len(os.sched_getaffinity(pid) | os.sched_getaffinity(0))
        self._cost = 0.0

    def seconds(self, interval: float) -> float:
        """From the begin of a look to that of the next; `interval`: the length of intervals that is wanted."""
        pause = max(interval / _LOOKS_PER_INTERVAL, min(interval, _SHORTEST))
        return max(pause, min(self._cost / _MOST_LOOKING, _LONGEST)) if self._crowded else pause

    def row(self, interval: float) -> float:
        """Seconds that an interval takes with these pauses, where `interval` was wanted."""
        return max(interval, self.seconds(interval))

    def timed(self, look: Callable[[], bool]) -> bool:
        """What `look` returns; its CPU time counts into the pauses to come."""
        before = time.process_time()
        try:
            return look()
        finally:
            took = time.process_time() - before
            self._cost += (took - self._cost) * (_NEW if self._cost else 1.0)
