# SPDX-License-Identifier: Apache-2.0
"""Vector, work and time of each interval, from a profile and its timing run together."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from probe.formats.arrays import FloatArray
from probe.formats.profile import Profile
from probe.formats.reference import Reference
from probe.formats.timing import TimedProfile

WORK_UNIT = "counted instructions"


def vectors(profile: Profile, timed: TimedProfile) -> sp.csr_array:
    """Basic-block vectors of the timed intervals, M x B."""
    return sp.csr_array(timed.counts.multiply(profile.blocks.instructions[None, :].astype(np.float64)))


def work(profile: Profile, timed: TimedProfile) -> FloatArray:
    """Counted instructions of the timed intervals, shape (M,).

    Where too few of them are counted, nanoseconds of the traced run: other than those of the timing run they are times
    of, and as long as the interval's work is much.
    """
    if profile.thin:
        return np.asarray(np.add.reduceat(profile.seconds, timed.first_row[:-1]) * 1e9, dtype=np.float64)
    return np.asarray(timed.counts @ profile.blocks.instructions.astype(np.float64), dtype=np.float64)


def interval_times(timed: TimedProfile, reference: Reference) -> FloatArray:
    """Seconds of the timed intervals by the program's clock, their level over all runs, shape (M,); above zero."""
    return np.maximum(timed.levels(reference.clock), 1e-9)


def outside_share(timed: TimedProfile, reference: Reference) -> float:
    """Share of the timing run, by the program's clock, in other processes than the one with the intervals."""
    outside, own = (timed.outside.cpu, timed.cpu) if reference.clock == "cpu" else (timed.outside.wall, timed.seconds)
    return outside / max(outside + float(own.sum()), 1e-9)
