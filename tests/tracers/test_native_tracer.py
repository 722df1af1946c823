# SPDX-License-Identifier: Apache-2.0
"""The native tracer and the timing run: whole profiles of real programs, and the arithmetic behind them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from programs import build, run, symbols
from rivals import rivals
from tracing import SECONDS, compile_small, count_run, program_of, streams_of

import probe.tracers.native as native
from checkpoint.errors import Diverged, ProbeError, ProgramFailed, ProgramTooShort, ProgramUnsupported
from checkpoint.process.loader import LoadWatch
from checkpoint.process.program import Program
from checkpoint.process.tracee import Tracee, process_state
from checkpoint.stubs.counters import SiteCounters
from probe.formats.arrays import BoolArray, FloatArray, IntArray
from probe.formats.profile import BlockTable, Profile, load_profile, save_profile
from probe.formats.timing import load_timing, save_timing
from probe.pipeline.boundaries import Candidate, candidates
from probe.pipeline.validate import StampedRun, longest_rising, merge_bad_boundaries, stamped_run, validate
from probe.tracers.hot_sites import MARKER_FIRINGS, MOST_OVERHEAD, Row, hottest_sites, sites_to_remove
from probe.tracers.native import trace

INTERVAL = 0.01
# Long enough for some twenty intervals of INTERVAL.
SIZES = {
    "nbody": "60",
    "stencil": "300",
    "sweep": "3",
    "redzone": "1500",
    "jumptable": "150",
    "callpop": "8000",
    "signals": "80",
}


def profile_of(path: Path, *arguments: str, interval: float = INTERVAL) -> Profile:
    """Trace `path` and check its output against its plain run."""
    with streams_of() as streams:
        profile = trace(program_of(path, *arguments), interval=interval, streams=streams)
        assert streams.stdout.read_text() == run(path, *arguments).stdout
    return profile


def column_of(profile: Profile, image: Path, address: int) -> int | None:
    """The column of the block that holds `address`."""
    table = profile.blocks
    held = (table.start <= address) & (address < table.start + table.size)
    held &= np.array([profile.images[i][0] == str(image) for i in table.image.tolist()], dtype=bool)
    found = np.flatnonzero(held)
    return int(found[0]) if len(found) else None


def totals(profile: Profile) -> IntArray:
    return np.asarray(profile.counts.sum(axis=0)).ravel()


# -- profiles


@pytest.mark.parametrize("name", ["nbody", "redzone", "jumptable", "callpop"])
def test_columns_add_up_to_the_exact_counts(name: str, builds: Path) -> None:
    """Whatever was removed meanwhile: a column that is left has counted from beginning to end."""
    path = build(name, builds)
    profile = profile_of(path, SIZES[name])
    truth = count_run(program_of(path, SIZES[name]))
    sites, counts = truth.image(path)
    expected = dict(zip(sites.offset.tolist(), counts.tolist(), strict=True))
    found = dict(zip(profile.blocks.site.tolist(), totals(profile).tolist(), strict=True))
    assert found == {site: expected[site] for site in found}
    assert set(profile.executed.site.tolist()) == {site for site, count in expected.items() if count}
    assert profile.intervals >= 5 and len(profile.seconds) == profile.counts.shape[0]
    assert profile.seconds.min() > 0 and INTERVAL / 2 < np.median(profile.seconds) < 10 * INTERVAL
    assert profile.installed_sites == len(sites) and profile.images == ((str(path), truth.images[0].sha256),)
    assert 0 < profile.cpu_seconds < 30 and profile.unit == "seconds"


def test_hot_sites_are_removed_and_the_rest_is_whole(builds: Path) -> None:
    path = build("callpop", builds)
    profile = profile_of(path, SIZES["callpop"])
    assert profile.removed_sites > 0
    fib = symbols(path)["callpop_fib"]
    assert not ((profile.blocks.start >= fib) & (profile.blocks.start < symbols(path)["site_tail"])).all()
    assert len(profile.blocks.site) < len(profile.executed.site), "removed, yet known to have run"


def test_a_flat_loop_keeps_its_only_marker(builds: Path) -> None:
    path = build("flat", builds)
    profile = profile_of(path, "400")
    column = column_of(profile, path, symbols(path)["site_flat"])
    assert column is not None, "the only site of the stretch was removed"
    assert totals(profile)[column] == 400_000_000
    assert {c.boundary for c in candidates(profile)} >= set(range(2, profile.intervals - 1))


def test_libraries_opened_later_are_counted_through_every_opening(builds: Path) -> None:
    path = build("dlopen", builds)
    profile = profile_of(path, "40")
    plugin = path.parent / "plugin.so"
    column = column_of(profile, plugin, symbols(plugin)["site_plugin"])
    assert column is not None and totals(profile)[column] == 2 * 40_000


@pytest.mark.parametrize("name", ["execer", "execscript.sh"])
def test_execve_is_followed(name: str, builds: Path) -> None:
    path = build(name, builds)
    profile = profile_of(path, "150")
    executed = path.parent / "execed"
    assert [image for image, _ in profile.images] == [str(executed)]
    column = column_of(profile, executed, symbols(executed)["site_execed"])
    assert column is not None and totals(profile)[column] == 150
    assert profile.prologue > (0.05 if name == "execer" else 0)


def test_signals_at_four_kilohertz(builds: Path, tmp_path: Path) -> None:
    path, truth = build("signals", builds), tmp_path / "counts"
    profile = profile_of(path, SIZES["signals"], str(truth))
    # The plain run of `profile_of` wrote the file last; the traced run's own counts must agree with each other.
    hot, handler = (column_of(profile, path, symbols(path)[f"site_{n}"]) for n in ("hot", "handler"))
    assert hot is not None or handler is not None
    if hot is not None and handler is not None:
        assert totals(profile)[hot] == int(SIZES["signals"]) * 1_000_000 + totals(profile)[handler]


def test_long_runs_merge_neighbours(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build("flat", builds)
    monkeypatch.setattr(native, "MOST_INTERVALS", 10)
    profile = profile_of(path, "400", interval=0.005)
    assert profile.intervals <= 11 and profile.interval >= 0.01
    column = column_of(profile, path, symbols(path)["site_flat"])
    assert column is not None and totals(profile)[column] == 400_000_000
    assert profile.seconds.min() > 0


def test_progress_is_told(builds: Path) -> None:
    told: list[float] = []
    with streams_of() as streams:
        profile = trace(
            program_of(build("flat", builds), "300"), interval=INTERVAL, streams=streams, progress=told.append
        )
    assert len(told) == profile.intervals - 1 and told == sorted(told)


# -- what cannot be profiled


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("crash", ProgramFailed, "SIGSEGV"),
        ("abort", ProgramFailed, "SIGABRT"),
        ("short", ProgramTooShort, "at least 5"),
        ("threads", ProgramUnsupported, "started a thread"),
        ("forker", ProgramUnsupported, "started a child"),
        ("vforker", ProgramUnsupported, "started a child"),
    ],
)
def test_bad_ends(name: str, error: type[ProbeError], words: str, builds: Path) -> None:
    arguments = () if name == "short" else ("60",)
    with streams_of() as streams, pytest.raises(error, match=words):
        trace(program_of(build(name, builds), *arguments), interval=INTERVAL, streams=streams)


def test_any_exit_status_is_one(builds: Path, tmp_path: Path) -> None:
    """Solvers and searches say by it what they found; a run too short for a probe has failed."""
    program = build("fail", builds)
    with streams_of() as streams:
        profile = trace(program_of(program, "200"), interval=INTERVAL, streams=streams)
    save_profile(profile, tmp_path / "fail.profile")
    assert profile.exit_status == load_profile(tmp_path / "fail.profile").exit_status == 3
    with streams_of() as streams, pytest.raises(ProgramFailed, match=r"status 3 before there was.*fail: as asked"):
        trace(program_of(program, "1"), interval=INTERVAL, streams=streams)


def test_a_breakpoint_of_the_programs_own(tmp_path: Path) -> None:
    path = compile_small(tmp_path, "own", 'int main(void) { __asm__ volatile("int3"); return 0; }')
    with streams_of() as streams, pytest.raises(ProbeError, match="breakpoint instruction of its own"):
        trace(program_of(path), streams=streams)


def test_killed_from_outside(builds: Path) -> None:
    def kill(_: float) -> None:
        for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)

    with streams_of() as streams, pytest.raises(ProgramFailed, match="SIGKILL"):
        trace(program_of(build("flat", builds), "5000"), interval=INTERVAL, streams=streams, progress=kill)


def test_counters_that_went_away_between_wait_and_copy(builds: Path) -> None:
    with streams_of() as streams, Tracee.start(program_of(build("execer", builds), "5"), streams) as tracee:
        recording = native._Recording(tracee, LoadWatch(tracee), SiteCounters(tracee), INTERVAL)
        recording.install_new()
        recording.begin()
        tracee.resume()
        while process_state(tracee.pid) != "t":  # stopped by its execve, which nobody has waited for
            time.sleep(0.001)
        recording.look(end_row=True)
        assert recording.rows == []
        with pytest.raises(OSError, match=r"gone|process"):
            recording.look(end_row=True, end_of_run=True)


def test_waiting_for_a_processor_makes_no_intervals(builds: Path) -> None:
    cpu, interval = max(os.sched_getaffinity(0)), 0.05
    with rivals(cpu, 3), streams_of() as streams:
        profile = trace(program_of(build("flat", builds), "500"), interval=interval, streams=streams, cpu=cpu)
    assert profile.seconds.sum() > 2 * profile.cpu_seconds, "the rivals took no time; the test shows nothing"
    assert profile.intervals < 1.6 * profile.cpu_seconds / interval
    assert (np.diff(profile.counts.indptr)[:-1] > 0).all()


def test_interrupted_from_the_keyboard(builds: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from checkpoint.process.program import *; from probe.tracers.native import *\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in what a shell runs in background
        f"p = resolve_program([{str(build('flat', builds))!r}, '20000'])\n"
        "try:\n"
        "    streams = Streams(*map(Path, sys.argv[1:]))\n"
        "    trace(p, interval=0.01, streams=streams, progress=lambda s: print(s, flush=True))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', len(Path('/proc/self/task/%d/children' % os.getpid()).read_text()))\n"
    )
    with streams_of() as streams:
        command = [sys.executable, "-c", "import os, signal\n" + code, str(streams.stdout), str(streams.stderr)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None and float(child.stdout.readline()) > 0
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=SECONDS)
    assert out.splitlines()[-1] == "interrupted 0" and child.returncode == 0


# -- hot sites


@st.composite
def loads(draw: st.DrawFn) -> tuple[FloatArray, list[Row], BoolArray]:
    columns = draw(st.integers(1, 12))
    rate = np.array(draw(st.lists(st.floats(0, 1e9), min_size=columns, max_size=columns)))
    removed = np.array(draw(st.lists(st.booleans(), min_size=columns, max_size=columns)))
    rows = []
    for _ in range(draw(st.integers(0, 4))):
        counts = np.array(draw(st.lists(st.integers(0, 100), min_size=columns, max_size=columns)), dtype=np.int64)
        active = np.flatnonzero(counts)
        rows.append(Row(active, counts[active], 0.05))
    return np.where(removed, 0, rate), rows, removed


@given(loads())
def test_every_interval_keeps_a_marker(case: tuple[FloatArray, list[Row], BoolArray]) -> None:
    rate, rows, removed = case
    cost = np.full(len(rate), 1e-9)
    wanted = hottest_sites(rate, cost)
    chosen = sites_to_remove(wanted, cost, rows, removed)
    assert set(chosen.tolist()) <= set(wanted.tolist()) and not removed[chosen].any()
    gone = removed.copy()
    gone[chosen] = True
    for row in rows:
        firm = row.columns[row.executions >= MARKER_FIRINGS]
        assert (~gone[firm]).any() or not (~removed[firm]).any()


@given(loads())
def test_what_is_wanted_gone_makes_the_cost_bearable(
    case: tuple[FloatArray, list[Row], BoolArray],
) -> None:
    rate, _, _ = case
    cost = np.full(len(rate), 1e-9)
    wanted = hottest_sites(rate, cost)
    left = np.delete(rate, wanted)
    assert (left * 1e-9).sum() <= (MOST_OVERHEAD / 2 + 1e-12 if len(wanted) else MOST_OVERHEAD)
    assert not len(wanted) or not len(left) or left.max() <= rate[wanted].min()


def test_the_hottest_go_and_cheap_runs_keep_all() -> None:
    cost = np.full(6, 1e-9)
    assert not len(hottest_sites(np.full(6, 5e6), cost))
    assert hottest_sites(np.array([1e6, 9e8, 1e6, 5e7, 2e6, 0]), cost).tolist() == [1, 3]


def test_executions_spread_over_many_sites_cost_more() -> None:
    # 4e7 executions a second: bearable on a few sites, which stay in the caches; not on 20,000.
    assert not len(hottest_sites(np.full(20, 2e6), np.full(20, 1e-9)))
    assert len(hottest_sites(np.full(20_000, 2e3), np.full(20_000, 1e-9))) > 10_000


# -- boundaries


def made(counts: IntArray) -> Profile:
    """A profile with these executions, N x B."""
    intervals, columns = counts.shape
    table = BlockTable(
        image=np.zeros(columns, dtype=np.int32),
        site=np.arange(columns, dtype=np.int64) * 16,
        start=np.arange(columns, dtype=np.int64) * 16,
        size=np.full(columns, 16, dtype=np.int32),
        instructions=np.full(columns, 4, dtype=np.int32),
    )
    return Profile(
        program=Program(argv=("made",), executable="/made", cwd="/"),
        tracer="native",
        unit="seconds",
        interval=0.05,
        counts=sp.csr_array(counts),
        seconds=np.full(intervals, 0.05),
        blocks=table,
        executed=table,
        images=(("/made", "0" * 64),),
        cpu_seconds=1.0,
        prologue=0.0,
        removed_sites=0,
        installed_sites=columns,
        install_seconds=0.0,
    )


matrices = st.integers(2, 8).flatmap(
    lambda n: st.integers(1, 6).flatmap(
        lambda b: st.lists(
            st.lists(st.sampled_from([0, 1, 4, 30, 200]), min_size=b, max_size=b), min_size=n, max_size=n
        )
    )
)


@given(matrices)
def test_candidates_are_the_next_executions_of_active_blocks(rows: list[list[int]]) -> None:
    counts = np.array(rows, dtype=np.int64)
    found = candidates(made(counts))
    for c in found:
        assert c.count == counts[: c.boundary, c.column].sum() + 1
        assert counts[c.boundary - 1, c.column] and counts[c.boundary, c.column]
    active = {k for k in range(1, len(counts)) if ((counts[k - 1] > 0) & (counts[k] > 0)).any()}
    assert {c.boundary for c in found} == active
    assert all(sum(c.boundary == k for c in found) <= 3 for k in active)


@given(st.lists(st.floats(0, 10, allow_nan=False) | st.integers(0, 9).map(float), max_size=10))
def test_longest_rising_against_all_subsequences(values: list[float]) -> None:
    chosen = longest_rising(np.array(values)).tolist()
    assert chosen == sorted(set(chosen))
    assert all(values[a] < values[b] for a, b in pairwise(chosen))
    longest: list[int] = []
    for i, value in enumerate(values):
        longest.append(1 + max((longest[j] for j in range(i) if values[j] < value), default=0))
    assert len(chosen) == max(longest, default=0)


@st.composite
def timing_runs(draw: st.DrawFn) -> tuple[Profile, list[Candidate], StampedRun]:
    """Forty intervals of three blocks; one boundary at most is missing or out of order."""
    intervals = 40
    chance = np.random.default_rng(draw(st.integers(0, 1000)))
    counts = chance.integers(1, 300, (intervals, 3))
    profile = made(counts.astype(np.int64))
    wanted = candidates(profile)
    wall = np.array([100 + 0.05 * c.boundary for c in wanted]) + chance.uniform(0, 0.01, len(wanted))
    bad = draw(st.none() | st.integers(8, intervals - 8))  # where a shift stays within the run
    shift = draw(st.sampled_from([np.nan, 0.3, -0.3]))
    for i, c in enumerate(wanted):
        if c.boundary == bad:
            wall[i] += shift
    cpu = wall - 99
    return profile, wanted, StampedRun(wall, cpu, 100.0, 102.1, 3.2, {0: int(counts[:, 0].sum()), 1: -1}, 1.0)


@given(timing_runs())
def test_merging_keeps_counts_and_seconds(case: tuple[Profile, list[Candidate], StampedRun]) -> None:
    profile, wanted, stamped = case
    timed = merge_bad_boundaries(profile, wanted, stamped)
    assert (np.asarray(timed.counts.sum(axis=0)) == np.asarray(profile.counts.sum(axis=0))).all()
    assert timed.seconds.sum() == pytest.approx(2.1) and timed.cpu.sum() == pytest.approx(2.2)
    assert (timed.seconds > 0).all() and timed.wall_seconds == pytest.approx(2.1)
    assert (np.diff(timed.first_row) > 0).all()
    assert timed.first_row[0] == 0 and timed.first_row[-1] == profile.intervals
    assert timed.intervals == profile.intervals - timed.missing - timed.out_of_order
    assert timed.missing + timed.out_of_order <= 1 and timed.unmarked == 0
    assert (timed.agreeing, timed.compared) == (1, 2)
    for row, (low, high) in enumerate(zip(timed.first_row, timed.first_row[1:], strict=False)):
        assert (timed.counts[[row]].toarray() == profile.counts[low:high].sum(axis=0)).all()
    by_place = {(c.column, c.count): c.boundary for c in wanted}
    pairs = zip(timed.columns.tolist(), timed.executions.tolist(), strict=True)
    assert [by_place[pair] for pair in pairs] == timed.first_row[1:-1].tolist()


def test_too_many_bad_boundaries_are_a_divergence() -> None:
    profile = made(np.full((40, 2), 200, dtype=np.int64))
    wanted = candidates(profile)
    wall = np.array([100 + 0.05 * c.boundary for c in wanted])
    sound = StampedRun(wall, wall, 100.0, 102.1, 3.0, {})
    assert merge_bad_boundaries(profile, wanted, sound).missing == 0
    for spoilt in (np.where(np.arange(len(wall)) % 20 < 6, np.nan, wall), wall[::-1].copy()):
        with pytest.raises(Diverged, match="did not repeat"):
            merge_bad_boundaries(profile, wanted, replace(sound, wall=spoilt))


def test_the_earliest_stamp_is_the_boundary() -> None:
    profile = made(np.full((10, 3), 200, dtype=np.int64))
    wanted = candidates(profile)
    wall = np.array([100 + 0.05 * c.boundary + 0.01 * (2 - c.column) for c in wanted])
    timed = merge_bad_boundaries(profile, wanted, StampedRun(wall, wall, 100.0, 101.0, 2.0, {}))
    assert set(timed.columns.tolist()) == {2}


# -- the timing run


@pytest.mark.parametrize("name", ["nbody", "sweep", "stencil", "jumptable"])
def test_every_boundary_is_stamped_in_order(name: str, builds: Path) -> None:
    path = build(name, builds)
    profile = profile_of(path, SIZES[name])
    wanted = candidates(profile)
    with streams_of() as streams:
        first = stamped_run(profile, wanted, streams=streams)
        assert streams.stdout.read_text() == run(path, SIZES[name]).stdout
    with streams_of() as streams:
        second = stamped_run(profile, wanted, streams=streams)
    assert np.isfinite(first.wall).all() and np.isfinite(first.cpu).all()
    assert first.totals == second.totals
    assert first.totals == {c: int(totals(profile)[c]) for c in {c.column for c in wanted}}
    timed = merge_bad_boundaries(profile, wanted, first)
    assert (timed.missing, timed.out_of_order) == (0, 0) and timed.agreeing == timed.compared > 0
    assert timed.intervals == profile.intervals - timed.unmarked
    assert (timed.seconds > 0).all() and (timed.cpu >= 0).all()
    assert timed.seconds.sum() == pytest.approx(first.ended - first.started)
    assert timed.cpu.sum() <= timed.seconds.sum() * 1.1 + 0.05


def test_libraries_and_executed_programs_are_timed(builds: Path) -> None:
    for name, size in (("dlopen", "40"), ("execer", "150")):
        path = build(name, builds)
        profile = profile_of(path, size)
        with streams_of() as streams:
            timed = validate(profile, streams=streams)
        assert (timed.missing, timed.out_of_order) == (0, 0)


def test_the_timing_run_begins_where_the_intervals_do(builds: Path) -> None:
    """Not with the program that executed the traced one, nor with the loader and the installing of stubs."""
    profile = profile_of(build("execer", builds), "150")
    with streams_of() as streams:
        stamped = stamped_run(profile, candidates(profile), streams=streams)
    assert stamped.started_cpu > 0.1, "the first program's share"
    assert 0 < stamped.cpu.min() - stamped.started_cpu < 0.06
    assert 0 < stamped.wall.min() - stamped.started < (stamped.ended - stamped.started) / 3


def test_a_program_that_does_not_repeat_itself(builds: Path) -> None:
    path = build("random", builds)
    with streams_of() as streams:
        profile = trace(program_of(path, "250"), interval=INTERVAL, streams=streams)
    with streams_of() as streams, pytest.raises(Diverged):
        validate(profile, streams=streams)


def test_a_program_that_exits_otherwise_in_its_timing_run(builds: Path, tmp_path: Path) -> None:
    source = (
        "#include <stdio.h>\nint main(void)"
        "{ volatile long i = 0; int c = getchar(); while (i < 60000000) i++; return c == '1'; }"
    )
    path = compile_small(tmp_path, "moody", source)
    (tmp_path / "input").write_text("0")
    program = program_of(path, stdin=str(tmp_path / "input"))
    with streams_of() as streams:
        profile = trace(program, interval=INTERVAL, streams=streams)
    (tmp_path / "input").write_text("1")
    with streams_of() as streams, pytest.raises(Diverged, match="exited with status 1, the traced run with status 0"):
        validate(profile, streams=streams)


def test_timings_are_kept(tmp_path: Path) -> None:
    profile = made(np.full((10, 3), 200, dtype=np.int64))
    wanted = candidates(profile)
    wall = np.array([100 + 0.05 * c.boundary for c in wanted])
    timed = merge_bad_boundaries(profile, wanted, StampedRun(wall, wall, 100.0, 101.0, 2.0, {}))
    path = tmp_path / "timing.npz"
    save_timing(timed, path)
    again = load_timing(path)
    assert (again.counts.toarray() == timed.counts.toarray()).all()
    for name, value in vars(timed).items():
        if name != "counts":
            assert np.array_equal(getattr(again, name), value), name
    whole = path.read_bytes()
    for content in (b"", b"PK\x03\x04", whole[: len(whole) // 2], whole[:-30], b"x" * 100):
        path.write_bytes(content)
        with pytest.raises(ProbeError, match="not a readable timing"):
            load_timing(path)
