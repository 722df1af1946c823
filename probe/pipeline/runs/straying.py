# SPDX-License-Identifier: Apache-2.0
"""Tell, while a timing run is under way, that too many of its boundaries can no longer come in order.

A stamp that was made stays. So the boundaries that can still hold are at most a rising row of those stamped, and all
unstamped ones behind the row. Where that is too few already the end of the run would say the same, later.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from checkpoint.stubs.markers import Marker
from probe.formats.arrays import FloatArray, IntArray
from probe.formats.choices import INSTRUCTIONS
from probe.formats.profile import Profile
from probe.pipeline.runs.boundaries import Candidate, marker_of, rising_lengths
from probe.pipeline.runs.sound_boundaries import MOST_BAD_BOUNDARIES, NotRepeated, why_unlike
from probe.pipeline.runs.standing import MarkedRun

_LOOKING = 0.02
"""Share of the time that is spent on looking, on another processor than the program's."""


class Straying:
    """The stamps that a timing run of `profile` should make, looked at while it runs."""

    def __init__(self, profile: Profile, wanted: Sequence[Candidate]) -> None:
        self._profile = profile
        self._inner = profile.intervals - 1
        self._next = 0.0
        of: dict[Marker, dict[int, int]] = defaultdict(dict)
        # Of other traces some markers turn out at the end to be none, and their stamps with them. What ran before an
        # execve is none of the traced image's run, and may execute the same libraries.
        if profile.unit != INSTRUCTIONS and profile.first is None and not profile.prologue:
            for one in wanted:
                of[marker_of(profile, one.column)][one.count] = one.boundary
        self._boundaries = {marker: [at for _, at in sorted(those.items())] for marker, those in of.items()}
        self._marked = np.zeros(self._inner, dtype=bool)
        self._marked[[at - 1 for those in self._boundaries.values() for at in those]] = True

    def look(self, run: MarkedRun) -> None:
        """Raises NotRepeated where the run cannot repeat the traced one any more."""
        begun = time.monotonic()
        if begun < self._next:
            return
        stamped = np.full(self._inner, np.nan)
        for marker, boundaries in self._boundaries.items():
            try:
                stamps = run.markers.stamps(marker)
            except OSError:
                return  # it has ended just now, or executes another program
            for boundary, stamp in zip(boundaries, stamps, strict=True):
                # All as it was at one moment: what is read later has seen more.
                if stamp is not None and stamp.wall <= begun:
                    stamped[boundary - 1] = np.fmin(stamped[boundary - 1], stamp.wall)
        self._judge(stamped)
        self._next = begun + (time.monotonic() - begun) / _LOOKING

    def _judge(self, stamped: FloatArray) -> None:
        lost = surely_lost(stamped[self._marked])
        if lost > MOST_BAD_BOUNDARIES * self._inner:
            reached = int(np.flatnonzero(np.isfinite(stamped))[-1]) + 1
            raise NotRepeated(
                f"{self._profile.program.argv[0]}: the timing run did not repeat the traced run, and was stopped: of "
                f"{self._inner} interval boundaries {lost} can no longer come in order, of which the run was at the "
                f"{reached}th. {why_unlike(self._profile)}",
                partly=lost < self._inner / 2,
            )


def surely_lost(stamped: FloatArray) -> int:
    """How many boundaries at least will be missing or out of order at the run's end. `stamped`: when each was reached,
    in their order; NaN where it was not yet."""
    at = np.flatnonzero(np.isfinite(stamped))
    unstamped = len(stamped) - len(at)
    # Of the unstamped ones, those before each stamped one: they would come behind it.
    before = at - np.arange(len(at))
    rows: IntArray = np.array(rising_lengths(stamped[at]), dtype=np.int64) + unstamped - before
    return len(stamped) - int(rows.max(initial=unstamped))
