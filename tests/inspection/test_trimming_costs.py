# SPDX-License-Identifier: Apache-2.0
"""Costs of trimming, stated beforehand: the size of the trimmed probe, and its error."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whole_probe import manifest_of, record, whole

from probe.formats.phase_record import InRun, PhaseRecord
from probe.inspection.trimming import by_importance, expected_errors, tradeoff, tradeoff_json, trim
from probe.prediction.inputs import PhaseTiming, PredictionOptions, ReferenceRun, measure
from probe.prediction.variance import variance_terms

__all__ = ["whole"]


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_sizes_are_predicted(whole: Path, tmp_path: Path, how: Any) -> None:
    trim(whole, whole, phases=4, compression=how)
    rows = tradeoff(whole)
    assert [row.kept for row in rows] == [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 0)]
    for row in rows:
        trimmed = trim(whole, tmp_path / "small.probe", phases=row.phases, compression=how)
        assert row.size_bytes == pytest.approx(trimmed.size_bytes, rel=0.03)
        assert row.coverage == pytest.approx(trimmed.manifest.coverage)
        assert row.expected_error == trimmed.expected_error
    assert json.loads(json.dumps(tradeoff_json(whole)))["tradeoff"][1]["kept"] == [1, 2]


def rated(shares: Sequence[float], rates: Sequence[float]) -> list[PhaseRecord]:
    """Phases with these seconds per unit of work."""
    return [
        record(n, time_share=share, work=1e6, in_run=InRun(0.0, rate * 1e6, rate * 1e6))
        for n, (share, rate) in enumerate(zip(shares, rates, strict=True))
    ]


def test_the_expected_error_is_the_one_defined() -> None:
    phases = rated([0.5, 0.3, 0.2], [1e-9, 1.2e-9, 0.9e-9])
    logs, shares = np.log([1e-9, 1.2e-9, 0.9e-9]), np.array([0.5, 0.3, 0.2])
    between = (shares * (logs - (shares * logs).sum()) ** 2).sum() / (1 - (shares**2).sum())
    found = expected_errors(manifest_of(phases, selection__held_out_error=0.04), [0.2, 0.6, 1.0])
    assert found == pytest.approx([math.hypot(0.04, missing * math.sqrt(between)) for missing in (0.8, 0.4, 0.0)])
    # Without intervals held out the selection's own error stands in for theirs.
    unheld = manifest_of(phases, selection__held_out_error=None, selection__error=-0.07)
    assert expected_errors(unheld, [1.0]) == [0.07]


def test_what_is_unknown_counts_as_entirely_uncertain() -> None:
    one = manifest_of(rated([1.0], [1e-9]), selection__held_out_error=0.0)
    idle = manifest_of([record(0, work=0.0), record(1, work=0.0)], selection__held_out_error=0.0)
    apart = manifest_of(rated([0.5, 0.5], [1e-9, 1e-6]), selection__held_out_error=0.0)
    for manifest in (one, idle, apart):
        assert expected_errors(manifest, [0.25]) == [0.75]


@given(
    shares=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8),
    rates=st.lists(st.floats(1e-10, 1e-7), min_size=8, max_size=8),
    held_out=st.one_of(st.none(), st.floats(0, 2)),
)
def test_the_expected_error_falls_with_every_phase(
    shares: list[float], rates: list[float], held_out: float | None
) -> None:
    total = sum(shares)
    manifest = manifest_of(rated([s / total for s in shares], rates[: len(shares)]), selection__held_out_error=held_out)
    coverages = np.cumsum([p.time_share for p in by_importance(manifest)]).tolist()
    errors = expected_errors(manifest, coverages)
    assert errors == sorted(errors, reverse=True)
    least = abs(manifest.selection.error if held_out is None else held_out)
    assert all(least <= error <= math.hypot(least, 1.0) for error in errors)


def test_it_bounds_the_uncovered_variance_where_ratios_follow_rates() -> None:
    """The interval's own term, on a node whose ratios depend on the rates with a slope of at most 1."""
    shares, rates = [0.4, 0.3, 0.2], [1e-9, 1.3e-9, 0.8e-9]
    phases = rated(shares, rates)
    coverage = sum(shares)
    (expected,) = expected_errors(manifest_of(phases, selection__held_out_error=0.0), [coverage])
    for slope in (0.0, 0.3, 0.6, 0.9):
        timings = [
            PhaseTiming(
                p.id, p.weight, p.time_share, p.work, p.criu.wall, [0.01 * (rate / 1e-9) ** slope] * 3, p.in_run.wall
            )
            for p, rate in zip(phases, rates, strict=True)
        ]
        options = PredictionOptions()
        terms = variance_terms(ReferenceRun([1.0] * 3, 1e8), measure(timings, options), coverage, options)
        uncovered = sum(term.variance for term in terms if term.cause == "uncovered")
        assert math.sqrt(uncovered) <= expected
    assert math.sqrt(uncovered) > 0.8 * expected
