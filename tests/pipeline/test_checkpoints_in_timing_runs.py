# SPDX-License-Identifier: Apache-2.0
"""The timing run that stops for checkpoints: what it leaves out of its times, and which checkpoints count."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from native_profiles import SIZES, profile_of, totals
from programs import build
from tracing import streams_of

from checkpoint.errors import StorageError
from checkpoint.process.tracee import Tracee
from checkpoint.stubs.markers import Marker
from probe.formats.checkpoints import CapturedPhase, EarlyCheckpoints
from probe.formats.timing import TimedProfile, join_intervals
from probe.pipeline import at_once
from probe.pipeline.at_once import EarlyCapture, _usual, there
from probe.pipeline.runs.boundaries import Place, RegionPlan, StampedRun, candidates, marker_of
from probe.pipeline.runs.sound_boundaries import merge_bad_boundaries
from probe.pipeline.runs.stamped import stamped_run
from probe.pipeline.runs.standing import MarkedRun, Unfit

HELD = 0.3
"""Seconds of each halt: far more than all else in which two runs differ."""


class Standing:
    """Halts that do nothing for a while."""

    def __init__(self, places: Collection[Place]) -> None:
        self.places, self.seen = places, 0

    def reached(self, run: MarkedRun) -> bool:
        assert run.stopped_at(self.places) is not None
        self.seen += 1
        time.sleep(HELD)
        return True


def test_halts_are_not_in_the_times(builds: Path) -> None:
    profile = profile_of(build("nbody", builds), SIZES["nbody"])
    wanted = candidates(profile)
    chosen = [next(c for c in wanted if c.boundary == at) for at in (2, profile.intervals // 2, profile.intervals - 2)]
    halts = Standing({Place(marker_of(profile, c.column), c.count) for c in chosen})
    begun = time.monotonic()
    with streams_of() as streams:
        run = stamped_run(profile, wanted, streams=streams, halts=halts)
    elapsed = time.monotonic() - begun
    assert halts.seen == len(run.halts) == len(chosen)
    assert run.ended - run.started < elapsed - len(chosen) * HELD
    assert run.totals == {c: int(totals(profile)[c]) for c in {c.column for c in wanted}}
    timed = merge_bad_boundaries(profile, wanted, run)
    assert (timed.missing, timed.out_of_order) == (0, 0)
    # Each stands right where its boundary is, on the clock that stood.
    edges = run.started + np.cumsum(timed.seconds)
    for candidate, at in zip(chosen, run.halts, strict=True):
        (place,) = np.flatnonzero(timed.first_row[1:] == candidate.boundary)
        assert abs(edges[place] - at) < HELD / 2
    assert run.blocked_share < 0.5


def test_disturbed_intervals_are_as_their_fellows() -> None:
    """The traced run was half as fast in one phase, and as fast in the other."""
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    traced = np.array([2.0, 4.0, 2.0, 6.0, 1.0, 1.0, 2.0, 1.0])
    own = np.array([1.0, 2.0, 1.0, 9.0, 1.0, 1.0, 2.0, 5.0])
    disturbed = np.array([0, 0, 0, 1, 0, 0, 0, 1], dtype=bool)
    assert _usual(own, traced, labels, disturbed).tolist() == [1.0, 2.0, 1.0, 3.0, 1.0, 1.0, 2.0, 1.0]
    assert _usual(own, traced, labels, np.zeros(8, dtype=bool)).tolist() == own.tolist()


def test_few_fellows_are_joined_by_all_others() -> None:
    traced, own = np.full(6, 2.0), np.array([1.0, 1.0, 1.0, 1.0, 1.6, 9.0])
    found = _usual(own, traced, np.array([0, 0, 0, 0, 1, 1]), np.array([0, 0, 0, 0, 0, 1], dtype=bool))
    assert found.tolist() == [*own[:-1], 1.0]
    everything = np.ones(6, dtype=bool)
    assert _usual(own, traced, np.zeros(6, dtype=np.int64), everything).tolist() == own.tolist()


def captured(number: int, interval: int, warmup: int = 1) -> CapturedPhase:
    return CapturedPhase(number, interval, f"phase-{number}-reduced", 1, warmup, 0, 0, 0, {})


@pytest.fixture
def timed(builds: Path) -> TimedProfile:
    profile = profile_of(build("nbody", builds), SIZES["nbody"])
    wanted = candidates(profile)
    with streams_of() as streams:
        return merge_bad_boundaries(profile, wanted, stamped_run(profile, wanted, streams=streams))


def without_boundary(timed: TimedProfile, at: int) -> TimedProfile:
    """As if boundary `at` had failed: intervals at - 1 and at are one."""
    kept = np.delete(np.arange(timed.intervals), at)
    return replace(
        timed,
        seconds=np.add.reduceat(timed.seconds, kept),
        cpu=np.add.reduceat(timed.cpu, kept),
        stamping=np.add.reduceat(timed.stamping, kept),
        kernel=np.zeros(0),
        counts=timed.counts[kept],
        columns=np.delete(timed.columns, at - 1),
        executions=np.delete(timed.executions, at - 1),
        first_row=np.delete(timed.first_row, at),
    )


def test_a_checkpoint_counts_where_all_its_boundaries_held(timed: TimedProfile, tmp_path: Path) -> None:
    early = EarlyCapture.__new__(EarlyCapture)
    early.together = 1
    early._build = type("Known", (), {"timed": timed, "folder": type("Folder", (), {"path": tmp_path})})()  # type: ignore[assignment]
    early._captured = [captured(1000 + n, interval) for n, interval in enumerate((3, 4, 5, 6, 7, 9))]
    for one in early._captured:
        (tmp_path / one.folder).mkdir()
    # The one before boundary 5 ends there, the one behind begins there, and the next one's warm-up does.
    kept = early.checkpoints(without_boundary(timed, 5))
    assert [(one.phase, one.interval) for one in kept.captured] == [(1000, 3), (1004, 6), (1005, 8)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [one.folder for one in kept.captured]


def test_joined_intervals_are_found_again(timed: TimedProfile, tmp_path: Path) -> None:
    early = EarlyCapture.__new__(EarlyCapture)
    early.together = 2
    early._build = type("Known", (), {"timed": join_intervals(timed, 2), "folder": None})()  # type: ignore[assignment]
    early._captured = [captured(1000, 3)]
    assert early.checkpoints(timed) == EarlyCheckpoints(2, (captured(1000, 3),))


def test_checkpoints_whose_files_are_gone_do_not_count(tmp_path: Path) -> None:
    one, other = captured(1000, 3), captured(1001, 5)
    (tmp_path / one.folder).mkdir()
    assert there(EarlyCheckpoints(1, (one, other)), tmp_path) == EarlyCheckpoints(1, (one,))


def test_what_an_interrupted_run_left_is_removed(tmp_path: Path) -> None:
    for name in ("phase-1000", "phase-1001-reduced", "phase-3", "written-1001"):
        (tmp_path / name).mkdir()
    (tmp_path / "touched-1001.bin").touch()
    at_once._remove_all(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["phase-3"]


def test_a_tracer_that_lags_behind_loses_no_boundary(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it may get no processor right after it let the program go on."""
    profile = profile_of(build("nbody", builds), SIZES["nbody"])
    wanted = candidates(profile)
    chosen = next(c for c in wanted if c.boundary == profile.intervals // 2)
    resume = Tracee.resume

    def late(tracee: Tracee, deliver: int = 0) -> None:
        resume(tracee, deliver)
        time.sleep(0.1)

    monkeypatch.setattr(Tracee, "resume", late)
    halts = Standing({Place(marker_of(profile, chosen.column), chosen.count)})
    with streams_of() as streams:
        timed = merge_bad_boundaries(profile, wanted, stamped_run(profile, wanted, streams=streams, halts=halts))
    assert halts.seen == 1 and (timed.missing, timed.out_of_order) == (0, 0)


def test_a_captured_boundary_has_one_candidate(builds: Path) -> None:
    """Of several the earliest would be the boundary, which need not be where the checkpoint was taken."""
    profile = profile_of(build("sweep", builds), SIZES["sweep"])
    wanted = candidates(profile)
    several = [b for b in range(1, profile.intervals) if sum(c.boundary == b for c in wanted) > 1]
    with streams_of() as streams:
        timed = merge_bad_boundaries(profile, wanted, stamped_run(profile, wanted, streams=streams))
    early = EarlyCapture.__new__(EarlyCapture)
    early._build, early._traced = type("Known", (), {"profile": profile})(), timed  # type: ignore[assignment]
    chosen = next(b for b in several if b in timed.first_row)
    at = int(np.searchsorted(timed.first_row, chosen)) - 1
    end = Place(marker_of(profile, int(timed.columns[at])), int(timed.executions[at]))
    kept = [c for c in wanted if early._kept(c, {end})]
    (alone,) = (c for c in kept if c.boundary == chosen)
    assert Place(marker_of(profile, alone.column), alone.count) == end
    assert [c for c in wanted if c.boundary != chosen] == [c for c in kept if c.boundary != chosen]


def test_the_clock_is_mended_around_halts() -> None:
    """Ten intervals of 0.1 s, traced half as fast; the one before the halt has slept, the one behind it was slow."""
    early = EarlyCapture.__new__(EarlyCapture)
    wall, cpu = np.full(10, 0.1), np.full(10, 0.1)
    wall[4], wall[5], cpu[5] = 0.15, 0.12, 0.12
    profile = type("Traced", (), {"seconds": np.full(10, 0.2)})()
    early._build = type("Known", (), {"profile": profile, "timed": type("Rows", (), {"first_row": np.arange(11)})()})()  # type: ignore[assignment]
    early._selection = type("Chosen", (), {"labels": np.zeros(10, dtype=np.int64)})()  # type: ignore[assignment]
    timed = TimedProfile(
        counts=sp.csr_array((10, 1)), seconds=wall, cpu=cpu, columns=np.zeros(9, dtype=np.int64),
        executions=np.arange(9), first_row=np.arange(11), wall_seconds=float(wall.sum()), unmarked=0, missing=0,
        out_of_order=0, agreeing=1, compared=1, blocked_share=0.05 / float(wall.sum()),
    )  # fmt: skip
    nothing = np.zeros(0)
    run = StampedRun(nothing, nothing, started=7.0, ended=8.0, ended_cpu=1.0, totals={}, halts=(7.0 + 0.55,))
    mended = early.undisturbed(timed, run)
    assert mended.seconds == pytest.approx(np.full(10, 0.1)) and mended.cpu == pytest.approx(np.full(10, 0.1))
    assert mended.wall_seconds == pytest.approx(1.0) and mended.blocked_share == pytest.approx(0.0, abs=1e-9)
    elsewhere = early.undisturbed(timed, replace(run, halts=(7.95,)))
    assert elsewhere.seconds[4:6].tolist() == [0.15, 0.12], "nothing but what lies at a halt"


@pytest.mark.parametrize(
    ("error", "halts"), [(StorageError("no room"), 1), (OSError("it may not map"), 3), (Unfit(["a socket"]), 3)]
)
def test_an_interval_that_cannot_be_captured_is_none_to_choose_from(
    error: Exception, halts: int, tmp_path: Path
) -> None:
    early = EarlyCapture.__new__(EarlyCapture)
    places = [Place(Marker("program", n), 1) for n in range(3)]
    plans = [RegionPlan(1000 + n, 5 * n, 1, place, place, place) for n, place in enumerate(places)]
    early._waiting = {place: [plan] for place, plan in zip(places, plans, strict=True)}
    early._plans, early._captured, early._said, early._began = dict(enumerate(plans)), [], 1e18, 0.0
    early._build = type("Known", (), {"folder": type("F", (), {"path": tmp_path})})()  # type: ignore[assignment]
    early._tell_room = lambda resident: None  # type: ignore[method-assign]
    seen = []

    class Run:
        tracee = type("Traced", (), {"pid": os.getpid()})

        def stopped_at(self, waiting: Collection[Place]) -> Place | None:
            return next(iter(waiting), None)

        def dump(self, plan: RegionPlan, *_: object) -> CapturedPhase:
            (tmp_path / f"phase-{plan.phase}").mkdir()
            seen.append(plan.phase)
            raise error

    while early.reached(Run()):  # type: ignore[arg-type]
        pass
    assert len(seen) == halts and early._captured == [] and list(tmp_path.iterdir()) == []
