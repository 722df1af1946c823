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
    """Counted instructions of the timed intervals, shape (M,)."""
    return np.asarray(timed.counts @ profile.blocks.instructions.astype(np.float64), dtype=np.float64)


def interval_times(timed: TimedProfile, reference: Reference) -> FloatArray:
    """Seconds of the timed intervals by the program's clock, their level over all runs, shape (M,); above zero."""
    return np.maximum(timed.levels(reference.clock), 1e-9)
