# SPDX-License-Identifier: Apache-2.0
"""Tell how several threads share the work of a run: how equally, when one works alone, when they do not run, and how
fast more threads could make it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from probe.formats.arrays import BoolArray, FloatArray, IntArray
from probe.formats.phase_record import SharingRecord
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
    instructions, own: by interval, counted instructions of all threads, and of the marking one, (M,).
    imbalance: by interval, how unequal the threads' counted instructions are, 0 to 1, (M,); None if not recorded.
    waiting: by interval, share of the time of `threads` processors in which no thread runs, 0 to 1, (M,). Threads may
        be asleep, queued for a processor, or not started yet.
    """

    threads: int
    marking: float
    alone: BoolArray
    seconds: FloatArray
    instructions: FloatArray
    own: FloatArray
    imbalance: FloatArray | None
    waiting: FloatArray

    @property
    def alone_share(self) -> float:
        """Share of the time in which the marking thread works alone, 0 to 1."""
        return float(self.seconds[self.alone].sum() / self.seconds.sum())

    def record(self, members: IntArray | None = None) -> SharingRecord:
        """How it is in these intervals, or in all: each counts by its time."""
        at = np.arange(len(self.seconds)) if members is None else members
        seconds = self.seconds[at]
        shares = seconds / seconds.sum() if seconds.sum() > 0 else np.full(len(at), 1.0 / max(len(at), 1))
        return SharingRecord(
            marking=_part(self.own[at].sum() / max(self.instructions[at].sum(), 1.0)),
            alone=_part(shares @ self.alone[at]),
            imbalance=None if self.imbalance is None else _part(shares @ self.imbalance[at]),
            waiting=_part(shares @ self.waiting[at]),
        )

    @property
    def fastest(self) -> float:
        """Amdahl's upper bound (AFIPS 1967): how many times as fast as this run one with any number of threads is at
        most, where what one thread does alone takes as long; infinite where one never does."""
        share = self.alone_share
        return 1.0 / share if share else float("inf")

    @property
    def hands_out(self) -> bool:
        """Whether the marking thread hardly takes part: the others are not equally far each time it reaches a place."""
        return self.marking * self.threads < _LITTLE

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
    threads = profile.program.threads
    used = timed.cpu / np.maximum(threads * timed.seconds, 1e-9)
    return Sharing(
        threads, float(own.sum() / max(whole.sum(), 1.0)), alone, timed.seconds, whole, own,
        _imbalance(profile, timed, threads), np.clip(1.0 - used, 0.0, 1.0),
    )  # fmt: skip


def _imbalance(profile: Profile, timed: TimedProfile, threads: int) -> FloatArray | None:
    """Imbalance percentage of DeRose, Homer and Johnson (Euro-Par 2007) over 100: (max - mean) / max x n / (n - 1).

    The mean is over the threads that share the work of the run; an interval without counted work is equal.
    """
    if profile.thread_work is None or threads < 2:
        return None
    by_thread = sum_rows(sp.csr_array(profile.thread_work), timed.first_row).toarray()
    most = by_thread.max(axis=1)
    mean = by_thread.sum(axis=1) / threads
    unequal: FloatArray = (most - mean) / np.maximum(most, 1.0) * threads / (threads - 1)
    return np.clip(unequal, 0.0, 1.0)


def _part(value: Any) -> float:
    """As the manifest has it: a millionth of the work is nothing."""
    return round(min(1.0, max(0.0, float(value))), 6)


def notes_of_sharing(sharing: Sharing, phases: Iterable[Phase]) -> list[str]:
    """What is worth knowing of it, for people."""
    whole = sharing.record()
    said = f"the thread that tells places executes {sharing.marking:.0%} of the counted instructions"
    equal = [
        *([f"imbalance {whole.imbalance:.0%}"] if whole.imbalance is not None else []),
        f"not running for {whole.waiting:.0%} of their time",
    ]
    shared = f"threads at work, interval by interval: {', '.join(equal)}"
    if sharing.alone_share < _WORTH_SAYING:
        return [f"{said}, and hardly ever works alone", shared]
    named = sharing.alone_in(phases)
    listed = ", ".join([*map(str, named[:_MOST_NAMED]), *["..."] * (len(named) > _MOST_NAMED)])
    where = f" (phase{'s' * (len(named) > 1)} {listed})"
    return [
        f"{said}, and works alone for {sharing.alone_share:.0%} of the time{where if named else ''}: more threads make "
        f"the run {sharing.fastest:.1f} times as fast at most (Amdahl's bound)",
        shared,
    ]


def doubts_of_sharing(sharing: Sharing) -> list[str]:
    """Warnings: a thread that hands out work tells places at which the others are not equally far in each run."""
    if not sharing.hands_out:
        return []
    return [
        f"the thread that tells places does {sharing.marking:.2%} of the work, and hands out the rest: the others are "
        "not equally far each time it reaches a place, and a restored region may be another piece of work; where "
        "restored regions differ from the run, probe it with one thread"
    ]
