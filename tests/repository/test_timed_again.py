# SPDX-License-Identifier: Apache-2.0
"""Check what is tried again: tests of the marker `timed`, and builds refused for the host's own changes of speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint.errors import Unpredictable
from probe.prediction import limits

_tries: list[int] = []
_refused: list[int] = []


@pytest.mark.timed
def test_a_test_that_compares_times_is_tried_three_times(request: pytest.FixtureRequest) -> None:
    _tries.append(len(_tries) + 1)
    (again,) = request.node.iter_markers("flaky")
    assert _tries == [1, 2, 3] and again.kwargs == {"reruns": 2}


def test_a_build_refused_for_the_hosts_speeds_is_tried_again() -> None:
    _refused.append(len(_refused) + 1)
    said = "more or less than in the run, in the median: try --warmup auto"
    assert said in Path(limits.__file__).read_text()
    if len(_refused) < 3:
        raise Unpredictable(f"restored regions take 51% {said}, or a longer --interval")


def test_other_failures_are_final(request: pytest.FixtureRequest) -> None:
    (again,) = request.node.iter_markers("flaky")
    assert not again.kwargs["condition"](Unpredictable("the phases miss the time of intervals held out by 51%"))
    assert not again.kwargs["condition"](AssertionError("1 == 2"))
