# SPDX-License-Identifier: Apache-2.0
"""Estimates combined by their variances, the two numbers of a disturbed node, and whether their intervals hold."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from made_probe import made_manifest
from two_phases import FAST, REFERENCE, SLOW

from probe.candidates.result import reference_of
from probe.formats.manifest import OutsideRecord
from probe.prediction.combination import combine
from probe.prediction.estimators import PhaseTiming, predict
from probe.prediction.level import level_of_sum
from probe.prediction.location import MEAN, common_error
from probe.prediction.variance import CALIBRATED_ALONE, DIRECT, SHARED, Term

NOISY, QUIET = (
    [Term("repeats_candidate", 1e-4, 8.0), Term("reference_runs", own, 2.0, of=CALIBRATED_ALONE)]
    for own in (1e-2, 1e-6)
)


def total(terms: tuple[Term, ...]) -> float:
    return math.fsum(t.variance for t in terms)


def test_the_weights_are_those_of_the_smallest_variance() -> None:
    found = combine(10.0, 10.5, NOISY, 0.05, 10.0)
    # 1e-2 against 0.05^2: the direct estimate has four fifths.
    assert found.direct_weight == pytest.approx(0.8)
    assert found.seconds == pytest.approx(10.0 * 1.05**0.8)
    own = total(found.terms) - 1e-4
    assert own == pytest.approx(1e-2 * 2.5e-3 / (1e-2 + 2.5e-3))
    assert {t.of for t in found.terms} == {SHARED, CALIBRATED_ALONE, DIRECT}
    for weight in (0.7, 0.9):
        assert own < (1 - weight) ** 2 * 1e-2 + weight**2 * 2.5e-3


def test_a_quiet_reference_leaves_the_calibrated_estimate_as_it_is() -> None:
    found = combine(10.0, 10.2, QUIET, 0.02, 10.0)
    assert found.seconds == pytest.approx(10.0, rel=1e-4)
    assert total(found.terms) <= total(tuple(QUIET))


def test_an_estimate_that_is_far_off_for_reasons_of_its_own_has_no_part() -> None:
    near, far = combine(10.0, 10.5, NOISY, 0.02, 10.0), combine(10.0, 20.0, NOISY, 0.02, 10.0)
    assert far.direct_weight < 0.03 < near.direct_weight
    # Never wider than without it.
    assert total(far.terms) <= total(tuple(NOISY))


@pytest.mark.parametrize(("direct", "spread"), [(math.nan, 0.02), (10.5, None)])
def test_without_a_direct_estimate_the_calibrated_one_is_the_answer(direct: float, spread: float | None) -> None:
    found = combine(10.0, direct, NOISY, spread, 10.0)
    assert (found.seconds, found.direct_weight, found.terms) == (10.0, 0.0, tuple(NOISY))


def test_a_noisy_reference_gives_the_direct_estimate_its_weight() -> None:
    # ET_ref is 10 % too long by a disturbed reference node; candidate times and work know nothing of that.
    noisy = replace(REFERENCE, runs=[11.0, 12.1, 13.3], selection_error=0.01)
    said = predict(noisy, [SLOW, FAST])
    assert said.estimators["calibrated"] == pytest.approx(23.1)
    assert 21.0 < said.seconds < 22.0 and said.estimators["combined"] == said.seconds
    assert said.variances["direct"] > 0
    assert said.half_width < predict(replace(noisy, selection_error=None), [SLOW, FAST]).half_width


@pytest.mark.parametrize("runs", [(1.0, 1.01, 1.15), (1.0, 1.01, 1.3), (1.0, 1.02, 1.5), (1.0, 1.2)])
def test_few_runs_of_a_disturbed_reference_widen_the_interval_and_no_more(runs: tuple[float, ...]) -> None:
    """The reference's part shrinks as the direct estimate takes over; how well it is known does not shrink with it."""
    rng = np.random.default_rng(3)
    voted = level_of_sum([0.11 * one * np.exp(rng.normal(0.0, 0.002, 100)) for one in runs])
    noisy = replace(
        REFERENCE, runs=[11.0 * one for one in runs], voted=(voted.seconds, voted.error, voted.noise),
        selection_error=0.01,
    )  # fmt: skip
    said = predict(noisy, [SLOW, FAST])
    # With two runs that differ by a fifth hardly anything is known.
    assert said.degrees_of_freedom > 0.9 and said.low > 0 and said.half_width < (0.5 if len(runs) > 2 else 10.0)


@pytest.mark.parametrize("error", [0.0, 1e-200, 10.0])
@pytest.mark.parametrize("noise", [0.0, 1e-200, 10.0])
def test_no_error_that_a_probe_may_name_is_too_much(error: float, noise: float) -> None:
    said = predict(replace(REFERENCE, voted=(11.0, error, noise)), [SLOW, FAST])
    assert 0 <= said.low <= said.seconds <= said.high < float("inf")


def test_one_phase_with_few_repeats_does_not_hide_what_rounds_have_in_common() -> None:
    rng = np.random.default_rng(4)
    bursts_of = np.where(rng.random(60) < 0.3, 1.2, 1.0)
    series = [bursts_of * np.exp(rng.normal(0.0, 0.002, 60)) for _ in range(5)]
    shares = np.array([0.3, 0.3, 0.2, 0.19, 0.01])
    whole, _ = common_error(series, shares, MEAN)
    short, _ = common_error([*series[:4], series[4][:2]], shares, MEAN)
    assert whole > 1e-5 and short == pytest.approx(whole, rel=0.1)
    assert common_error([], np.zeros(0), MEAN)[0] == 0.0


def test_time_that_both_estimates_scale_alike_keeps_the_errors_of_the_calibrated_one() -> None:
    """Half of the run is other processes' and scaled by the calibrated ratio: the direct estimate vouches for half."""
    inside = 0.5
    found = combine(10.0, 10.1, NOISY, 0.1, 10.0, outside=0.5)
    weight = 1e-2 / (1e-2 + 1e-2) / inside
    assert found.direct_weight == pytest.approx(weight) and found.seconds == pytest.approx(10.1)
    left = {t.of: t.variance for t in found.terms}
    assert left[CALIBRATED_ALONE] == pytest.approx(1e-2 * 0.5**2) and left[DIRECT] == pytest.approx(0.5**2 * 1e-2)
    # However noisy the reference, there is no more than the direct estimate; half of it has the reference's errors.
    most = combine(10.0, 10.1, NOISY, 0.001, 10.0, outside=0.5)
    assert (most.direct_weight, most.seconds) == pytest.approx((1.0, 10.1))
    assert total(most.terms) == pytest.approx(1e-4 + 1e-2 / 4 + 1e-6 / 4)


def test_other_processes_are_in_the_combined_interval() -> None:
    noisy = replace(REFERENCE, runs=[11.0, 12.1, 13.3], voted=(12.1, 0.05, 0.05), selection_error=0.01)
    alone, beside = (predict(replace(noisy, outside=share), [SLOW, FAST]) for share in (0.0, 0.2))
    assert (alone.variances["outside"], beside.variances["direct"] > 0) == (0.0, True)
    assert beside.variances["outside"] > 0.2**2 * 0.1**2
    assert beside.undisturbed is not None and beside.half_width > alone.half_width
    # A fifth at the calibrated ratio of 2.1 / 1.1, the rest by work.
    assert beside.estimators["direct"] == pytest.approx(21.0 + 0.2 * beside.estimators["calibrated"])


@pytest.mark.parametrize("work", [0.0, 1e9])
def test_probes_say_whether_the_direct_estimate_is_to_be_trusted(work: float) -> None:
    manifest, _ = made_manifest(3, 30, total_work=work)
    voted = replace(manifest.reference, voted=(1.0, 1.0), voted_error=(0.1, 0.1), voted_noise=(0.1, 0.1))
    outside = OutsideRecord(0.25, 1.0, 0.5, 1, ("sh",))
    reference = reference_of(replace(manifest, reference=voted, outside=outside))
    assert (reference.selection_error is not None) == (work > 0) and reference.outside == 0.25
    assert reference_of(manifest).selection_error is None, "older probes are predicted as they were"
    assert reference_of(manifest).outside == 0.0


# ---- a node as it was met, and undisturbed


def test_what_a_round_has_in_common_is_in_the_interval() -> None:
    """Bursts that last for a round: phases that are disturbed together say less than phases that are not."""
    rng = np.random.default_rng(3)
    stamped = replace(REFERENCE, voted=(11.0, 0.001, 0.001))
    common = np.repeat(np.where(rng.random(10) < 0.5, 1.0, 1.3)[:, None], 10, axis=1)
    apart = np.array([rng.permutation(column) for column in common.T]).T
    widths = []
    for table in (common, apart):
        phases = [PhaseTiming(c, 0.1, 0.1, 0.2, [1.0] * 5, table[:, c], 1.0) for c in range(10)]
        said = predict(stamped, phases)
        widths.append(said.half_width)
        assert said.seconds == pytest.approx(11.0 * table.mean())
    assert widths[0] > 1.5 * widths[1]


def test_quiet_nodes_have_one_number() -> None:
    rng = np.random.default_rng(4)
    times = np.exp(rng.normal(0, 0.002, (3, 10, 10)))
    phases = [PhaseTiming(c, 0.1, 0.1, 0.2, times[0, :, c], times[1, :, c], 1.0) for c in range(10)]
    said = predict(replace(REFERENCE, voted=(11.0, 0.001, 0.001)), phases)
    assert said.undisturbed is not None
    assert said.undisturbed.seconds == pytest.approx(said.seconds, rel=0.004)
    assert said.half_width < 0.02
