# SPDX-License-Identifier: Apache-2.0
"""The baseline that every selection has to beat: intervals chosen at random, all of the same weight."""

from __future__ import annotations

import numpy as np

from probe.selected import Phase, Selection
from probe.strata import Intervals, SelectionOptions, seconds_spread


def random_phases(run: Intervals, count: int, seed: int) -> list[Phase]:
    """At most `count` of the intervals that can be captured, drawn without replacement, each for an equal share of the
    run: of its time, and of its instructions. Members are dealt out at random and mean nothing."""
    rng = np.random.default_rng(seed)
    able = np.flatnonzero(run.eligible)
    drawn = np.sort(rng.choice(able, min(count, len(able)), replace=False))
    others = rng.permutation(np.setdiff1d(np.arange(len(run.seconds)), drawn))
    phases = []
    for number, part in enumerate(np.array_split(others, len(drawn))):
        members = np.sort(np.append(part, drawn[number])).astype(np.int64)
        share = 1.0 / len(drawn)
        phases.append(Phase(number, int(drawn[number]), members, share, share, seconds_spread(run, members)))
    return phases


def random_selection(phases: list[Phase], error: float, options: SelectionOptions) -> Selection:
    """The same as a selection; nothing was held out, merged or dropped."""
    labels = np.empty(sum(len(phase.members) for phase in phases), dtype=np.int64)
    for phase in phases:
        labels[phase.members] = phase.id
    return Selection(
        phases=tuple(phases),
        labels=labels,
        dropped_time_share=0.0,
        k_bic=0,
        seed=options.seed,
        cuts=0,
        selection_error=error,
        held_out_error=None,
        merges=(),
        options=options,
    )
