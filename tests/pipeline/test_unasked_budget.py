# SPDX-License-Identifier: Apache-2.0
"""Say what a build may take for a width that nobody asked for, and which repeats that width is judged by."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.restore.criu_restore import RegionTime
from probe.formats.phase_record import CRIU, DIRECT
from probe.formats.reference import Reference
from probe.formats.timing import IntervalRun
from probe.node.measuring import MeasuredPhase, Restorers
from probe.pipeline.reference import SpreadRuns
from probe.pipeline.self_check import Known, judged_by, self_check, unasked_budget

SECONDS = st.floats(0.0, 1e6)


@given(so_far=SECONDS, run_seconds=SECONDS)
def test_a_build_at_most_doubles_and_does_not_outlast_patience(so_far: float, run_seconds: float) -> None:
    budget = unasked_budget(so_far, run_seconds)
    least = min(so_far / 4, 30)
    assert least <= budget <= so_far
    assert so_far + budget <= max(40 + 6.5 * run_seconds, so_far + least) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("so_far", "run_seconds", "budget"),
    [(20, 3, 20), (45, 3, 14.5), (90, 3, 22.5), (150, 30, 85), (64800, 7200, 30)],
)
def test_budgets_of_usual_builds(so_far: float, run_seconds: float, budget: float) -> None:
    assert unasked_budget(so_far, run_seconds) == pytest.approx(budget)


def test_without_a_phase_that_can_be_restored_nothing_is_narrowed(tmp_path: Path) -> None:
    """Packing says which phases cannot, and why."""

    def none(number: int) -> IntervalRun:
        raise AssertionError(number)

    early = Reference((2.0,), (2.0,), 0.0, (), "cpu", (), ())
    found = self_check(
        [], Restorers(tmp_path, None), SpreadRuns(none, runs=0, rounds=5), early, cast(Known, None), repeats=5,
        target_error=0.03, budget=lambda _: 60.0, scratch=tmp_path, cpu=None, progress=lambda _: None,
    )  # fmt: skip
    assert (found.measured, found.reference, found.narrowed) == ([], early, None)


def test_direct_repeats_judge_where_there_are_any() -> None:
    def measured(phase: int, restorer: str, times: int) -> MeasuredPhase:
        return MeasuredPhase(phase, (RegionTime(1.0, 1.0, 1.0, 1.0),) * times, restorer=restorer)

    found = judged_by(
        [
            measured(0, CRIU, 2),
            measured(0, DIRECT, 2),
            measured(1, DIRECT, 0),
            measured(1, CRIU, 2),
            measured(2, CRIU, 0),
        ]
    )
    assert {phase: one.restorer for phase, one in found.items()} == {0: DIRECT, 1: CRIU}
