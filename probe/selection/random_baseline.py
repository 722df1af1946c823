# SPDX-License-Identifier: Apache-2.0
"""The baseline that every selection has to beat: intervals chosen at random, each as likely as any other."""

from __future__ import annotations

import numpy as np

from probe.formats.arrays import FloatArray
from probe.formats.choices import SelectionOptions
from probe.formats.selection import Phase, Selection
from probe.selection.strata import Intervals, seconds_spread


def random_phases(run: Intervals, count: int, seed: int) -> list[Phase]:
    """At most `count` of the intervals that can be captured, drawn without replacement. Members are dealt out at random
    and mean nothing.

    Shares are an interval's own part of what was drawn, so that the estimators become ratio estimators (Cochran,
    *Sampling Techniques*, chapter 6): sum of times / sum of instructions of those drawn, times all instructions. With
    equal shares an interval of few instructions, and thus a high time per instruction, would decide alone.
    """
    rng = np.random.default_rng(seed)
    able = np.flatnonzero(run.eligible)
    drawn = np.sort(rng.choice(able, min(count, len(able)), replace=False))
    others = rng.permutation(np.setdiff1d(np.arange(len(run.seconds)), drawn))
    weight = _parts_of_one(run.work[drawn])
    share = _parts_of_one(run.seconds[drawn])
    phases = []
    for number, part in enumerate(np.array_split(others, len(drawn))):
        members = np.sort(np.append(part, drawn[number])).astype(np.int64)
        phases.append(
            Phase(number, int(drawn[number]), members, weight[number], share[number], seconds_spread(run, members))
        )
    return phases


def _parts_of_one(amounts: FloatArray) -> list[float]:
    total = float(amounts.sum())
    return (amounts / total).tolist() if total > 0 else [1.0 / len(amounts)] * len(amounts)


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
