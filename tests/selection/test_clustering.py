# SPDX-License-Identifier: Apache-2.0
"""Projection, k-means for every k, and the BIC rule."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse

from probe.selection.clustering import Clustering, bic_choice, bic_score, project, sweep, variance_floor


def test_projection_is_of_normalised_rows_and_keeps_empty_rows_at_the_origin() -> None:
    dense = np.array([[2.0, 6.0, 0.0], [0.0, 0.0, 0.0], [1.0, 3.0, 0.0]])
    points = project(sparse.csr_matrix(dense), 5, seed=3)
    matrix = np.random.default_rng(3).uniform(-1, 1, (3, 5))
    assert points[0] == pytest.approx(0.25 * matrix[0] + 0.75 * matrix[1])
    assert np.array_equal(points[1], np.zeros(5))
    assert points[2] == pytest.approx(points[0])


def test_variance_floor_is_the_variance_of_moving_that_share_between_two_blocks() -> None:
    moved = 0.1
    a, b = np.zeros(2000), np.zeros(2000)
    a[0], b[1] = moved / 2, moved / 2
    base = np.full(2000, (1 - moved / 2) / 2000)
    points = project(sparse.csr_array(np.vstack([base + a, base + b])), 4000, seed=1)
    assert ((points[0] - points[1]) ** 2).mean() == pytest.approx(variance_floor(moved), rel=0.1)


def test_bic_of_two_points_in_two_clusters_by_hand() -> None:
    # R = 2, d = 1, k = 1, inertia 2: s^2 = 2 / (1 * 1) = 2.
    # -2/2 log(2 pi 2) - 2/4 - (0 + 1 + 1)/2 log 2
    expected = -np.log(4 * np.pi) - 0.5 - np.log(2)
    assert bic_score(np.array([2]), 2.0, 1, 1e-12) == pytest.approx(expected)
    # k = 2 over R = 4, inertia 4, d = 1: s^2 = 4 / 2 = 2, p = 1 + 2 + 1.
    expected = 4 * np.log(0.5) - 2 * np.log(4 * np.pi) - 1 - 2 * np.log(4)
    assert bic_score(np.array([2, 2]), 4.0, 1, 1e-12) == pytest.approx(expected)


def test_bic_rule_takes_the_smallest_good_k_also_where_scores_are_not_monotone() -> None:
    def one(k: int, seed: int, bic: float) -> Clustering:
        return Clustering(k, seed, np.zeros(1, dtype=np.int64), 0.0, bic)

    found = [
        one(1, 0, 0.0),
        one(2, 0, 95.0),
        one(2, 1, 10.0),
        one(3, 0, 20.0),
        one(4, 0, 100.0),
        one(4, 1, 91.0),
    ]
    simplest, good = bic_choice(found, 0.9)
    assert (simplest.k, simplest.seed) == (2, 0)
    assert [(c.k, c.seed) for c in good] == [(2, 0), (4, 0), (4, 1)]


def test_clustering_leaves_no_settings_in_the_environment_that_programs_inherit() -> None:
    code = (
        "import os; before = dict(os.environ)\n"
        "import numpy as np; from probe.selection.clustering import sweep\n"
        "sweep(np.eye(4), max_k=2, seeds=[1], iterations=9, resolution=0.01)\n"
        "assert dict(os.environ) == before, set(os.environ) ^ set(before)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sweep_tries_every_k_up_to_the_distinct_points() -> None:
    points = np.repeat(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]]), 5, axis=0)
    found = sweep(points, max_k=8, seeds=[1, 2], iterations=100, resolution=0.01)
    assert sorted({c.k for c in found}) == [1, 2, 3]
    assert bic_choice(found, 0.9)[0].k == 3


def test_differences_below_the_resolution_are_not_clusters() -> None:
    rng = np.random.default_rng(2)
    points = project(sparse.csr_array(np.full((200, 40), 1.0) * rng.lognormal(0, 0.002, (200, 40))), 15, 1)
    points[:100] += 1e-3  # two groups, but of one code for all that a probe cares
    coarse = sweep(points, max_k=5, seeds=[1], iterations=100, resolution=0.01)
    fine = sweep(points, max_k=5, seeds=[1], iterations=100, resolution=0.0)
    assert bic_choice(coarse, 0.9)[0].k == 1
    assert bic_choice(fine, 0.9)[0].k > 1
