# SPDX-License-Identifier: Apache-2.0
"""Give the phases of a selection the shares and spreads of interval times that are known better by now."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from probe.formats.arrays import FloatArray
from probe.formats.selection import Selection
from probe.selection.strata import Intervals, seconds_spread


def retimed(selection: Selection, work: FloatArray, seconds: FloatArray) -> Selection:
    """The same phases and representatives, timed by `seconds`; `work` as when they were chosen, both (N,).

    For selections whose time shares are those of their members. What was found out by choosing (errors, merges) stays.
    """
    count, whole = len(seconds), float(seconds.sum())
    run = Intervals.of(np.zeros((count, 1)), work, seconds, np.ones(count, dtype=np.bool_))
    phases = tuple(
        replace(
            phase,
            time_share=float(seconds[phase.members].sum()) / whole,
            seconds_spread=seconds_spread(run, phase.members),
        )
        for phase in selection.phases
    )
    dropped = float(seconds[selection.labels < 0].sum()) / whole
    return replace(selection, phases=phases, dropped_time_share=dropped)
