# SPDX-License-Identifier: Apache-2.0
"""The choice of a warm-up from the region times behind several lengths of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest

from probe.cli.parameters import Warmup
from probe.formats.checkpoints import WarmupChoice
from probe.formats.choices import DEFAULT_WARMUP
from probe.pipeline.warmup import SAMPLED, TOLERANCE, TRIED, TriedPhase, choose_warmup, sampled_phases

QUIET = 0.0005


def repeats(seconds: float, spread: float, seed: int) -> list[float]:
    return list(seconds * (1.0 + spread * np.random.default_rng(seed).standard_normal(5)))


def phase(slower: Mapping[int, float], *, share: float = 1.0, spread: float = QUIET, seed: int = 1) -> TriedPhase:
    """A phase of 50 ms whose region takes `slower` more, by intervals of warm-up."""
    times = {w: repeats(0.05 * (1.0 + slower.get(w, 0.0)), spread, seed + w) for w in TRIED}
    return TriedPhase(share, 0.048, times)


@pytest.mark.parametrize(
    ("slower", "chosen"),
    [
        ({}, 0),
        ({0: 0.05}, 1),
        ({0: 0.2, 1: 0.03}, 2),
        ({0: 0.2, 1: 0.1, 2: 0.03}, 4),
        # What is within the tolerance of the longest has stopped moving.
        ({0: 0.05, 1: 0.4 * TOLERANCE}, 1),
        # A shorter one that is right by chance is not taken: behind it the time still moves.
        ({1: 0.03}, 2),
        # Regions that become slower with more warm-up move as well.
        ({0: -0.05, 1: -0.05}, 2),
    ],
)
def test_the_shortest_after_which_nothing_moves(slower: dict[int, float], chosen: int) -> None:
    found = choose_warmup({3: phase(slower)})
    assert (found.chosen, found.doubt, found.phases) == (chosen, "", (3,))
    assert [trial.warmup for trial in found.trials] == list(TRIED)
    for trial in found.trials:
        assert trial.relative == pytest.approx(1.0 + slower.get(trial.warmup, 0.0), abs=0.003)
        assert trial.against_run == pytest.approx(trial.relative * 0.05 / 0.048, abs=0.003)
    assert found.trials[-1].error == 0.0 and 0 < found.trials[0].error < 0.002


def test_phases_count_by_their_time() -> None:
    rare = phase({0: 0.05}, share=0.01)
    common = phase({}, share=0.5, seed=7)
    assert choose_warmup({1: rare, 2: common}).chosen == 0
    assert choose_warmup({1: phase({0: 0.05}, share=0.5), 2: common}).chosen == 1


def test_noise_is_not_taken_for_movement() -> None:
    """Just above the tolerance, but within two standard errors."""
    spread = [-0.012, -0.006, 0.0, 0.006, 0.012]
    times = {w: [0.05 * (1.012 if w == 0 else 1.0) * (1.0 + x) for x in spread] for w in TRIED}
    found = choose_warmup({0: TriedPhase(1.0, 0.05, times)})
    assert found.trials[0].relative == pytest.approx(1.012)
    assert 0.006 < found.trials[0].error < TOLERANCE
    assert (found.chosen, found.doubt) == (0, "")


def test_where_nothing_can_be_told_the_longest_is_taken() -> None:
    found = choose_warmup({0: phase({}, spread=0.1)})
    assert found.chosen == TRIED[-1] and "repeats differ too much" in found.doubt
    once = TriedPhase(1.0, 0.05, {w: [0.05] for w in TRIED})
    assert choose_warmup({0: once}).chosen == TRIED[-1]
    nothing = choose_warmup({})
    assert nothing.chosen == DEFAULT_WARMUP and "could be restored" in nothing.doubt


def test_the_phases_tried_begin_late_enough() -> None:
    phases: list[Any] = [
        SimpleNamespace(id=i, representative=at, time_share=share)
        for i, (at, share) in enumerate([(TRIED[-1], 0.5), (TRIED[-1] + 1, 0.1), (50, 0.2), (60, 0.05), (70, 0.15)])
    ]
    selection: Any = SimpleNamespace(phases=phases)
    timed: Any = SimpleNamespace(room_before=lambda interval: interval - 1)
    assert [p.id for p in sampled_phases(timed, selection)] == [2, 4, 1]
    assert len(sampled_phases(timed, selection)) == SAMPLED
    behind_a_child: Any = SimpleNamespace(room_before=lambda interval: 1 if interval == 50 else interval - 1)
    assert [p.id for p in sampled_phases(behind_a_child, selection)] == [4, 1, 3]


def test_a_choice_survives_json() -> None:
    for choice in (choose_warmup({1: phase({0: 0.05}), 5: phase({})}), choose_warmup({})):
        assert WarmupChoice.from_json(json.loads(json.dumps(choice.to_json()))) == choice


def test_the_option() -> None:
    kind = Warmup()
    assert [kind.convert(text, None, None) for text in ("auto", "0", "100", 3)] == ["auto", 0, 100, 3]
    for wrong in ("-1", "101", "1.5", "automatic", ""):
        with pytest.raises(click.BadParameter, match="from 0 to 100 nor auto"):
            kind.convert(wrong, None, None)
