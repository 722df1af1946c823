# SPDX-License-Identifier: Apache-2.0
"""Intervals of made-up programs, and rules that every selection of them keeps."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from probe.formats.choices import SelectionOptions
from probe.formats.selection import Selection
from probe.selection.strata import Intervals

QUICK = SelectionOptions(max_phases=10, kmeans_seeds=2)


def program(
    rng: np.random.Generator,
    counts: list[int],
    rates: list[float],
    *,
    vector_noise: float = 0.002,
    time_noise: float = 0.01,
    blocks: int = 40,
    used: int = 8,
):
    """Phases of `counts` intervals, each with its own blocks and `rates` nanoseconds per instruction."""
    rows = []
    for count in counts:
        row = np.zeros(blocks)
        row[rng.choice(blocks, used, replace=False)] = rng.uniform(1e5, 1e6, used)
        rows.append(row * rng.lognormal(0, vector_noise, (count, blocks)))
    dense = np.vstack(rows)
    instructions = dense.sum(axis=1)
    rate = np.repeat(rates, counts) * 1e-9
    seconds = instructions * rate * rng.lognormal(0, time_noise, len(rate))
    eligible = np.ones(len(rate), dtype=bool)
    eligible[0] = eligible[-1] = len(rate) < 3
    return sparse.csr_array(dense), instructions, seconds, eligible


def check_invariants(selection: Selection, instructions, seconds, eligible) -> None:
    options = selection.options
    assert 1 <= len(selection.phases) <= options.max_phases
    assert [phase.id for phase in selection.phases] == list(range(len(selection.phases)))
    order = [phase.representative for phase in selection.phases]
    assert order == sorted(order)
    for phase in selection.phases:
        assert phase.representative in phase.members
        assert eligible[phase.representative]
        assert phase.members.dtype == np.int64
        assert np.array_equal(phase.members, np.flatnonzero(selection.labels == phase.id))
        assert phase.time_share == pytest.approx(seconds[phase.members].sum() / seconds.sum())
        if instructions.sum() > 0:
            assert phase.weight == pytest.approx(instructions[phase.members].sum() / instructions.sum())
        assert phase.seconds_spread >= 0
    kept = sum(phase.time_share for phase in selection.phases)
    assert kept + selection.dropped_time_share == pytest.approx(1.0)
    assert selection.dropped_time_share < options.drop_below
    assert np.isfinite(selection.selection_error)


def strata_of(selection: Selection) -> list[np.ndarray]:
    """The intervals of each stratum, all its parts together."""
    found: dict[int, list[np.ndarray]] = {}
    for phase in selection.phases:
        found.setdefault(phase.stratum if phase.stratum >= 0 else -1 - phase.id, []).append(phase.members)
    return [np.sort(np.concatenate(members)) for members in found.values()]


def intervals(seconds, work=None, eligible=None, points=None) -> Intervals:
    seconds = np.asarray(seconds, dtype=float)
    count = len(seconds)
    return Intervals.of(
        np.zeros((count, 2)) if points is None else np.asarray(points, dtype=float),
        np.ones(count) if work is None else np.asarray(work, dtype=float),
        seconds,
        np.ones(count, dtype=bool) if eligible is None else np.asarray(eligible, dtype=bool),
    )
