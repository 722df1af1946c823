# SPDX-License-Identifier: Apache-2.0
"""Check the marker `timed`: this file's test passes at its third try, which is the last."""

from __future__ import annotations

import pytest

_tries: list[int] = []


@pytest.mark.timed
def test_a_test_that_compares_times_is_tried_three_times(request: pytest.FixtureRequest) -> None:
    _tries.append(len(_tries) + 1)
    (again,) = request.node.iter_markers("flaky")
    assert _tries == [1, 2, 3] and again.kwargs == {"reruns": 2}
