# SPDX-License-Identifier: Apache-2.0
"""Tell, while a timing run is under way, that too many of its boundaries can no longer come in order.

A stamp that was made stays. So the boundaries that can still hold are at most a rising row of those stamped, and all
behind the row of which a candidate is unstamped. Where that is too few already the end of the run would say the same,
later. The run goes another way, too, where most markers fire far from their places and some in order.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from checkpoint.stubs.markers import Marker
from probe.formats.arrays import BoolArray
from probe.formats.choices import INSTRUCTIONS
from probe.formats.profile import Profile
from probe.pipeline.runs.boundaries import Candidate, longest_rising, marker_of, rising_lengths
from probe.pipeline.runs.sound_boundaries import MOST_BAD_BOUNDARIES, NotRepeated, why_unlike
from probe.pipeline.runs.standing import MarkedRun

_LOOKING = 0.02
"""Share of the time that is spent on looking, on another processor than the program's."""

_FAR = 0.05
"""Share of all boundaries. A program that collects its garbage a little later has markers that are less far off."""

_LEAST_FAR = 2
"""Boundaries: of a short run one is more than that share."""


class Stamped(NamedTuple):
    """A candidate that was reached: its boundary, from 0, when, and by which marker."""

    boundary: int
    wall: float
    marker: int


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
        self._boundaries = {marker: [at - 1 for _, at in sorted(those.items())] for marker, those in of.items()}
        self._unmarked = self._inner - len({at for those in self._boundaries.values() for at in those})

    def look(self, run: MarkedRun) -> None:
        """Raises NotRepeated where the run cannot repeat the traced one any more."""
        begun = time.monotonic()
        if begun < self._next:
            return
        found: list[Stamped] = []
        may_come = np.zeros(self._inner, dtype=bool)
        for number, (marker, boundaries) in enumerate(self._boundaries.items()):
            try:
                stamps = run.markers.stamps(marker)
            except OSError:
                return  # it has ended just now, or executes another program
            for boundary, stamp in zip(boundaries, stamps, strict=True):
                # All as it was at one moment: what is read later has seen more.
                if stamp is not None and stamp.wall <= begun:
                    found.append(Stamped(boundary, stamp.wall, number))
                else:
                    may_come[boundary] = True
        self._judge(found, may_come)
        self._next = begun + (time.monotonic() - begun) / _LOOKING

    def _judge(self, stamped: Sequence[Stamped], may_come: BoolArray) -> None:
        lost = surely_lost(stamped, may_come) - self._unmarked
        if lost > MOST_BAD_BOUNDARIES * self._inner:
            said = f"of {self._inner} interval boundaries {lost} can no longer come in order"
        else:
            seen, far = len({one.marker for one in stamped}), far_off(stamped, max(_FAR * self._inner, _LEAST_FAR))
            if far <= seen / 2:
                return
            said = f"{far} of {seen} markers fire far from their places"
        reached = max(one.boundary for one in stamped) + 1
        raise NotRepeated(
            f"{self._profile.program.name}: the timing run did not repeat the traced run, and was stopped: {said}; "
            f"the run was at the {reached}th of {self._inner}. {why_unlike(self._profile)}",
            partly=lost < self._inner / 2,
        )


def surely_lost(stamped: Sequence[Stamped], may_come: BoolArray) -> int:
    """How many boundaries at least will be missing or out of order at the run's end. `may_come`: of which boundaries a
    candidate is unstamped yet."""
    ordered = _in_order(stamped)
    rows = rising_lengths(np.array([one.wall for one in ordered], dtype=np.float64))
    behind = np.concatenate([np.cumsum(may_come[::-1])[::-1], [0]])
    longest = max((row + int(behind[one.boundary + 1]) for one, row in zip(ordered, rows, strict=True)), default=0)
    return len(may_come) - max(longest, int(behind[0]))


def far_off(stamped: Sequence[Stamped], far: float) -> int:
    """How many markers were stamped for a boundary when the run was more than `far` boundaries from there, by most
    other stamps."""
    ordered = _in_order(stamped)
    times = np.array([one.wall for one in ordered], dtype=np.float64)
    row = longest_rising(times)
    boundaries = np.array([one.boundary for one in ordered], dtype=np.int64)
    at = np.clip(np.searchsorted(times[row], times, side="right") - 1, 0, None)
    off = np.abs(boundaries[row][at] - boundaries) > far
    return len({one.marker for one, is_off in zip(ordered, off.tolist(), strict=True) if is_off})


def _in_order(stamped: Sequence[Stamped]) -> list[Stamped]:
    """By boundary, the latest first: so no more than one stamp of a boundary is in a rising row."""
    return sorted(stamped, key=lambda one: (one.boundary, -one.wall))
