# SPDX-License-Identifier: Apache-2.0
"""Whole selections: phases of made-up programs are found, weights add up, impossible input is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_intervals import QUICK, check_invariants, program, strata_of
from scipy import sparse

from checkpoint.errors import ProbeError, ProbeFileDamaged, ProgramTooShort
from probe.formats.choices import SelectionOptions
from probe.formats.selection import Selection
from probe.selection.clustering import project
from probe.selection.select import select_phases


def test_finds_the_phases_of_a_program() -> None:
    vectors, instructions, seconds, eligible = program(np.random.default_rng(1), [60, 30, 90, 20], [0.3, 2.0, 0.5, 8.0])
    selection = select_phases(vectors, instructions, seconds, eligible, QUICK)
    check_invariants(selection, instructions, seconds, eligible)
    assert sorted(len(members) for members in strata_of(selection)) == [20, 30, 60, 90]
    assert selection.k_bic == 4
    assert abs(selection.selection_error) < 0.01
    assert selection.held_out_error is not None and selection.held_out_error < 0.02


@pytest.mark.parametrize("by_time", [True, False])
def test_one_behaviour_is_one_phase(by_time: bool) -> None:
    # As matrix multiplication in the thesis: a short start, then one phase with over 95 % of the weight.
    vectors, instructions, seconds, eligible = program(np.random.default_rng(5), [3, 200], [1.0, 0.4], time_noise=0.02)
    selection = select_phases(vectors, instructions, seconds, eligible, replace(QUICK, refine_by_time=by_time))
    assert max(instructions[members].sum() for members in strata_of(selection)) / instructions.sum() > 0.95


def test_time_refinement_finds_what_the_code_hides() -> None:
    rng = np.random.default_rng(7)
    vectors, instructions, seconds, eligible = program(rng, [100, 100], [0.5, 2.0])
    seconds = seconds * np.where(rng.random(200) < 0.2, 6.0, 1.0)  # same code, memory-bound at times
    plain = select_phases(vectors, instructions, seconds, eligible, replace(QUICK, refine_by_time=False))
    refined = select_phases(vectors, instructions, seconds, eligible, QUICK)
    check_invariants(refined, instructions, seconds, eligible)
    assert plain.cuts == 0 and len(plain.phases) == 2
    assert refined.cuts >= 2
    assert abs(plain.selection_error) > 0.2
    assert abs(refined.selection_error) < 0.02
    assert refined.held_out_error < 0.05 < plain.held_out_error
    assert max(phase.seconds_spread for phase in refined.phases) < 0.05


def test_plain_simpoint_takes_the_interval_nearest_the_centroid() -> None:
    vectors, instructions, seconds, eligible = program(np.random.default_rng(3), [50, 40], [1.0, 3.0])
    options = replace(QUICK, refine_by_time=False, resolution=0.0)
    selection = select_phases(vectors, instructions, seconds, eligible, options)
    points = project(vectors, options.dimensions, options.seed)
    for phase in selection.phases:
        distance = ((points[phase.members] - points[phase.members].mean(axis=0)) ** 2).sum(axis=1)
        distance[~eligible[phase.members]] = np.inf
        assert phase.representative == phase.members[int(np.argmin(distance))]


def test_small_but_slow_phases_are_kept() -> None:
    vectors, instructions, seconds, eligible = program(np.random.default_rng(4), [300, 2], [0.5, 50.0])
    eligible[-1] = True
    selection = select_phases(vectors, instructions, seconds, eligible, QUICK)
    slow = [phase for phase in selection.phases if 301 in phase.members]
    assert slow and slow[0].weight < 0.02 and slow[0].time_share > 0.2


def test_cheap_code_with_much_weight_is_kept() -> None:
    vectors, instructions, seconds, eligible = program(np.random.default_rng(4), [100, 30], [40.0, 0.3])
    selection = select_phases(vectors, instructions, seconds, eligible, QUICK)
    cheap = [phase for phase in selection.phases if 110 in phase.members]
    assert cheap and cheap[0].time_share < QUICK.drop_below and cheap[0].weight > 0.1
    assert abs(selection.selection_error) < 0.01


def test_phases_that_together_hold_little_are_dropped_smallest_first() -> None:
    case = program(np.random.default_rng(8), [400, 400, 2, 3, 30], [1.0] * 5, time_noise=0.001)
    vectors, instructions, seconds, eligible = case
    options = replace(QUICK, drop_below=0.005)
    selection = select_phases(vectors, instructions, seconds, eligible, options)
    check_invariants(selection, instructions, seconds, eligible)
    assert (selection.labels[800:802] == -1).all()
    assert 0 < selection.dropped_time_share < 0.005
    everything = select_phases(vectors, instructions, seconds, eligible, replace(options, drop_below=0.0))
    assert everything.dropped_time_share == 0.0
    assert (everything.labels >= 0).all()
    assert len(everything.phases) > len(selection.phases)


def test_phases_that_cannot_be_captured_are_merged_and_recorded() -> None:
    vectors, instructions, seconds, eligible = program(np.random.default_rng(6), [50, 10, 50], [1.0, 1.2, 4.0])
    eligible[50:60] = False
    selection = select_phases(vectors, instructions, seconds, eligible, QUICK)
    check_invariants(selection, instructions, seconds, eligible)
    assert len(selection.merges) == 1
    merge = selection.merges[0]
    assert merge.intervals == 10
    assert merge.time_share == pytest.approx(seconds[50:60].sum() / seconds.sum())
    assert (selection.labels[50:60] == merge.phase).all()


def test_intervals_without_counted_blocks_are_strata_of_their_own() -> None:
    vectors, instructions, seconds, eligible = program(np.random.default_rng(9), [60, 60], [1.0, 3.0])
    dense = vectors.toarray()
    dense[40:60] = 0
    instructions = instructions.copy()
    instructions[40:60] = 0
    seconds = seconds.copy()
    seconds[40:50], seconds[50:60] = 0.01, 0.1
    selection = select_phases(sparse.csr_array(dense), instructions, seconds, eligible, QUICK)
    check_invariants(selection, instructions, seconds, eligible)
    for phase in selection.phases:
        assert len({bool(x) for x in instructions[phase.members] > 0}) == 1
    assert selection.labels[40] != selection.labels[55]
    assert abs(selection.selection_error) < 0.01


def test_all_vectors_empty_selects_by_time() -> None:
    seconds = np.array([0.1] * 20 + [1.0] * 20)
    empty = sparse.csr_array((40, 12))
    selection = select_phases(empty, np.zeros(40), seconds, np.ones(40, dtype=bool), QUICK)
    assert [len(phase.members) for phase in selection.phases] == [20, 20]
    assert selection.k_bic == 0
    assert selection.selection_error == pytest.approx(0.0, abs=1e-9)
    one = select_phases(empty, np.zeros(40), seconds, np.ones(40, dtype=bool), replace(QUICK, max_phases=1))
    assert len(one.phases) == 1


def test_one_phase_allowed_holds_everything() -> None:
    vectors, instructions, seconds, eligible = program(np.random.default_rng(9), [20, 20], [1.0, 3.0])
    dense = vectors.toarray()
    dense[5:8] = 0
    instructions = instructions.copy()
    instructions[5] = 0
    selection = select_phases(sparse.csr_array(dense), instructions, seconds, eligible, replace(QUICK, max_phases=1))
    assert [len(phase.members) for phase in selection.phases] == [40]
    assert instructions[selection.phases[0].representative] > 0


def test_one_interval() -> None:
    selection = select_phases(sparse.csr_array([[5.0, 1.0]]), [6.0], [0.5], [True])
    assert len(selection.phases) == 1
    assert selection.phases[0].weight == 1.0 and selection.phases[0].time_share == 1.0
    assert selection.selection_error == pytest.approx(0.0)
    assert selection.held_out_error is None
    assert Selection.from_json(json.loads(json.dumps(selection.to_json()))).held_out_error is None


@pytest.mark.parametrize("by_time", [True, False])
def test_identical_intervals_are_one_phase(by_time: bool) -> None:
    vectors = sparse.csr_array(np.tile([3.0, 4.0, 5.0], (50, 1)))
    options = replace(QUICK, refine_by_time=by_time)
    selection = select_phases(vectors, np.full(50, 12.0), np.full(50, 0.05), np.ones(50, dtype=bool), options)
    assert len(selection.phases) == 1
    assert selection.selection_error == pytest.approx(0.0, abs=1e-12)
    assert selection.held_out_error == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"seconds": [0.1, np.nan, 0.1]}, ProbeError, "interval 1"),
        ({"seconds": [0.1, 0.1, 0.0]}, ProbeError, "above zero"),
        ({"seconds": [0.1, np.inf, 0.1]}, ProbeError, "finite"),
        ({"seconds": [0.1, 0.1]}, ProbeError, "shape"),
        ({"instructions": [1.0, -1.0, 1.0]}, ProbeError, "not negative"),
        ({"eligible": [False] * 3}, ProgramTooShort, "captured"),
        ({"vectors": sparse.csr_array([[1.0], [-1.0], [1.0]])}, ProbeError, "negative"),
        ({"vectors": sparse.csr_array([[1.0], [np.nan], [1.0]])}, ProbeError, "non-finite"),
        ({"options": replace(QUICK, max_phases=0)}, ProbeError, "max_phases"),
        ({"options": replace(QUICK, folds=1)}, ProbeError, "folds"),
        ({"options": replace(QUICK, seed=-1)}, ProbeError, "seed"),
    ],
)
def test_impossible_input_is_refused(change, error, words) -> None:
    arguments = {
        "vectors": sparse.csr_array([[1.0], [1.0], [1.0]]),
        "instructions": [1.0, 1.0, 1.0],
        "seconds": [0.1, 0.1, 0.1],
        "eligible": [True] * 3,
        "options": QUICK,
    }
    assert len(select_phases(**arguments).phases) == 1
    with pytest.raises(error, match=words):
        select_phases(**(arguments | change))


def test_no_interval_is_refused() -> None:
    with pytest.raises(ProgramTooShort):
        select_phases(sparse.csr_array((0, 4)), [], [], [])


small_programs = st.builds(
    lambda seed, counts, noise, holes: (seed, counts, noise, holes),
    st.integers(0, 2**16),
    st.lists(st.integers(1, 15), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.05, 0.6]),
    st.sets(st.integers(0, 20), max_size=4),
)


def build(case):
    seed, counts, noise, holes = case
    rng = np.random.default_rng(seed)
    rates = (10.0 ** rng.uniform(-0.5, 1.5, len(counts))).tolist()
    vectors, instructions, seconds, eligible = program(rng, counts, rates, time_noise=noise)
    dense = vectors.toarray()
    for hole in holes:
        if hole < len(dense):
            dense[hole] = 0
            instructions[hole] = 0
    eligible &= rng.random(len(eligible)) < 0.7
    eligible[len(eligible) // 2] = True
    return sparse.csr_array(dense), instructions, seconds, eligible


@settings(max_examples=25, deadline=None)
@given(small_programs, st.integers(1, 6), st.booleans())
def test_every_selection_is_a_partition_and_survives_json(case, max_phases: int, by_time: bool) -> None:
    vectors, instructions, seconds, eligible = build(case)
    options = SelectionOptions(max_phases=max_phases, kmeans_seeds=1, refine_by_time=by_time)
    selection = select_phases(vectors, instructions, seconds, eligible, options)
    check_invariants(selection, instructions, seconds, eligible)
    text = json.dumps(selection.to_json(), allow_nan=False)
    back = Selection.from_json(json.loads(text))
    assert json.dumps(back.to_json()) == text
    for mine, other in zip(selection.phases, back.phases, strict=True):
        assert np.array_equal(mine.members, other.members)
    assert back.options == options


@settings(max_examples=10, deadline=None)
@given(small_programs)
@example((346, [5, 1], 0.0, set()))  # a cut between times that differ in their last digit
def test_units_do_not_matter_and_runs_are_equal(case) -> None:
    vectors, instructions, seconds, eligible = build(case)
    options = replace(QUICK, max_phases=5)
    first = select_phases(vectors, instructions, seconds, eligible, options)
    again = select_phases(vectors, instructions, seconds, eligible, options)
    assert first.to_json() == again.to_json()
    scaled = select_phases(vectors * 4.0, instructions * 4.0, seconds * 1024.0, eligible, options)
    assert np.array_equal(first.labels, scaled.labels)
    assert [p.representative for p in first.phases] == [p.representative for p in scaled.phases]


@pytest.mark.parametrize("harm", ["version", "labels", "options", "representative"])
def test_damaged_json_is_refused(harm: str) -> None:
    data = select_phases(sparse.csr_array([[5.0], [1.0]]), [5.0, 1.0], [0.5, 0.1], [True, True]).to_json()
    if harm == "version":
        data["version"] = 99
    elif harm == "labels":
        del data["labels"]
    elif harm == "options":
        data["options"]["unknown"] = 1
    else:
        data["phases"][0]["representative"] = 7
    with pytest.raises(ProbeFileDamaged):
        Selection.from_json(data)


def test_random_selection_is_a_fair_baseline() -> None:
    """As many intervals as asked for, each as likely as any other, never one that cannot be captured."""
    vectors, work, seconds, _ = program(np.random.default_rng(1), [20, 30, 10], [1.0, 2.0, 3.0])
    eligible = np.arange(len(work)) % 3 != 0
    options = SelectionOptions(method="random", max_phases=7, seed=4)
    first = select_phases(vectors, work, seconds, eligible, options)
    assert len(first.phases) == 7 and all(eligible[p.representative] for p in first.phases)
    drawn = [p.representative for p in first.phases]
    assert [p.weight for p in first.phases] == pytest.approx(work[drawn] / work[drawn].sum())
    assert [p.time_share for p in first.phases] == pytest.approx(seconds[drawn] / seconds[drawn].sum())
    ratio = seconds[drawn].sum() / work[drawn].sum() * work.sum()
    assert first.selection_error == pytest.approx(ratio / seconds.sum() - 1)
    assert sorted(np.concatenate([p.members for p in first.phases])) == list(range(len(work)))
    assert Selection.from_json(json.loads(json.dumps(first.to_json()))).to_json() == first.to_json()
    again = select_phases(vectors, work, seconds, eligible, options)
    other = select_phases(vectors, work, seconds, eligible, replace(options, seed=5))
    chosen = [[p.representative for p in s.phases] for s in (first, again, other)]
    assert chosen[0] == chosen[1] != chosen[2]


def test_simpoint_selection_knows_no_times() -> None:
    vectors, work, seconds, eligible = program(np.random.default_rng(2), [20, 30, 10], [1.0, 2.0, 3.0])
    options = SelectionOptions(method="simpoint", max_phases=10)
    plain = select_phases(vectors, work, seconds, eligible, options)
    other = select_phases(vectors, work, seconds[::-1].copy(), eligible, options)
    assert plain.cuts == 0 and [len(p.members) for p in plain.phases] == [len(p.members) for p in other.phases]


def test_an_unknown_method_is_refused() -> None:
    run = program(np.random.default_rng(3), [20], [1.0])
    with pytest.raises(ProbeError, match=r"'guess' is unknown; there are: reconstruct, simpoint, random"):
        select_phases(*run, SelectionOptions(method="guess"))
