# SPDX-License-Identifier: Apache-2.0
"""Markers that place no boundary: they tell that a program draws its way inside a steady loop."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from native_profiles import INTERVAL, made
from tracing import compile_small, program_of, streams_of

from checkpoint.errors import Diverged
from probe.formats.choices import INSTRUCTIONS
from probe.formats.profile import Profile
from probe.pipeline.runs import stamped as stamped_module
from probe.pipeline.runs import witnesses as module
from probe.pipeline.runs.boundaries import Candidate, StampedRun, candidates, site_counts
from probe.pipeline.runs.sound_boundaries import NotRepeated, merge_bad_boundaries, why_unlike
from probe.pipeline.runs.standing import MarkedRun
from probe.pipeline.runs.straying import Straying
from probe.pipeline.runs.witnesses import as_often, refuse_unlike_sample, sample, survey, unlike_the_sample, witnesses
from probe.pipeline.validate import validate
from probe.tracers.hot_sites import SAVING_SECONDS
from probe.tracers.native import trace

LOOP, HEAD, OFTEN, LESS, RARE = range(5)


@pytest.fixture
def profile() -> Profile:
    """A loop of 200 steps in each interval, its head, two ways inside, and what is printed now and then."""
    drawn = np.tile([[60, 140], [90, 80]], (20, 1))
    columns = [np.full((40, 1), 200), np.full((40, 1), 201), drawn[:, 1:], drawn[:, :1], np.full((40, 1), 4)]
    return made(np.concatenate(columns, axis=1))


@pytest.fixture
def wanted(profile: Profile) -> list[Candidate]:
    return [c for c in candidates(profile) if c.column in (LOOP, HEAD)]


def stamped(wanted: list[Candidate], totals: dict[int, int]) -> StampedRun:
    wall = np.array([100 + 0.05 * c.boundary for c in wanted])
    return StampedRun(wall, wall, 100.0, 102.1, 3.0, totals)


def test_what_differs_from_the_loop_is_counted(profile: Profile, wanted: list[Candidate]) -> None:
    assert {c.column for c in wanted} == {LOOP, HEAD}
    assert witnesses(profile, wanted) == (OFTEN, LESS)
    assert witnesses(profile, wanted, native_seconds=1e-6) == ()
    more = [*wanted, Candidate(1, OFTEN, 10), Candidate(1, LESS, 10)]
    assert witnesses(profile, more) == () and witnesses(profile, more[:-1]) == (LESS,)
    assert witnesses(profile, []) == () and witnesses(profile, wanted, avoid={OFTEN}) == (LESS,)
    # Where threads share the work, or another processor was shown, other counts are no fault.
    assert witnesses(replace(profile, first=profile.counts), wanted) == ()
    assert witnesses(replace(profile, unit=INSTRUCTIONS), wanted) == ()


def test_ways_that_are_drawn_are_no_repetition(profile: Profile, wanted: list[Candidate]) -> None:
    steady = {LOOP: 8000, HEAD: 8040}
    with pytest.raises(Diverged, match="of 4 markers only 2 were"):
        merge_bad_boundaries(profile, wanted, stamped(wanted, {**steady, OFTEN: 4100, LESS: 3300}))
    only = [c for c in wanted if c.column == LOOP]
    with pytest.raises(Diverged, match="of 2 markers only 1 were"):
        merge_bad_boundaries(profile, only, stamped(only, {LOOP: 8000, OFTEN: 4100}))


def test_witnesses_place_nothing_and_may_be_off_by_little(profile: Profile, wanted: list[Candidate]) -> None:
    """One execution more is nothing; one of many that is far off does not refuse the run."""
    steady = {LOOP: 8000, HEAD: 8040}
    for others in ({OFTEN: 4401, LESS: 3001}, {OFTEN: 4400, LESS: 3300}):
        timed = merge_bad_boundaries(profile, wanted, stamped(wanted, {**steady, **others}))
        assert {*timed.columns.tolist()} <= {LOOP, HEAD} and timed.compared == 4
        assert timed.seconds[1:-1] == pytest.approx(0.05)
    # By a marker that places boundaries one execution more is a difference.
    assert merge_bad_boundaries(profile, wanted, stamped(wanted, {LOOP: 8001, HEAD: 8040})).agreeing == 1


def kinds(intervals: int = 40) -> Profile:
    """Three rare places, and thirty kinds that are busier, each 5 % busier than the last."""
    busy = (400 * 1.05 ** np.arange(30)).astype(np.int64)
    return made(np.tile(np.concatenate([[120, 121, 122], busy]), (intervals, 1)))


def ran(profile: Profile, columns: Collection[int], differing: Collection[int], by: float = 0.02) -> StampedRun:
    totals = {c: round(int(profile.counts[:, [c]].sum()) * (1 + by * (c in differing))) for c in columns}
    return stamped([c for c in candidates(profile) if c.column in columns], totals)


def test_a_sample_is_of_all_kinds() -> None:
    profile = kinds()
    found = sample(profile, {0, 1, 2}, native_seconds=100.0)
    assert found == tuple(range(3, 33))
    assert sample(profile, {0, 1, 2, *range(10, 33)}, native_seconds=100.0) == ()
    assert sample(profile, (), native_seconds=1e-3) == ()
    assert 2 not in sample(kinds(), {0, 3}, native_seconds=100.0), "as often as 1"
    assert sample(replace(profile, first=profile.counts), {0}, native_seconds=100.0) == ()
    assert sample(replace(profile, unit=INSTRUCTIONS), {0}, native_seconds=100.0) == ()


def test_markers_that_differ_are_given_up_where_the_rest_repeats() -> None:
    profile, every = kinds(), range(33)
    placing, sampled = {0, 1, 2}, set(range(3, 33))
    few, most = set(range(10, 24)), set(range(10, 30))
    assert unlike_the_sample(profile, placing, sampled, ran(profile, every, {0, 1} | few)) == {0, 1} | few
    assert unlike_the_sample(profile, placing, sampled, ran(profile, every, {0, 1} | most)) == set(), "it differs"
    assert unlike_the_sample(profile, placing, sampled, ran(profile, every, {0} | few)) == set(), "most markers hold"
    nearly = ran(profile, every, {0, 1} | most, by=0.005)
    assert unlike_the_sample(profile, placing, sampled, nearly) == {0, 1} | most, "a little, all over"
    assert unlike_the_sample(profile, placing, (), ran(profile, every, {0, 1})) == set(), "nothing to tell by"
    threaded = replace(profile, first=profile.counts)
    assert unlike_the_sample(threaded, placing, sampled, ran(profile, every, {0, 1})) == set()


def test_other_markers_are_believed_where_the_sample_repeats() -> None:
    profile, sampled = kinds(), set(range(3, 33))
    every = ran(profile, range(33), set(range(3, 15)))
    timed = merge_bad_boundaries(profile, candidates(profile), replace(every, beside=frozenset(sampled)))
    assert timed.compared == 3 and timed.unmarked == 0, "the sample's places are no markers"
    refuse_unlike_sample(profile, timed, sampled, every)
    with pytest.raises(NotRepeated, match="of 30 other places 20 were executed by over 1% more or less often"):
        refuse_unlike_sample(profile, timed, sampled, ran(profile, range(33), set(range(3, 23))))
    with pytest.raises(NotRepeated, match="of 39 interval boundaries 9 have no marker that repeats"):
        refuse_unlike_sample(profile, replace(timed, unmarked=9), sampled, every)
    refuse_unlike_sample(profile, replace(timed, unmarked=8), sampled, every)
    refuse_unlike_sample(profile, timed, sampled, ran(profile, range(33), set(range(3, 23)), by=0.005))


def test_what_is_counted_beside_is_part_of_the_stamps_time() -> None:
    profile = kinds()
    run = ran(profile, range(33), ())
    beside = frozenset(range(3, 33))
    timed = merge_bad_boundaries(profile, candidates(profile), replace(run, beside=beside))
    alone = merge_bad_boundaries(profile, candidates(profile), ran(profile, range(3), ()))
    more = profile.counts.toarray()[:, 3:].sum() / profile.counts.toarray()[:, :3].sum()
    assert timed.stamping.sum() == pytest.approx((1 + more) * alone.stamping.sum())


def test_what_runs_as_often_is_given_up_with_a_marker() -> None:
    profile = made(np.array([[5, 6, 2, 7, 5], [5, 4, 8, 7, 5]]))
    assert as_often(profile, {0}) == {0, 1, 2, 4} and as_often(profile, {3}) == {3} and as_often(profile, ()) == set()


def test_a_survey_counts_what_could_mark_in_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = kinds()
    assert set(survey(profile, {0, 1, 2}, native_seconds=100.0)) == set(range(3, 33))
    executions = sum(int(profile.counts[:, [c]].sum()) for c in range(3, 8))
    monkeypatch.setattr(module, "_SURVEY", executions * SAVING_SECONDS / 100.0)
    assert survey(profile, {0, 1, 2}, native_seconds=100.0) == (3, 4, 5, 6, 7), "the cheapest"


_SOON_OR_LATE = """
#include <fcntl.h>
#include <unistd.h>
static volatile long done;
#define KIND(n) __attribute__((noipa)) static void kind##n(void) { for (int i = 0; i < 100 * n; i++) done++; }
KIND(1) KIND(2) KIND(3) KIND(4) KIND(5) KIND(6) KIND(7) KIND(8) KIND(9) KIND(10) KIND(11) KIND(12)
#define COLLECTOR(name) \\
	__attribute__((noipa)) static void look_##name(void) { done++; } \\
	__attribute__((noipa)) static void mark_##name(void) { look_##name(); done++; } \\
	__attribute__((noipa)) static void sweep_##name(void) { mark_##name(); done++; }
COLLECTOR(young) COLLECTOR(old)
int main(int argc, char **argv)
{
	int file = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (write(file, ".", 1) != 1)
		return 1;
	long due = 100 + lseek(file, 0, SEEK_END) % 2;
	for (long i = 1; i <= 800000; i++) {
		if (i % due == 0) {
			if (i < 400000)
				sweep_young();
			else
				sweep_old();
		}
#define EVERY(n) if (i % (44 + 4 * n) == 0) kind##n();
		EVERY(1) EVERY(2) EVERY(3) EVERY(4) EVERY(5) EVERY(6)
		EVERY(7) EVERY(8) EVERY(9) EVERY(10) EVERY(11) EVERY(12)
		for (int j = 0; j < 100; j++)
			done++;
	}
	return 0;
}
"""


def test_a_collector_that_runs_sooner_or_later_is_no_other_run(tmp_path: Path) -> None:
    """Its places are the rarest, and mark nearly all boundaries: others than of two collections the last at most, whose
    interval may be short."""
    path, runs = compile_small(tmp_path, "collecting", _SOON_OR_LATE), tmp_path / "runs"
    with streams_of() as streams:
        profile = trace(program_of(path, str(runs)), interval=3 * INTERVAL, streams=streams)
    totals = np.asarray(site_counts(profile).sum(axis=0)).ravel()
    rare = as_often(profile, {min({c.column for c in candidates(profile)}, key=lambda column: totals[column])})
    assert 6 <= len(rare) < 20, "of two collections"
    with streams_of() as streams:
        timed = validate(profile, streams=streams)
    assert runs.stat().st_size == 3, "traced, timed, and timed with other markers"
    runs.write_text(".")
    with streams_of() as streams, pytest.raises(NotRepeated, match="were executed equally often"):
        validate(profile, streams=streams, as_given=lambda: False)
    assert runs.stat().st_size == 2, "it would not find what it was given"
    assert not rare & {*timed.columns.tolist()}
    assert timed.intervals > 0.9 * profile.intervals and timed.agreeing == timed.compared


_BY_A_TIMER = """
#include <fcntl.h>
#include <unistd.h>
static volatile long done;
#define KIND(n) __attribute__((noipa)) static void kind##n(void) { for (int i = 0; i < 100 * n; i++) done++; }
KIND(1) KIND(2) KIND(3) KIND(4) KIND(5) KIND(6) KIND(7) KIND(8) KIND(9) KIND(10) KIND(11) KIND(12)
#define TIMER(name) \\
	__attribute__((noipa)) static void wake_##name(void) { done++; } \\
	__attribute__((noipa)) static void look_##name(void) { wake_##name(), done++; } \\
	__attribute__((noipa)) static void expire_##name(void) { look_##name(), done++; }
TIMER(early) TIMER(late)
__attribute__((noipa)) static void step(void) { done++; }
__attribute__((noipa)) static void tick(int all, int late)
{
	(late ? expire_late : expire_early)();
	if (all)
		kind1(), kind2(), kind3(), kind4(), kind5(), kind6(), kind7(), kind8(), kind9(), kind10(), kind11(), kind12();
}
int main(int argc, char **argv)
{
	int file = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (write(file, ".", 1) != 1)
		return 1;
	long period = lseek(file, 0, SEEK_END) > 1 ? 100 : 130;
	for (long i = 1; i <= 800000; i++) {
		if (i / 40000 % 2 && i % 110 == 0)
			step();
		else if (i % period == 0)
			tick(i % (32 * period) == 0, i > 400000);
#define EVERY(n) if (i % (44 + 4 * n) == 0) kind##n();
		EVERY(1) EVERY(2) EVERY(3) EVERY(4) EVERY(5) EVERY(6)
		EVERY(7) EVERY(8) EVERY(9) EVERY(10) EVERY(11) EVERY(12)
		for (int j = 0; j < 100; j++)
			done++;
	}
	return 0;
}
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_what_a_timer_does_is_no_other_run(stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is spread thinly over nearly all places. A run that is stopped for it is made again, to its end, and tells of
    other places then."""
    path, runs, asked = compile_small(tmp_path, "ticking", _BY_A_TIMER), tmp_path / "runs", list[NotRepeated]()
    look = Straying.look

    def once_more(error: NotRepeated) -> bool:
        asked.append(error)
        return True

    def stop(straying: Straying, run: MarkedRun) -> None:
        if stopped and not asked:
            raise NotRepeated("it strays", partly=True)
        look(straying, run)

    with streams_of() as streams:
        profile = trace(program_of(path, str(runs)), interval=INTERVAL, streams=streams)
    monkeypatch.setattr(Straying, "look", stop)
    monkeypatch.setattr(stamped_module, "_PROGRESS_SECONDS", 0.005)
    with streams_of() as streams:
        timed = validate(profile, streams=streams, once_more=once_more)
    assert stopped <= len(asked) <= 1 and runs.stat().st_size == 3 + len(asked)
    assert timed.intervals > 0.9 * profile.intervals and timed.agreeing == timed.compared


@pytest.mark.parametrize(("contents", "named"), [(b"\0GHCRTS\0", True), (b"\0", False), (b"", False)])
def test_a_runtime_that_changes_threads_by_a_timer_is_named(contents: bytes, named: bool, tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(contents)
    profile = replace(kinds(), images=((str(tmp_path / "gone"), "0"), (str(tmp_path / "program"), "0")))
    assert ("set GHCRTS=-V0 in the environment" in why_unlike(profile)) == named


def test_a_collector_with_threads_is_named() -> None:
    profile = kinds()
    threaded = replace(profile, first=profile.counts)
    assert why_unlike(threaded).endswith("give each its own part.")
    collected = replace(threaded, images=(("/usr/lib/libgc.so.1.5.1", "0"),))
    assert why_unlike(collected).endswith("set GC_MARKERS=1 in the environment.")
