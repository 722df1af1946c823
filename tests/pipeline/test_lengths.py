# SPDX-License-Identifier: Apache-2.0
"""The length of intervals that a selection chooses, and what stands for work where hardly anything was counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from native_profiles import made

from checkpoint.errors import Unpredictable
from probe.formats.arrays import FloatArray, IntArray
from probe.formats.intervals import work
from probe.formats.profile import LEAST_COUNTED, Profile, load_profile, save_profile
from probe.formats.reference import Reference
from probe.formats.selection import Selection
from probe.formats.timing import QUANTILE, IntervalRun, Outside, TimedProfile, join_intervals
from probe.pipeline import select
from probe.pipeline.options import BuildOptions
from probe.pipeline.self_check import Known
from probe.tracers.native import FINE_INTERVAL, JOINED_FINE
from probe.work_folder import WorkFolder

REFERENCE = Reference((2.0,), (2.0,), 0.0, (2.0, 2.0), "cpu", (2.0,), (2.0,))


def timed_profile(counts: IntArray, seconds: FloatArray, first: IntArray | None = None) -> tuple[Profile, TimedProfile]:
    """A profile of fine intervals and its timing run; `first`: as in TimedProfile, where boundaries are missing."""
    profile = replace(made(counts), interval=FINE_INTERVAL, seconds=np.full(len(counts), FINE_INTERVAL))
    first = np.arange(len(counts) + 1) if first is None else first
    inner = len(first) - 2
    timed = TimedProfile(
        counts=profile.counts if len(first) == len(counts) + 1 else profile.counts[first[:-1]],
        seconds=seconds, cpu=seconds, columns=np.zeros(inner, dtype=np.int64),
        executions=np.arange(1, inner + 1, dtype=np.int64), first_row=first, wall_seconds=float(seconds.sum()),
        unmarked=0, missing=0, out_of_order=0, agreeing=1, compared=1,
        kernel=np.concatenate([[np.nan], np.full(len(first) - 3, 0.001), [np.nan]]),
    )  # fmt: skip
    return profile, timed


def build(profile: Profile, timed: TimedProfile, **options: Any) -> Any:
    return SimpleNamespace(
        profile=profile, timed=timed, options=BuildOptions(**options), reference=REFERENCE, joined=1, early=None,
        warnings=[], program=profile.program,
    )  # fmt: skip


def steady(intervals: int) -> tuple[Profile, TimedProfile]:
    chance = np.random.default_rng(3)
    counts = chance.integers(990, 1010, (intervals, 3))
    return timed_profile(counts, counts.sum(axis=1) * 1e-5 / 3)


def test_joined_intervals_are_the_same_run() -> None:
    first = np.array([0, 1, 2, 4, 5, 6, 9, 10, 11])
    chance = np.random.default_rng(1)
    _, timed = timed_profile(chance.integers(1, 99, (11, 4)), chance.uniform(0.5, 1.5, 8), first)
    joined = join_intervals(timed, 5)
    assert joined.first_row.tolist() == [0, 5, 10, 11]
    assert (joined.columns == 0).all() and joined.executions.tolist() == [4, 7]
    assert joined.seconds.tolist() == pytest.approx([timed.seconds[a:b].sum() for a, b in ((0, 4), (4, 7), (7, 8))])
    assert joined.cpu.sum() == pytest.approx(timed.cpu.sum()) and joined.wall_seconds == timed.wall_seconds
    assert (joined.counts.sum(axis=0) == timed.counts.sum(axis=0)).all()
    assert np.isnan(joined.kernel[[0, -1]]).all() and joined.kernel[1] == pytest.approx(0.003)
    # A boundary that was not found parts nothing, wherever it would have lain.
    assert join_intervals(timed, 3).first_row.tolist() == [0, 4, 6, 9, 11]
    assert join_intervals(timed, 1).first_row.tolist() == first.tolist()


def test_stamped_runs_are_joined_as_the_timing_run_is() -> None:
    """The level of a joined interval is that of its sums, not the sum of its parts' levels."""
    chance = np.random.default_rng(4)
    _, timed = timed_profile(chance.integers(1, 99, (8, 4)), np.ones(8))
    wall, cpu = chance.uniform(1, 2, (3, 8)), chance.uniform(1, 2, (3, 8))
    again = [IntervalRun(9.0, 9.0, w, c) for w, c in zip(wall, cpu, strict=True)]
    joined = join_intervals(timed.with_runs(again), 3)
    bounds = ((0, 3), (3, 6), (6, 8))
    assert joined.again_wall == pytest.approx(np.array([wall[:, a:b].sum(axis=1) for a, b in bounds]).T)
    assert joined.again_cpu == pytest.approx(np.array([cpu[:, a:b].sum(axis=1) for a, b in bounds]).T)
    rows = np.vstack([[3.0, 3.0, 2.0], joined.again_cpu])
    assert joined.levels("cpu") == pytest.approx(np.quantile(rows, QUANTILE, axis=0))
    # Later runs are cut at the boundaries that are left.
    assert len(joined.with_runs([IntervalRun(9.0, 9.0, np.ones(3), np.ones(3))]).again_wall) == 4


@pytest.mark.parametrize(("intervals", "together"), [(60, 1), (150, 1), (260, 2), (480, 2), (600, 5), (3000, 5)])
def test_a_run_has_some_hundred_intervals(intervals: int, together: int) -> None:
    one = build(*steady(intervals))
    select.run(one, lambda share: None)
    assert one.joined == together and one.timed.intervals == -(-intervals // together)
    assert one.profile.interval == FINE_INTERVAL * together
    assert one.selection.held_out_error < 0.05


def test_a_length_that_was_asked_for_stays() -> None:
    profile, timed = steady(600)
    assert select.lengths(build(profile, timed, interval=FINE_INTERVAL)) == [1]
    assert select.lengths(build(replace(profile, interval=FINE_INTERVAL * JOINED_FINE), timed)) == [1]
    assert select.lengths(build(replace(profile, unit="instructions"), timed)) == [1]
    assert select.lengths(build(profile, timed)) == [5, 2, 1]


def test_doubtful_phases_are_tried_with_finer_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[int, list[str] | None] = {120: None, 300: ["doubtful"], 600: []}

    def doubts(selection: Selection, *_: Any) -> list[str]:
        if (found := said[len(selection.labels)]) is None:
            raise Unpredictable("refused")
        return found

    monkeypatch.setattr(select, "doubts_of_selection", doubts)

    def chosen() -> int:
        one = build(*steady(600))
        select.run(one, lambda share: None)
        return int(one.joined)

    assert chosen() == 1
    # Where no length is without doubt, one that is not refused is better than one that is.
    said[600] = None
    assert chosen() == 2
    said[120] = []
    assert chosen() == 5


def test_the_chosen_length_is_resumed(tmp_path: Path) -> None:
    profile, timed = steady(600)
    one = build(profile, timed)
    one.folder = WorkFolder(tmp_path, {}, [])
    select.run(one, lambda share: None)
    select.save(one)
    again = build(profile, timed)
    again.folder = WorkFolder(tmp_path, {}, [])
    select.load(again)
    assert again.timed.intervals == one.timed.intervals == 120 and again.profile.interval == one.profile.interval
    assert again.selection.to_json() == one.selection.to_json()
    (tmp_path / "joined.json").unlink()
    before = build(profile, timed)
    before.folder = WorkFolder(tmp_path, {}, [])
    select.load(before)
    assert before.timed.intervals == 600, "a folder of an earlier version"


def test_where_hardly_anything_was_counted_time_is_work(tmp_path: Path) -> None:
    """Counts of the few instructions left say nothing: as rates they would be refused."""
    chance = np.random.default_rng(2)
    counts = np.exp(chance.normal(5, 1.5, (150, 2))).astype(np.int64) + 1
    profile, timed = timed_profile(counts, np.full(150, FINE_INTERVAL) * chance.normal(1, 0.01, 150))
    thin = replace(profile, counted_share=LEAST_COUNTED / 2)
    assert thin.thin and not profile.thin
    assert work(thin, timed) == pytest.approx(np.full(150, FINE_INTERVAL * 1e9))
    assert work(thin, join_intervals(timed, 2)).sum() == pytest.approx(150 * FINE_INTERVAL * 1e9)
    held_out: list[Selection] = []
    for one in (build(profile, timed), build(thin, timed)):
        select.run(one, lambda share: None)
        held_out.append(one.selection.held_out_error)
    assert held_out[1] < 0.02 < 0.1 < held_out[0]
    judged = [Known(p, timed, one.selection).full_runs(REFERENCE).total_work for p in (profile, thin)]
    assert judged == [work(profile, timed).sum(), 0.0], "of time there is no direct estimate"
    beside = replace(timed, outside=Outside(1.0, float(timed.cpu.sum()), ("child",)))
    assert Known(profile, beside, one.selection).full_runs(REFERENCE).outside == pytest.approx(0.5)
    save_profile(thin, tmp_path / "thin.npz")
    assert load_profile(tmp_path / "thin.npz").counted_share == thin.counted_share
