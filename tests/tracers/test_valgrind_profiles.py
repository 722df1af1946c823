# SPDX-License-Identifier: Apache-2.0
"""Profiles by the Valgrind tracer: their markers are found again natively, their phases are the native tracer's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from programs import build
from tracing import program_of, streams_of
from valgrind_traces import profile_of, sorter

from checkpoint.errors import Diverged
from probe.formats.choices import INSTRUCTIONS
from probe.formats.intervals import vectors, work
from probe.formats.profile import NO_SITE, Profile, load_profile, save_profile
from probe.pipeline.runs.boundaries import Candidate, StampedRun, candidates, site_counts
from probe.pipeline.runs.sound_boundaries import MOST_SHIFT, merge_bad_boundaries
from probe.pipeline.runs.stamped import stamped_run
from probe.pipeline.validate import validate
from probe.selection.select import select_phases
from probe.tracers import trace_program

__all__ = ["sorter"]


def test_a_profile_of_all_code(sorter: Profile) -> None:
    profile = sorter
    assert profile.written == (), "files of the program alone"
    assert profile.unit == INSTRUCTIONS and profile.tracer == "valgrind" and profile.interval == 50_000_000
    lengths = profile.instructions()
    assert (np.abs(lengths[:-1] - 50_000_000) < 200).all() and 0 < lengths[-1] < 50_000_200
    names = {Path(path).name: i for i, (path, _) in enumerate(profile.images)}
    assert {"libc.so.6", "sorter"} <= names.keys()
    placed = profile.blocks.site != NO_SITE
    assert set(profile.blocks.image[placed].tolist()) == {names["sorter"]}, "markers in the program's own code only"
    assert set(profile.executed.image.tolist()) == {names["sorter"]}
    assert profile.markers.boundary.max() < profile.intervals
    assert (profile.markers.distance < 0.01 * profile.interval).all()
    assert (profile.seconds > 0).all() and profile.cpu_seconds > 0


def test_a_profile_is_read_as_it_was_written(builds: Path, tmp_path: Path) -> None:
    profile = profile_of(build("callpop", builds), "2000", interval=10_000_000)
    save_profile(profile, tmp_path / "x.profile")
    read = load_profile(tmp_path / "x.profile")
    assert (read.counts != profile.counts).nnz == 0
    for name in ("boundary", "column", "distance"):
        assert (getattr(read.markers, name) == getattr(profile.markers, name)).all()


def test_every_boundary_is_found_natively(sorter: Profile) -> None:
    profile = sorter
    wanted = candidates(profile)
    with streams_of() as streams:
        found = stamped_run(profile, wanted, streams=streams)
    assert np.isfinite(found.wall).all()
    totals = np.asarray(site_counts(profile).sum(axis=0)).ravel()
    assert found.totals == {column: totals[column] for column in found.totals}
    timed = merge_bad_boundaries(profile, wanted, found)
    assert timed.missing == timed.out_of_order == timed.shifted == 0
    assert timed.intervals >= profile.intervals - timed.unmarked - 1
    assert timed.agreeing == timed.compared > 0


def drifting(run: StampedRun, profile: Profile, column: int, intervals: float) -> StampedRun:
    """The run as if one marker had been executed more often natively, by so many intervals' worth."""
    more = round(run.totals[column] * (1 + intervals / profile.intervals))
    return replace(run, totals={**run.totals, column: more})


def test_a_small_shift_is_tolerated_and_a_large_one_is_not(sorter: Profile) -> None:
    profile = sorter
    wanted = candidates(profile)
    with streams_of() as streams:
        found = stamped_run(profile, wanted, streams=streams)
    often = max(found.totals, key=lambda column: found.totals[column])
    small = merge_bad_boundaries(profile, wanted, drifting(found, profile, often, MOST_SHIFT / 2))
    assert small.shifted == 1 and small.agreeing == small.compared and small.missing == 0
    everything = found
    for column in found.totals:
        everything = drifting(everything, profile, column, 3 * MOST_SHIFT)
    with pytest.raises(Diverged, match=r"were not reached .* --tracer native"):
        merge_bad_boundaries(profile, wanted, everything)


def test_other_candidates_take_the_place_of_those_that_drift(sorter: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = sorter
    runs: list[set[int]] = []

    def with_drift(profile: Profile, wanted: list[Candidate], **rest: object) -> StampedRun:
        found = stamped_run(profile, wanted, **rest)  # type: ignore[arg-type]
        runs.append(set(found.totals))
        if len(runs) == 1:
            for column in found.totals:
                found = drifting(found, profile, column, 1)
        return found

    monkeypatch.setattr("probe.pipeline.validate.stamped_run", with_drift)
    with streams_of() as streams:
        timed = validate(profile, streams=streams)
        assert streams.stdout.read_text().count("sorter") == 1, "the output is that of the last run alone"
    assert len(runs) == 2 and not runs[0] & runs[1]
    assert timed.missing == 0 and timed.intervals > profile.intervals // 2


def phases_over_time(profile: Profile) -> np.ndarray:
    """The phase at each of a thousand moments of the timing run. Every instruction is taken to last equally long: the
    vectors alone decide."""
    with streams_of() as streams:
        timed = validate(profile, streams=streams)
    eligible = np.ones(timed.intervals, dtype=bool)
    eligible[[0, -1]] = False
    instructions = work(profile, timed)
    found = select_phases(vectors(profile, timed), instructions, np.maximum(instructions, 1.0), eligible)
    ends = np.cumsum(timed.cpu)
    return found.labels[np.searchsorted(ends, (np.arange(1000) + 0.5) / 1000 * ends[-1])]


def share_told(told: np.ndarray, telling: np.ndarray) -> float:
    """The share of the moments at which the phase in `telling` tells that in `told`: the one it mostly comes with."""
    return sum(np.bincount(told[telling == phase] + 1).max() for phase in np.unique(telling)) / len(told)


def test_native_and_exact_vectors_give_the_same_phases(sorter: Profile, builds: Path) -> None:
    """But for their number: exact vectors hold libraries too, and both divide some twenty phases finely. Boundaries lie
    elsewhere."""
    with streams_of() as streams:
        program = program_of(build("sorter", builds), "1")
        native = trace_program(program, tracer="native", interval=0.02, streams=streams)
    ours, theirs = phases_over_time(native), phases_over_time(sorter)
    assert len(np.unique(ours)) > 2
    by_chance = share_told(ours, np.random.default_rng(1).permutation(theirs))
    assert share_told(ours, theirs) > by_chance + 0.3
