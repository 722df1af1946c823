# SPDX-License-Identifier: Apache-2.0
"""ET_ref from two runs: what both have met is not outvoted, and makes the error larger."""

from __future__ import annotations

import numpy as np
import pytest

from probe.prediction.level import level_of_sum


def disturbed(share: float, excess: float = 0.2) -> tuple[float, float]:
    """Relative error said of two runs that are slower in a share of their parts each, and the true one."""
    rng = np.random.default_rng(3)
    runs = 1.0 + excess * (rng.random((2, 4000)) < share)
    voted = level_of_sum(runs)
    return voted.error, voted.seconds / 4000 - 1.0


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4, 0.5])
def test_two_runs_that_were_disturbed_say_so(share: float) -> None:
    said, true = disturbed(share)
    assert true > 0.2 * share * share
    assert 0.7 * true < said < 2.0 * true


def test_two_quiet_runs_have_no_more_error_than_they_show() -> None:
    rng = np.random.default_rng(4)
    runs = 1.0 + 0.005 * rng.normal(size=(2, 4000))
    assert level_of_sum(runs).error < 0.002
