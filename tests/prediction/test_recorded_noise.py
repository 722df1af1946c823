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
def test_the_interval_holds_full_runs_and_their_mean(state: str) -> None:
    said = [(predicted(record), record) for record in _of(state)]
    missed = [r["program"] for one, r in said if not one.low <= r["truth"] <= one.high]
    assert len(missed) <= len(said) / 10, missed
    single = [one.low <= seconds <= one.high for one, r in said for seconds in r["full"]]
    assert sum(single) >= 0.9 * len(single)


def test_a_quiet_candidate_is_not_taken_for_as_busy_as_the_reference_node() -> None:
    (record,) = (r for r in _of(QUIET) if r["program"] == "nbody-short")
    steady = {phase: [times[0]] * len(times) for phase, times in record["candidate"].items()}
    busy, quiet = predicted(record), predicted({**record, "candidate": steady})
    assert busy.half_width > 0.2 and quiet.half_width < 0.1
