# SPDX-License-Identifier: Apache-2.0
"""Another interval for a phase whose representative cannot be captured; phases that go without."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from probe.formats.choices import SelectionOptions
from probe.formats.selection import Phase, Selection
from probe.selection.substitute import another_representative, with_representatives, without_phases

VECTORS = sp.csr_array(np.array([[9, 1]] * 10 + [[1, 9]] * 10 + [[9, 1]] * 10, dtype=np.float64))
SECONDS = np.ones(30)
EVERY = np.arange(30)


def test_it_executes_the_same_code_far_away_in_time() -> None:
    assert another_representative(EVERY, VECTORS, SECONDS, [3]) in range(20, 29)
    # Scaled vectors are the same code.
    scaled = VECTORS * 3.0
    assert another_representative(EVERY, scaled, SECONDS, [15]) in (10, 19)


def test_none_is_tried_twice_nor_the_first_and_last_interval_of_the_run() -> None:
    tried = [5]
    while (other := another_representative(np.array([0, 5, 6, 7, 29]), VECTORS, SECONDS, tried)) is not None:
        tried.append(other)
    assert sorted(tried) == [5, 6, 7]


def test_of_equal_code_that_of_similar_time_is_taken() -> None:
    seconds = np.where(EVERY < 8, 1.0, 5.0)
    members = np.arange(1, 10)
    assert another_representative(members, VECTORS, seconds, [2]) == 7


def selection() -> Selection:
    labels = np.array([-1, 0, 0, 1, 1, 1], dtype=np.int64)
    phases = (
        Phase(0, 1, np.array([1, 2]), 0.3, 0.04, 0.0),
        Phase(1, 4, np.array([3, 4, 5]), 0.5, 0.9, 0.0),
    )
    return Selection(phases, labels, 0.06, 2, 0, 0, 0.0, None, (), SelectionOptions())


def test_phases_that_are_left_out_are_extrapolated_over() -> None:
    left = without_phases(selection(), {0})
    assert [p.id for p in left.phases] == [1] and left.labels.tolist() == [-1, -1, -1, 1, 1, 1]
    assert abs(left.dropped_time_share - 0.1) < 1e-12
    same = without_phases(selection(), set())
    assert same.labels.tolist() == selection().labels.tolist() and len(same.phases) == 2


def test_representatives_are_replaced() -> None:
    changed = with_representatives(selection(), {1: 5})
    assert [p.representative for p in changed.phases] == [1, 5]
    assert Selection.from_json(changed.to_json()).phases[1].representative == 5
