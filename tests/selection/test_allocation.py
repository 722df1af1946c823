# SPDX-License-Identifier: Apache-2.0
"""Several representatives of a stratum: how many, for which parts, and what they lessen."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from made_intervals import QUICK, check_invariants, intervals, program

from probe.formats.choices import SelectionOptions
from probe.formats.selection import Selection
from probe.selection.allocation import parts, representatives
from probe.selection.select import select_phases
from probe.selection.strata import seconds_spread


def test_representatives_are_allocated_as_neyman_says() -> None:
    """n_h in proportion to S_h s_h, s_h^2 = spread^2 + unseen^2, until each stands for little enough."""
    rng = np.random.default_rng(4)
    seconds = np.concatenate([rng.lognormal(0, 0.02, 300), rng.lognormal(0, 0.2, 300), rng.lognormal(0, 0.02, 30)])
    run = intervals(seconds)
    strata = [np.arange(300), np.arange(300, 600), np.arange(600, 630)]
    options = replace(QUICK, max_phases=1000, unseen_spread=0.1, part_above=0.002)
    counts = np.array(representatives(run, strata, options))
    shares = np.array([seconds[one].sum() for one in strata]) / seconds.sum()
    spreads = np.array([np.hypot(seconds_spread(run, one), 0.1) for one in strata])
    assert counts == pytest.approx(shares * spreads / 0.002, abs=1.0)
    fewer = representatives(run, strata, replace(options, max_phases=9))
    assert sum(fewer) == 9 and fewer[1] > fewer[0] > fewer[2] == 1
    assert representatives(run, strata, replace(options, max_phases=2)) == [1, 1, 1]
    assert representatives(run, strata, replace(options, part_intervals=100)) == [3, 3, 1]


def test_identical_intervals_need_one_representative() -> None:
    run = intervals(np.full(200, 0.05))
    assert representatives(run, [np.arange(200)], QUICK) == [1]


def test_parts_are_stretches_of_equal_time_that_can_be_captured() -> None:
    seconds = np.concatenate([np.full(60, 1.0), np.full(20, 3.0)])
    found = parts(intervals(seconds), np.arange(80), 4)
    assert [one.tolist() for one in found] == [
        list(range(30)), list(range(30, 60)), list(range(60, 70)), list(range(70, 80))
    ]  # fmt: skip
    able = np.ones(80, dtype=bool)
    able[:35] = False
    assert [len(one) for one in parts(intervals(seconds, eligible=able), np.arange(80), 4)] == [40, 27, 13]
    able[:] = np.arange(80) == 3
    assert [len(one) for one in parts(intervals(seconds, eligible=able), np.arange(80), 4)] == [80]
    # A part without counted work could not be extrapolated by work.
    work = np.where(np.arange(80) < 60, 0.0, 1.0)
    assert [len(one) for one in parts(intervals(seconds, work=work), np.arange(80), 2)] == [80]


def test_parts_of_a_stratum_share_its_number_and_add_up_to_it() -> None:
    rows = program(np.random.default_rng(6), [200, 20], [1.0, 3.0], time_noise=0.02)
    divided = select_phases(*rows, QUICK)
    check_invariants(divided, *rows[1:])
    whole = select_phases(*rows, replace(QUICK, part_above=1.0))
    assert [len(p.members) for p in whole.phases] == [200, 20] and {p.stratum for p in whole.phases} == {-1}
    first = [p for p in divided.phases if p.representative < 200]
    assert len(first) > 1 and len({p.stratum for p in first}) == 1 and first[0].stratum >= 0
    assert sum(p.weight for p in first) == pytest.approx(whole.phases[0].weight)
    assert sum(p.time_share for p in first) == pytest.approx(whole.phases[0].time_share)
    assert np.array_equal(np.concatenate([p.members for p in first]), whole.phases[0].members)
    back = Selection.from_json(json.loads(json.dumps(divided.to_json())))
    assert [p.stratum for p in back.phases] == [p.stratum for p in divided.phases]


def test_plain_simpoint_has_one_representative_for_each_cluster() -> None:
    rows = program(np.random.default_rng(6), [200, 20], [1.0, 3.0], time_noise=0.02)
    assert {p.stratum for p in select_phases(*rows, SelectionOptions(method="simpoint", max_phases=10)).phases} == {-1}


def test_several_representatives_lessen_what_the_reference_cannot_show() -> None:
    """One behaviour here; on another node a stretch of it is twice as slow, as when data outgrow a smaller cache."""
    rows = program(np.random.default_rng(8), [300], [1.0], time_noise=0.02)
    one, several = (select_phases(*rows, replace(QUICK, part_above=above)) for above in (1.0, 0.02))
    assert len(several.phases) > len(one.phases)
    errors = {"one": 0.0, "several": 0.0}
    for first in range(0, 200, 10):
        ratio = np.where((np.arange(300) >= first) & (np.arange(300) < first + 100), 2.0, 1.0)
        truth = float((rows[2] * ratio).sum() / rows[2].sum())
        for name, found in (("one", one), ("several", several)):
            guess = sum(p.time_share * ratio[p.representative] for p in found.phases)
            errors[name] += (guess / truth - 1) ** 2
    assert errors["several"] < 0.25 * errors["one"]
