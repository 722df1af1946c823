# SPDX-License-Identifier: Apache-2.0
"""Estimators: the formulae by hand, their properties, and what they say of bad input."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from two_phases import FAST, REFERENCE, SLOW

from checkpoint.errors import NoPrediction, ProbeError
from probe.prediction.estimators import PhaseTiming, PredictionOptions, ReferenceRun, predict


def test_thesis_formula_is_wrong_where_weight_is_not_time_share_and_the_calibrated_one_is_right() -> None:
    prediction = predict(REFERENCE, [SLOW, FAST])
    assert prediction.seconds == pytest.approx(21.0)
    assert prediction.estimators["calibrated"] == pytest.approx(21.0)
    assert prediction.estimators["direct"] == pytest.approx(21.0)  # (0.5 * 20 + 0.5 * 1) * 2
    assert prediction.estimators["strube"] == pytest.approx(16.5)  # 11 * (0.5 * 2 + 0.5 * 1)
    assert prediction.low < 21.0 < prediction.high
    assert prediction.coverage == pytest.approx(1.0)


def test_thesis_formula_divides_by_noise_and_the_others_do_not() -> None:
    prediction = predict(replace(REFERENCE, noise=1.1), [SLOW, FAST])
    assert prediction.estimators["strube"] == pytest.approx(15.0)
    assert prediction.estimators["calibrated"] == pytest.approx(21.0)
    assert prediction.estimators["direct"] == pytest.approx(21.0)


def test_three_formulae_by_hand_with_a_failed_phase_and_equal_speed_per_work() -> None:
    reference = ReferenceRun(runs=[90.0, 100.0, 130.0], total_work=1000.0, noise=1.25)
    phases = [
        PhaseTiming(0, 0.6, 0.5, 10.0, t_ref=[0.8, 0.9, 1.0], t_cand=[1.8, 1.7, 2.5], t_run=0.85),
        PhaseTiming(1, 0.3, 0.45, 20.0, t_ref=[3.0, 3.0, 3.0], t_cand=[3.0, 3.0, 3.0], t_run=3.0),
        PhaseTiming(2, 0.1, 0.05, 20.0, t_ref=[1.0], t_cand=[], t_run=1.0, status="failed"),
    ]
    prediction = predict(reference, phases)
    # Medians: ET_ref 100, ratios 1.8 / 0.9 = 2 and 1; kept: time 0.95, weight 0.9.
    assert prediction.coverage == pytest.approx(0.95)
    assert prediction.estimators["calibrated"] == pytest.approx(100 * (0.5 * 2 + 0.45 * 1) / 0.95)
    assert prediction.estimators["direct"] == pytest.approx((0.6 * 0.18 + 0.3 * 0.15) * 1000 / 0.9)
    assert prediction.estimators["strube"] == pytest.approx(100 * (0.6 * 2 + 0.3 * 1) / 1.25 / 0.9)
    assert any("[2] were not measured" in warning for warning in prediction.warnings)


def test_phases_without_counted_work_enter_the_direct_estimate_by_their_time() -> None:
    # 4 s of counted work, twice as slow; 6 s without any, three times as slow.
    reference = ReferenceRun(runs=[10.0] * 3, total_work=4.0)
    phases = [
        PhaseTiming(0, 1.0, 0.4, 1.0, t_ref=[1.0] * 3, t_cand=[2.0] * 3, t_run=1.0),
        PhaseTiming(1, 0.0, 0.6, 0.0, t_ref=[1.0] * 3, t_cand=[3.0] * 3, t_run=1.0),
    ]
    prediction = predict(reference, phases)
    assert prediction.estimators["direct"] == pytest.approx(4 * 2 + 6 * 3)
    assert prediction.seconds == pytest.approx(26.0)
    only_idle = predict(replace(reference, total_work=0.0), [replace(phases[1], time_share=1.0)])
    assert math.isnan(only_idle.estimators["direct"])
    text = json.dumps(only_idle.to_json(), allow_nan=False)
    alone = {"calibrated": 30.0, "direct": None, "strube": None, "combined": 30.0}
    assert json.loads(text)["estimators"] == alone


# ---- properties of the estimators


positive = st.floats(0.01, 100.0)


@st.composite
def exact_programs(draw: st.DrawFn) -> tuple[ReferenceRun, list[PhaseTiming], float]:
    """A program whose phases are uniform, undisturbed, and uniformly slower on the candidate."""
    count = draw(st.integers(1, 8))
    seconds = np.array(draw(st.lists(positive, min_size=count, max_size=count)))
    work = np.array(draw(st.lists(positive, min_size=count, max_size=count)))
    parts = draw(st.lists(st.integers(1, 500), min_size=count, max_size=count))
    slowdown = draw(st.floats(0.1, 20.0))
    repeats = draw(st.integers(1, 5))
    phases = [
        PhaseTiming(
            id=c,
            weight=work[c] / work.sum(),
            time_share=seconds[c] / seconds.sum(),
            work=work[c] / parts[c],
            t_ref=[seconds[c] / parts[c]] * repeats,
            t_cand=[slowdown * seconds[c] / parts[c]] * repeats,
            t_run=seconds[c] / parts[c],
            spread=0.05,
        )
        for c in range(count)
    ]
    return ReferenceRun([float(seconds.sum())] * 3, float(work.sum())), phases, slowdown


@given(exact_programs())
def test_all_estimators_are_exact_on_a_uniformly_slower_node(case) -> None:
    reference, phases, slowdown = case
    prediction = predict(reference, phases)
    for seconds in prediction.estimators.values():
        assert seconds == pytest.approx(slowdown * reference.et_ref_seconds, rel=1e-9)
    assert prediction.low < prediction.seconds < prediction.high
    if len(phases) > 1:
        assert prediction.variances["within_strata"] == pytest.approx(0.0, abs=1e-12)


@given(exact_programs(), st.randoms(use_true_random=False), st.sampled_from([0.001, 2.0, 1000.0]))
def test_order_and_units_do_not_matter(case, random, unit: float) -> None:
    reference, phases, _ = case
    phases = [replace(p, t_cand=[t * random.uniform(0.5, 2.0) for t in p.t_cand]) for p in phases]
    base = predict(reference, phases)
    shuffled = list(phases)
    random.shuffle(shuffled)
    other = predict(reference, shuffled)
    assert (other.low, other.high) == pytest.approx((base.low, base.high), rel=1e-6)

    faster_work = predict(
        replace(reference, total_work=reference.total_work * unit),
        [replace(p, work=p.work * unit) for p in phases],
    )
    assert faster_work.estimators == pytest.approx(base.estimators, rel=1e-9)

    # Candidate times in another unit scale everything the prediction says of it.
    scaled = predict(reference, [replace(p, t_cand=[t * unit for t in p.t_cand]) for p in phases])
    assert scaled.estimators == pytest.approx({k: v * unit for k, v in base.estimators.items()}, rel=1e-9)
    if len(phases) > 1:
        assert scaled.high / scaled.seconds == pytest.approx(base.high / base.seconds, rel=1e-6)


@given(exact_programs(), st.data())
def test_failed_phases_are_extrapolated_over(case, data) -> None:
    reference, phases, slowdown = case
    lost = data.draw(st.sampled_from(phases))
    rest = [replace(p, status="failed") if p is lost else p for p in phases]
    kept = 1.0 - lost.time_share
    if len(phases) == 1 or kept < 0.2:
        with pytest.raises(NoPrediction):
            predict(reference, rest, min_coverage=0.2)
        return
    prediction = predict(reference, rest, min_coverage=0.1)
    assert prediction.coverage == pytest.approx(kept)
    assert prediction.seconds == pytest.approx(slowdown * reference.et_ref_seconds, rel=1e-9)
    assert prediction.estimators["strube"] == pytest.approx(prediction.seconds, rel=1e-9)


def test_arrays_are_taken_as_well_as_lists() -> None:
    phases = [
        replace(p, t_ref=np.array(p.t_ref), t_cand=np.array(p.t_cand), status=status)
        for p, status in ((SLOW, "ok"), (FAST, "failed"))
    ]
    assert predict(REFERENCE, phases).seconds == pytest.approx(22.0)


# ---- disturbed repeats and warnings


def test_disturbed_repeats_are_left_out_where_enough_others_remain() -> None:
    wall = [2.0, 2.0, 2.0, 3.0]
    disturbed = replace(SLOW, cpu_ref=[1.0] * 3, t_cand=wall, cpu_cand=[2.0] * 4)
    prediction = predict(REFERENCE, [disturbed, FAST])
    assert prediction.disturbed == {0: 1}
    assert prediction.variances["repeats_candidate"] == pytest.approx(0.0, abs=1e-12)
    assert any("left out" in warning for warning in prediction.warnings)

    few = replace(disturbed, t_cand=[2.0, 2.0, 3.0], cpu_cand=[2.0] * 3)
    kept = predict(REFERENCE, [few, FAST])
    assert kept.disturbed == {}
    assert kept.variances["repeats_candidate"] > 0
    assert any("[0] had disturbed repeats that were kept" in warning for warning in kept.warnings)

    # A region that waits by nature does so on the reference as well: not disturbed.
    waits = replace(disturbed, cpu_ref=[0.5] * 3, cpu_cand=[1.0] * 3 + [1.5])
    assert predict(REFERENCE, [waits, FAST]).disturbed == {}


def test_warnings_name_their_cause_and_a_sound_probe_has_none() -> None:
    assert predict(REFERENCE, [SLOW, FAST]).warnings == ()
    sound = [replace(SLOW, t_cand=SLOW.t_ref), FAST]
    assert predict(REFERENCE, sound).warnings == ()
    apart = predict(replace(REFERENCE, total_work=3.0), sound)
    assert any("estimators disagree" in warning for warning in apart.warnings)
    wide = predict(replace(REFERENCE, runs=[8.0, 11.0, 14.0]), sound)
    assert any("interval reaches" in warning for warning in wide.warnings)


def test_too_little_coverage_gives_no_number() -> None:
    failed = [replace(SLOW, status="failed"), FAST]
    with pytest.raises(NoPrediction, match=r"phases \[0\]"):
        predict(REFERENCE, failed)
    assert predict(REFERENCE, failed, min_coverage=0.05).coverage == pytest.approx(1 / 11)
    with pytest.raises(NoPrediction):
        predict(REFERENCE, [])
    with pytest.raises(NoPrediction):
        predict(REFERENCE, [replace(SLOW, t_cand=[]), FAST])
    with pytest.raises(NoPrediction):
        predict(REFERENCE, [SLOW, FAST], options=PredictionOptions(min_coverage=1.1))


@pytest.mark.parametrize(
    ("reference", "phase", "words"),
    [
        ({"runs": []}, {}, "at least one full run"),
        ({"runs": [1.0, 0.0]}, {}, "above zero"),
        ({"noise": 0.0}, {}, "noise"),
        ({"total_work": math.nan}, {}, "total_work"),
        ({}, {"t_cand": [1.0, -1.0]}, "t_cand of phase 0"),
        ({}, {"t_ref": [math.nan]}, "t_ref of phase 0"),
        ({}, {"t_run": 0.0}, "t_run of phase 0"),
        ({}, {"cpu_cand": [1.0]}, "different lengths"),
        ({}, {"spread": -1.0}, "spread of phase 0"),
        ({}, {"time_share": 1.5}, "add up"),
    ],
)
def test_impossible_input_is_refused(reference, phase, words: str) -> None:
    with pytest.raises(ProbeError, match=words):
        predict(replace(REFERENCE, **reference), [replace(SLOW, **phase), FAST])


def test_json_has_the_documented_keys() -> None:
    data = json.loads(json.dumps(predict(REFERENCE, [SLOW, FAST]).to_json(), allow_nan=False))
    assert set(data["prediction"]) == {"seconds", "low", "high", "coverage"}
    assert set(data["estimators"]) == {"calibrated", "direct", "strube", "combined"}
    assert data["prediction"]["seconds"] == data["estimators"]["combined"]
    assert data["undisturbed"] == {}
    stamped = predict(replace(REFERENCE, voted=(11.0, 0.001, 0.001)), [SLOW, FAST]).to_json()
    assert set(stamped["undisturbed"]) == {"seconds", "low", "high"}
    assert isinstance(data["warnings"], list)


# -- other processes


def test_the_time_of_other_processes_is_scaled_like_the_rest() -> None:
    """11 s as before, and 11 s of others: twice everything, by the mean ratio 21 / 11."""
    with_others = replace(REFERENCE, runs=[2 * run for run in REFERENCE.runs], outside=0.5)
    alone, prediction = predict(REFERENCE, [SLOW, FAST]), predict(with_others, [SLOW, FAST])
    assert prediction.seconds == pytest.approx(42.0)
    assert prediction.estimators["direct"] == pytest.approx(42.0)
    assert alone.variances["outside"] == 0.0
    assert prediction.high / prediction.seconds > alone.high / alone.seconds


def test_the_term_of_other_processes_by_hand() -> None:
    """One phase: nothing else says how ratios differ, so that q is the change itself."""
    options = PredictionOptions()
    for factor in (1.0, 4.0):
        phase = PhaseTiming(0, 1.0, 1.0, 1.0, t_ref=[1.0] * 3, t_cand=[factor] * 3, t_run=1.0)
        found = predict(ReferenceRun([10.0] * 3, 10.0, outside=0.2), [phase]).variances["outside"]
        change = math.log(factor) ** 2
        expected = 0.2**2 * (change + options.outside_change**2 * change + options.outside_spread**2)
        assert found == pytest.approx(expected)


@pytest.mark.parametrize("share", [-0.1, 1.0, math.nan])
def test_no_share_of_other_processes(share: float) -> None:
    with pytest.raises(ProbeError, match="outside"):
        predict(replace(REFERENCE, outside=share), [SLOW, FAST])
