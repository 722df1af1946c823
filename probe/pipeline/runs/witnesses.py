# SPDX-License-Identifier: Apache-2.0
"""Choose markers that place no boundary: where few others do, their counts tell whether a run repeated the traced one.

The boundaries of a steady loop are placed by the loop's own marker. It is executed as often whatever the program draws
inside, and so is each block that all steps go through.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from probe.formats.choices import INSTRUCTIONS
from probe.formats.profile import Profile
from probe.formats.timing import LEAST_SECONDS
from probe.pipeline.runs.boundaries import Candidate, site_counts
from probe.tracers.hot_sites import SAVING_SECONDS as MARKER_SECONDS

LEAST_KINDS = 3
"""Markers that a run is compared by, each pair told apart by how often the two are executed."""

_APART = 0.01
"""Share by which executions differ of markers that are told apart: a loop's head runs once more than its body."""

_BUSY = 5.0
"""Executions in the mean interval. Rarer ones may go by the time, as progress that is printed."""

_CHEAP = 0.0005
"""Share of the run that one such marker may cost."""


def witnesses(
    profile: Profile, wanted: Collection[Candidate], *, native_seconds: float | None = None
) -> tuple[int, ...]:  # fmt: skip
    """Columns to count beside those of `wanted`, the busiest first; none where these are of LEAST_KINDS already.

    None of a run whose threads share the work: who does how much may differ. None for an instruction-exact tracer: the
    processor that it shows may take the program other ways. `native_seconds`: as `candidates` has it.
    """
    if profile.first is not None or profile.unit == INSTRUCTIONS or not wanted:
        return ()
    totals = np.asarray(site_counts(profile).sum(axis=0), dtype=np.float64).ravel()
    seconds = float(profile.seconds.sum()) if native_seconds is None else native_seconds
    cheap = totals * MARKER_SECONDS <= _CHEAP * max(seconds, LEAST_SECONDS)
    busy = np.flatnonzero(cheap & (totals >= _BUSY * profile.intervals))
    told: list[float] = []
    chosen: list[int] = []
    for column in sorted({c.column for c in wanted}):
        if _is_apart(totals[column], told):
            told.append(totals[column])
    for column in busy[np.argsort(-totals[busy], kind="stable")].tolist():
        if len(told) >= LEAST_KINDS:
            break
        if _is_apart(totals[column], told):
            told.append(totals[column])
            chosen.append(column)
    return tuple(chosen)


def _is_apart(executions: float, others: Collection[float]) -> bool:
    return all(abs(executions - other) > _APART * max(executions, other) for other in others)
