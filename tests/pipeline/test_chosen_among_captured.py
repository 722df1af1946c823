# SPDX-License-Identifier: Apache-2.0
"""The choice among intervals that the timing run captured: taken where it is hardly worse than one among all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_lengths import build, timed_profile

from probe.formats.arrays import FloatArray, IntArray
from probe.formats.checkpoints import CapturedPhase, EarlyCheckpoints
from probe.formats.choices import SelectionOptions
from probe.pipeline import select


def captured(*intervals: int) -> EarlyCheckpoints:
    found = (CapturedPhase(1000 + n, i, f"phase-{1000 + n}", 1, 1, 0, 0, 0, {}) for n, i in enumerate(intervals))
    return EarlyCheckpoints(1, tuple(found))


class Said:
    """A display that keeps its notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def selected(counts: IntArray, seconds: FloatArray, early: EarlyCheckpoints, **options: Any) -> Any:
    one = build(*timed_profile(counts, seconds), interval=0.01, **options)
    one.early, one.display = early, Said()
    select.run(one, lambda share: None)
    taken = {phase.representative for phase in one.selection.phases} <= {c.interval for c in early.captured}
    assert taken == (one.display.notes == [])
    return one


def of_kinds(
    kinds: IntArray, code: tuple[tuple[int, ...], ...], times: tuple[float, ...]
) -> tuple[IntArray, FloatArray]:
    """Counts and seconds of intervals of these kinds; the seconds vary a little."""
    chance = np.random.default_rng(5)
    return np.array(code)[kinds], np.array(times)[kinds] * chance.normal(1.0, 0.005, len(kinds))


KINDS = np.arange(300) // 10 % 3
ALL, BUT_SLOWEST = (5, 15, 25, 95, 105, 115, 185, 195, 205), (5, 15, 95, 105, 185, 195)
"""Intervals of each kind by turns, and of the first two kinds alone."""

APART = ((1000, 20, 20), (20, 1000, 20), (20, 20, 1000))
ALIKE = ((1000, 20, 20),) * 3


@pytest.mark.parametrize(
    ("code", "times", "intervals", "accepted"),
    [
        (APART, (0.1, 0.13, 0.2), ALL, True),
        (ALIKE, (0.1, 0.13, 0.2), ALL, True),
        # No interval of the slowest kind: equal code, so that only times tell.
        (ALIKE, (0.1, 0.13, 0.2), BUT_SLOWEST, False),
        # Nor one of its code.
        (APART, (0.1, 0.1, 0.1), BUT_SLOWEST, False),
        (APART, (0.1, 0.13, 0.2), (), False),
    ],
)
def test_what_captured_intervals_cannot_stand_for(
    code: tuple[tuple[int, ...], ...], times: tuple[float, ...], intervals: tuple[int, ...], accepted: bool
) -> None:
    one = selected(*of_kinds(KINDS, code, times), captured(*intervals))
    assert (one.display.notes == []) == accepted
    assert one.selection.held_out_error < 0.05


def test_the_error_that_is_told_is_that_of_the_phases_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HELD_OUT_WORSE", "UNLIKE_WORSE", "MERGED_WORSE"):
        monkeypatch.setattr(select, name, 1.0)
    monkeypatch.setattr(select, "_judged", lambda *_: (False, 0))
    one = selected(*of_kinds(KINDS, ALIKE, (0.1, 0.13, 0.2)), captured(*BUT_SLOWEST))
    assert one.display.notes == [] and abs(one.selection.selection_error) > 0.1
    assert one.selection.held_out_error >= abs(one.selection.selection_error)


@pytest.mark.parametrize(
    ("name", "code", "times"),
    [
        ("HELD_OUT_WORSE", ALIKE, (0.1, 0.13, 0.2)),
        ("UNLIKE_WORSE", APART, (0.1, 0.1, 0.1)),
        ("MERGED_WORSE", APART, (0.1, 0.1, 0.1)),
    ],
)
def test_each_of_them_is_enough(
    name: str, code: tuple[tuple[int, ...], ...], times: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = getattr(select, name)
    for other in ("HELD_OUT_WORSE", "UNLIKE_WORSE", "MERGED_WORSE"):
        monkeypatch.setattr(select, other, 1.0)
    monkeypatch.setattr(select, "_judged", lambda *_: (False, 0))
    counts, seconds = of_kinds(KINDS, code, times)
    assert selected(counts, seconds, captured(*BUT_SLOWEST)).display.notes == []
    monkeypatch.setattr(select, name, own)
    assert selected(counts, seconds, captured(*BUT_SLOWEST)).display.notes != []


def test_more_doubts_are_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """One doubt of the choice among all is no leave for two of the other."""
    doubts = iter((["one"], ["one", "two"], ["one"]))
    monkeypatch.setattr(select, "doubts_of_selection", lambda *_: next(doubts))
    early = captured(*ALL)
    assert selected(*of_kinds(KINDS, APART, (0.1, 0.13, 0.2)), early).display.notes != []


def test_random_intervals_are_not_chosen_among_few() -> None:
    options = SelectionOptions(method="random")
    one = selected(*of_kinds(KINDS, APART, (0.1, 0.13, 0.2)), captured(*ALL), selection=options)
    assert one.display.notes != []
