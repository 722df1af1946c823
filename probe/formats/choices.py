# SPDX-License-Identifier: Apache-2.0
"""Choices that a user has, by name, and the defaults. Nothing heavy is imported: the command line starts here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SECONDS, INSTRUCTIONS = "seconds", "instructions"
"""What a profile's intervals are equal in (`Profile.unit`): by the native tracer, by instruction-exact ones."""

RECONSTRUCT, SIMPOINT, RANDOM = "reconstruct", "simpoint", "random"
SELECTIONS = (RECONSTRUCT, SIMPOINT, RANDOM)
"""Ways to select."""


@dataclass(frozen=True)
class SelectionOptions:
    """All numbers of the selection. The defaults of the first group are the thesis's and SimPoint's.

    method: RECONSTRUCT, which the second group is about; SIMPOINT, without it; or RANDOM, a baseline of `max_phases`
        intervals.
    dimensions: coordinates the vectors are projected to.
    max_phases: most strata, and most k, tried.
    seed: of the projection, of k-means (seed, seed + 1, ...) and of the folds.
    kmeans_seeds, iterations: starts of k-means for each k, and most iterations of each.
    drop_below: the smallest phases that together hold less than this share of the time, and less than this
        share of the counted instructions, are dropped.
    bic_threshold: share of the range of BIC scores that is good enough.

    refine_by_time: choose and cut strata by time; False is SimPoint's selection.
    resolution: share of an interval's instructions by which vectors must differ to count as different code
        (0 with refine_by_time=False is plain SimPoint).
    rate_spread: spread of log seconds per instruction up to which a stratum is one behaviour (timing noise).
    length_spread: the same for the log of the interval's seconds, which say less about behaviour.
    rate_floor: differences of log seconds per instruction below this do not decide on a representative.
    split_above: smallest S_c x spread worth a phase of its own.
    unseen_spread: spread of the log ratio between two nodes that intervals of one stratum may have for reasons that
        no time on this node shows.
    part_above: largest S_c x spread, that one included, that one representative should stand for.
    part_intervals: fewest intervals that one of several representatives of a stratum stands for, on average.
    time_emphasis: weight of the rate against the code when a representative is chosen.
    folds: parts of the intervals held out in turn.
    tolerance_relative, tolerance_absolute: a selection whose held-out error is no worse than the best one's by
        this share plus this much is as good, and the one with fewest phases is taken.
    """

    method: str = RECONSTRUCT
    dimensions: int = 15
    max_phases: int = 30
    seed: int = 1
    kmeans_seeds: int = 5
    iterations: int = 100
    drop_below: float = 0.01
    bic_threshold: float = 0.9

    refine_by_time: bool = True
    resolution: float = 0.01
    rate_spread: float = 0.05
    rate_floor: float = 0.01
    length_spread: float = 0.25
    split_above: float = 0.002
    unseen_spread: float = 0.1
    part_above: float = 0.02
    part_intervals: int = 4
    time_emphasis: float = 4.0
    folds: int = 5
    tolerance_relative: float = 0.1
    tolerance_absolute: float = 0.002


AUTO: Literal["auto"] = "auto"
"""As a warm-up: as few intervals as do (probe.pipeline.warmup)."""

DEFAULT_WARMUP = 1
"""Intervals, where no other number is asked for, and where none can be tried."""

NATIVE, VALGRIND, PIN = "native", "valgrind", "pin"
TRACERS = ("auto", NATIVE, VALGRIND, PIN)


def unit_of(tracer: str) -> str:
    """What the intervals of that tracer are equal in, and what their length is given in."""
    return SECONDS if tracer in ("auto", NATIVE) else INSTRUCTIONS
