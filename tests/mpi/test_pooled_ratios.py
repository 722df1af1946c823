# SPDX-License-Identifier: Apache-2.0
"""Ratios of clusters are drawn together: the largest of several uncertain ratios is mostly the luckiest."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi_recordings import made_call, made_recording

from probe.mpi.probes.building import MpiProbe
from probe.mpi.probes.clusters import Cluster
from probe.mpi.probes.pooling import Estimate, drawn_together
from probe.mpi.probes.predicting import predict
from probe.mpi.simulate import Where
from probe.simulation.platform import Links

TRIALS = 300


def estimate(ratio: float, error: float) -> Estimate:
    """error: standard error of the logarithm."""
    return Estimate(ratio, ratio * math.exp(-1.96 * error), ratio * math.exp(1.96 * error), error)


def trials(clusters: int, between: float, seed: int) -> list[tuple[float, list[Estimate]]]:
    """True largest ratio and the estimates, many times: errors of 7 to 14 %, ratios that differ by `between`."""
    random, made = np.random.default_rng(seed), []
    for _ in range(TRIALS):
        true = between * random.normal(size=clusters)
        errors = 0.1 * np.exp(0.3 * random.normal(size=clusters))
        seen = true + errors * random.normal(size=clusters)
        made.append((math.exp(true.max()), [estimate(math.exp(v), e) for v, e in zip(seen, errors, strict=True)]))
    return made


def held(true: float, found: list[Estimate]) -> bool:
    """As in `predict`: all at their low, and all at their high ends."""
    return max(one.low for one in found) <= true <= max(one.high for one in found)


def off(true: float, found: list[Estimate]) -> float:
    return math.log(max(one.ratio for one in found) / true)


@pytest.mark.parametrize("clusters", [2, 4, 16])
@pytest.mark.parametrize("between", [0.0, 0.05, 0.2])
def test_the_largest_is_not_the_luckiest(clusters: int, between: float) -> None:
    made = trials(clusters, between, seed=clusters)
    drawn = [(true, drawn_together(found)) for true, found in made]
    assert np.mean([held(true, found) for true, found in drawn]) >= 0.93
    assert abs(np.mean([off(true, found) for true, found in drawn])) <= 0.06
    if between < 0.1:
        before, now = (np.mean([off(true, found) ** 2 for true, found in some]) for some in (made, drawn))
        assert now < before


def test_as_they_are_they_are_too_large() -> None:
    """What the guard is for: a third of the intervals fails that hold when drawn together."""
    made = trials(16, 0.0, seed=1)
    assert np.mean([held(true, found) for true, found in made]) < 0.75
    assert np.mean([off(true, found) for true, found in made]) > 0.15


def test_what_is_known_well_stays() -> None:
    found = [estimate(0.8, 0.001), estimate(1.3, 0.001), estimate(1.1, 0.001)]
    assert [one.ratio for one in drawn_together(found)] == pytest.approx([0.8, 1.3, 1.1], rel=1e-4)


def test_what_is_known_least_moves_most_and_reaches_as_far_as_before() -> None:
    before = estimate(1.2, 0.2)
    sharp, dull = drawn_together([estimate(1.0, 0.01), before])
    assert sharp.ratio == pytest.approx(1.0, abs=0.01) and dull.ratio < 1.02
    assert dull.high == before.high and dull.low == pytest.approx(before.low * dull.ratio / 1.2)


@pytest.mark.parametrize("clusters", [4, 16, 64])
def test_one_that_is_slower_than_all_others_is_held(clusters: int) -> None:
    """Ratios are no normal distribution then: the slowest is drawn to the others by too much."""
    random, made = np.random.default_rng(clusters), []
    for _ in range(TRIALS):
        true = np.zeros(clusters)
        true[0] = 0.3
        seen = true + 0.1 * random.normal(size=clusters)
        made.append(held(math.exp(0.3), drawn_together([estimate(math.exp(v), 0.1) for v in seen])))
    assert np.mean(made) >= 0.95


def test_a_single_ratio_and_intervals_without_width_are_left() -> None:
    assert drawn_together([estimate(1.5, 0.3)]) == [estimate(1.5, 0.3)]
    exact = drawn_together([Estimate(2.0, 2.0, 2.0, 0.0), Estimate(1.0, 1.0, 1.0, 0.0)])
    assert [one.ratio for one in exact] == pytest.approx([2.0, 1.0])
    assert drawn_together([]) == []


def test_a_prediction_uses_them_and_tells_both(tmp_path: Path) -> None:
    calls = [made_call("Barrier", computing=1.0)]
    recording = made_recording(tmp_path / "recording", [calls, calls])
    probe = MpiProbe(recording, (Cluster(0, (0,), 1.0, 0.0), Cluster(1, (1,), 1.0, 0.0)))

    def run(path: Path) -> Any:
        one = estimate({"rank-0.probe": 1.2, "rank-1.probe": 0.9}[path.name], 0.25)
        reference = SimpleNamespace(reference=SimpleNamespace(seconds=1.0))
        return SimpleNamespace(
            prediction=SimpleNamespace(
                seconds=one.ratio, low=one.low, high=one.high, variances={"load": 0.04, "repeats": one.error**2 - 0.04}
            ),
            manifest=reference,
            warnings=(),
        )

    found = predict(probe, run, Where(network="torus:2", links=Links(2e9, 1e-6)))
    mean = math.sqrt(1.2 * 0.9)
    assert [one.alone for one in found.ratios] == [1.2, 0.9]
    assert [one.ratio for one in found.ratios] == pytest.approx([mean, mean])
    assert found.seconds == pytest.approx(mean, rel=0.02)
