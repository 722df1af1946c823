# SPDX-License-Identifier: Apache-2.0
"""Tell how several threads share the work of a run: when one works alone, and how fast more threads could make it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from probe.formats.arrays import BoolArray, FloatArray
from probe.formats.profile import Profile
from probe.formats.selection import Phase
from probe.formats.timing import TimedProfile, sum_rows

OTHERS_WORK = 0.01
"""Share of an interval's counted instructions from which on threads beside the marking one work in it."""

ONE_PROCESSOR = 1.1
"""CPU seconds per second up to which one thread works: others may work in code that is not counted, or spin."""

_LITTLE = 0.05
"""Of an equal share of the work: a marking thread that does less hands out work to the others."""

_WORTH_SAYING = 0.01
_MOST_NAMED = 8


@dataclass(frozen=True)
class Sharing:
    """How threads share the work of a run. The *marking* thread is the one whose executions tell places.

    threads: how many share the work.
    marking: share of the counted instructions that the marking thread executes, 0 to 1.
    alone: by interval, whether the marking thread works alone in it, (M,).
    seconds: by interval, wall seconds of the timing run, (M,).
    """

    threads: int
    marking: float
    alone: BoolArray
    seconds: FloatArray

    @property
    def alone_share(self) -> float:
        """Share of the time in which the marking thread works alone, 0 to 1."""
        return float(self.seconds[self.alone].sum() / self.seconds.sum())

    @property
    def fastest(self) -> float:
        """Amdahl's upper bound (AFIPS 1967): how many times as fast as this run one with any number of threads is at
        most, where what one thread does alone takes as long; infinite where one never does."""
        share = self.alone_share
        return 1.0 / share if share else float("inf")

    def alone_in(self, phases: Iterable[Phase]) -> list[int]:
        """Numbers of the phases in most of whose time the marking thread works alone."""
        return [
            phase.id
            for phase in phases
            if 2 * self.seconds[phase.members][self.alone[phase.members]].sum() > self.seconds[phase.members].sum()
        ]


def sharing_of(profile: Profile, timed: TimedProfile) -> Sharing | None:
    """How the threads of a traced and timed run share its work; None where one thread does it, or where too little was
    counted to tell.

    The marking thread works alone in an interval in which no other executes counted code, and in which the process uses
    no more than one processor.
    """
    if profile.first is None or profile.thin:
        return None
    instructions = profile.blocks.instructions.astype(np.float64)
    whole = timed.counts @ instructions
    own = sum_rows(profile.first, timed.first_row) @ instructions
    alone: BoolArray = (whole - own < OTHERS_WORK * whole) & (timed.cpu < ONE_PROCESSOR * timed.seconds)
    return Sharing(profile.program.threads, float(own.sum() / max(whole.sum(), 1.0)), alone, timed.seconds)


def notes_of_sharing(sharing: Sharing, phases: Iterable[Phase]) -> list[str]:
    """What is worth knowing of it, for people."""
    said = f"the thread that tells places executes {sharing.marking:.0%} of the counted instructions"
    if sharing.alone_share < _WORTH_SAYING:
        return [f"{said}, and hardly ever works alone"]
    named = sharing.alone_in(phases)
    listed = ", ".join([*map(str, named[:_MOST_NAMED]), *["..."] * (len(named) > _MOST_NAMED)])
    where = f" (phase{'s' * (len(named) > 1)} {listed})"
    return [
        f"{said}, and works alone for {sharing.alone_share:.0%} of the time{where if named else ''}: more threads make "
        f"the run {sharing.fastest:.1f} times as fast at most (Amdahl's bound)"
    ]


def doubts_of_sharing(sharing: Sharing) -> list[str]:
    """Warnings: a thread that hands out work tells places at which the others are not equally far in each run."""
    if sharing.marking * sharing.threads >= _LITTLE:
        return []
    return [
        f"the thread that tells places does {sharing.marking:.2%} of the work, and hands out the rest: the others are "
        "not equally far each time it reaches a place, and a restored region may be another piece of work; where "
        "restored regions differ from the run, probe it with one thread"
    ]
