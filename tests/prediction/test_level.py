# SPDX-License-Identifier: Apache-2.0
"""The level of repeated times: disturbed stretches are outvoted, part by part."""

from __future__ import annotations

import math

import numpy as np
import pytest

from probe.formats.timing import level
from probe.prediction.level import level_of_sum


def runs_of(rng: np.random.Generator, count: int, parts: int = 200, slower: float = 1.4) -> np.ndarray:
    """Runs of equal parts of a second; in each, one stretch of a quarter of the run is disturbed."""
    times = np.exp(rng.normal(0.0, 0.005, (count, parts)))
    for run in times:
        first = int(rng.integers(parts * 3 // 4))
        run[first : first + parts // 4] *= slower
    return times


def test_a_disturbed_stretch_of_each_run_is_outvoted() -> None:
    rng = np.random.default_rng(7)
    errors, plain = [], []
    for _ in range(50):
        times = runs_of(rng, 5)
        errors.append(level_of_sum(times).seconds / 200 - 1)
        plain.append(np.median(times.sum(axis=1)) / 200 - 1)
    # The totals agree with each other, and are all wrong.
    assert np.abs(plain).min() > 0.09
    assert np.median(np.abs(errors)) < 0.005 and np.mean(np.abs(errors)) < 0.02


def test_a_run_that_is_disturbed_nearly_everywhere_is_no_sample_of_the_noise() -> None:
    rng = np.random.default_rng(11)
    times = np.exp(rng.normal(0.0, 0.002, (3, 200)))
    times[2] *= rng.uniform(1.025, 1.3, 200)
    assert level_of_sum(times).noise < 0.002


def test_the_noise_of_a_run_is_that_of_its_undisturbed_parts() -> None:
    rng = np.random.default_rng(10)
    own = np.exp(rng.normal(0.0, 0.004, (8, 1)))
    quiet, disturbed = level_of_sum(own * np.ones((8, 200))), level_of_sum(own * runs_of(rng, 8))
    assert quiet.noise == pytest.approx(0.004, rel=0.7)
    assert disturbed.noise == pytest.approx(quiet.noise, rel=0.5)


def test_the_error_covers_what_runs_have_in_common() -> None:
    rng = np.random.default_rng(8)
    held = 0
    for _ in range(300):
        drift = np.exp(rng.normal(0.0, 0.02, (6, 1)))
        found = level_of_sum(np.exp(rng.normal(0.0, 0.005, (6, 100))) * drift)
        # The lower quartile of the drift, which every part shares.
        held += abs(math.log(found.seconds / 100) + 0.6745 * 0.02) < 2.57 * found.error
    assert held / 300 > 0.9


def test_a_single_run_is_its_own_level_and_says_nothing_of_its_error() -> None:
    found = level_of_sum([np.array([1.0, 2.0])])
    assert found.seconds == 3.0 and math.isinf(found.error) and math.isinf(found.noise)
    assert np.isnan(level(np.zeros((0, 2)))).all()


@pytest.mark.parametrize("count", [3, 5, 20])
def test_the_level_depends_little_on_how_many_times_there_are(count: int) -> None:
    rng = np.random.default_rng(9)
    found = level(np.exp(rng.normal(0.0, 0.1, (count, 20000)))).mean()
    lowest = np.exp(rng.normal(0.0, 0.1, (count, 20000))).min(axis=0).mean()
    assert abs(found - math.exp(-0.055)) < 0.02
    assert count == 3 or lowest < found - 0.05
