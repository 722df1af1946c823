# SPDX-License-Identifier: Apache-2.0
"""Intervals hold on machines that were recorded, quiet and disturbed: no estimator may give away what they had."""

from __future__ import annotations

import pytest
from benchmarks.noise.offline import predicted
from benchmarks.noise.recorded import DISTURBED, QUIET, Record, load_all
from benchmarks.noise.report import BARS

RECORDS = [record for record in load_all() if "failure" not in record]


def _of(state: str) -> list[Record]:
    return [record for record in RECORDS if record["state"] == state]


def test_at_least_ten_programs_are_recorded_in_both_states() -> None:
    assert set(BARS) == {QUIET, DISTURBED}
    assert min(len({record["program"] for record in _of(state)}) for state in BARS) >= 10


@pytest.mark.parametrize("state", [QUIET, DISTURBED])
def test_the_interval_holds_the_mean_of_full_runs(state: str) -> None:
    said = [(predicted(record), record["truth"]) for record in _of(state)]
    missed = [one.seconds / truth - 1 for one, truth in said if not one.low <= truth <= one.high]
    assert len(missed) <= len(said) / 10, missed
