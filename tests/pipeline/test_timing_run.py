# SPDX-License-Identifier: Apache-2.0
"""The timing run: every boundary stamped in order in real programs, and the times kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from native_profiles import INTERVAL, SIZES, made, profile_of, totals
from programs import build, run
from tracing import compile_small, program_of, streams_of

import probe.pipeline.validate as module
from checkpoint.errors import Diverged, ProbeError
from checkpoint.process.children import Child, Children
from probe.formats.timing import load_timing, save_timing
from probe.pipeline.runs.boundaries import StampedRun, candidates
from probe.pipeline.runs.plan import made_again
from probe.pipeline.runs.sound_boundaries import NotRepeated, merge_bad_boundaries
from probe.pipeline.runs.stamped import _Ran, stamped_run
from probe.pipeline.runs.standing import MarkedRun
from probe.pipeline.validate import validate
from probe.tracers.native import trace


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


@pytest.mark.timed
def test_the_timing_run_begins_where_the_intervals_do(builds: Path) -> None:
    """Not with the program that executed the traced one, nor with the loader and the installing of stubs."""
    profile = profile_of(build("execer", builds), "150")
    with streams_of() as streams:
        stamped = stamped_run(profile, candidates(profile), streams=streams)
    assert stamped.started_cpu > 0.1, "the first program's share"
    assert 0 < stamped.cpu.min() - stamped.started_cpu < 0.06
    assert 0 < stamped.wall.min() - stamped.started < (stamped.ended - stamped.started) / 3


def test_looks_at_what_is_loaded_are_no_time_of_the_run(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPI libraries and numpy open a hundred plugins: stops at each would be half a second of waiting. A process that
    is started behind them is started then by the run's clock, too."""
    profile, looks, pause = profile_of(build("dlopen", builds), "40"), list[float](), 0.2
    look = MarkedRun.libraries_changed

    def slowly(run: MarkedRun) -> None:
        time.sleep(pause)
        look(run)
        looks.append(time.monotonic())

    monkeypatch.setattr(MarkedRun, "libraries_changed", slowly)
    monkeypatch.setattr(Children, "processes", lambda _: [Child(1, None, False, began=looks[-1])])
    begun = time.monotonic()
    with streams_of() as streams:
        stamped = stamped_run(profile, candidates(profile), streams=streams)
    took = time.monotonic() - begun
    assert len(looks) >= 4
    assert stamped.ended - stamped.started <= took - pause * len(looks)
    assert stamped.started < stamped.children[0].began <= min(stamped.ended, looks[-1] - pause * len(looks))
    assert np.diff(stamped.wall).min() > 0 and np.diff(stamped.wall).max() < pause


def test_a_clock_that_stands_with_the_run() -> None:
    """Children lived by it, too: else phases would be placed beside them."""
    ran = _Ran(cast(MarkedRun, None), 100.0, 0.0, 0.0, stops=[(101.0, 2.0), (105.0, 1.0)])
    assert ran.clock([100.5, 101.0, 102.0, 103.0, 104.0, 105.5, 107.0]).tolist() == [
        100.5, 101.0, 101.0, 101.0, 102.0, 103.0, 104.0
    ]  # fmt: skip
    assert np.isnan(ran.clock([np.nan])).all() and ran.clock([]).tolist() == []
    child = ran.on_clock(Child(1, None, False, 104.0, ended=107.0))
    assert (child.began, child.ended, child.kept, child.gone) == (102.0, 104.0, None, None)
    assert _Ran(cast(MarkedRun, None), 100.0, 0.0, 0.0).clock([107.0]).tolist() == [107.0]


def test_the_output_of_the_last_run_is_kept_to_be_compared(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, rounds = profile_of(build("nbody", builds), SIZES["nbody"]), list[StampedRun]()

    def stray(_: object, run: StampedRun) -> set[int]:
        rounds.append(run)
        return set(run.totals)

    monkeypatch.setattr(module, "stray_columns", stray)
    monkeypatch.setattr(module, "MARKER_ROUNDS", 1)
    with streams_of() as streams:
        validate(profile, streams=streams)
        assert streams.stdout.exists() and len(rounds) == 1


def test_a_program_that_does_not_repeat_itself(builds: Path) -> None:
    path = build("random", builds)
    with streams_of() as streams:
        profile = trace(program_of(path, "600"), interval=INTERVAL, streams=streams)
    with streams_of() as streams, pytest.raises(Diverged):
        validate(profile, streams=streams)


def test_a_program_that_exits_otherwise_in_its_timing_run(builds: Path, tmp_path: Path) -> None:
    source = (
        "#include <stdio.h>\nint main(void)"
        "{ volatile long i = 0; int c = getchar(); while (i < 600000000) i++; return c == '1'; }"
    )
    path = compile_small(tmp_path, "moody", source)
    (tmp_path / "input").write_text("0")
    program = program_of(path, stdin=str(tmp_path / "input"))
    with streams_of() as streams:
        profile = trace(program, interval=INTERVAL, streams=streams)
    (tmp_path / "input").write_text("1")
    with streams_of() as streams, pytest.raises(Diverged, match="exited with status 1, the traced run with status 0"):
        validate(profile, streams=streams)


_MOODY = """
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
static volatile long done;
__attribute__((noipa)) static void piece(long turns) { for (long i = 0; i < turns; i++) done++; }
__attribute__((noipa)) static void other(long turns) { for (long i = 0; i < turns; i++) done += 2; }
int main(int argc, char **argv)
{
	int file = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (write(file, ".", 1) != 1)
		return 1;
	long run = lseek(file, 0, SEEK_END), odd = atol(argv[2]);
	for (int i = 0; i < 2000; i++)
		(run == odd || (odd < 0 && run > 1) ? other : piece)(150000);
	return 0;
}
"""


@pytest.mark.parametrize(("odd", "runs", "again"), [("2", 3, 1), ("3", 2, 0), ("-1", 3, 1)])
def test_a_run_that_diverged_is_made_once_more(odd: str, runs: int, again: int, tmp_path: Path) -> None:
    """`odd`: the run that goes another way, the traced one being the first; -1: all behind the traced one do."""
    path, tally, asked = compile_small(tmp_path, "moody", _MOODY), tmp_path / "tally", list[NotRepeated]()

    def once_more(error: NotRepeated) -> bool:
        asked.append(error)
        return True

    with streams_of() as streams:
        profile = trace(program_of(path, str(tally), odd), interval=INTERVAL, streams=streams)
    with streams_of() as streams:
        if odd == "-1":
            with pytest.raises(Diverged, match=r"the timing run did not repeat the traced run: of .*: fix the seed"):
                validate(profile, streams=streams, once_more=once_more)
        else:
            timed = validate(profile, streams=streams, once_more=once_more)
            assert timed.missing == 0 and timed.agreeing == timed.compared
    assert (tally.stat().st_size, len(asked)) == (runs, again)


@pytest.mark.parametrize("once_more", [None, lambda _: False])
def test_a_run_that_diverged_is_not_made_again_unasked(
    once_more: Callable[[NotRepeated], bool] | None, tmp_path: Path
) -> None:
    path, tally = compile_small(tmp_path, "moody", _MOODY), tmp_path / "tally"
    with streams_of() as streams:
        profile = trace(program_of(path, str(tally), "2"), interval=INTERVAL, streams=streams)
    with streams_of() as streams, pytest.raises(Diverged, match="did not repeat the traced run"):
        validate(profile, streams=streams, once_more=once_more)
    assert tally.stat().st_size == 2


def test_which_runs_are_made_again() -> None:
    assert made_again(2.0, False) and made_again(10.0, True)
    assert not made_again(10.0, False) and not made_again(30.0, True)


@pytest.mark.parametrize(("reached", "partly"), [(9, None), (6, True), (3, False)])
def test_a_run_may_have_diverged_in_part(reached: int, partly: bool | None) -> None:
    profile = made(np.full((10, 3), 200, dtype=np.int64))
    wanted = candidates(profile)
    wall = np.array([100 + 0.05 * c.boundary if c.boundary <= reached else np.nan for c in wanted])
    run = StampedRun(wall, wall, 100.0, 101.0, 2.0, {})
    if partly is None:
        merge_bad_boundaries(profile, wanted, run)
        return
    with pytest.raises(NotRepeated) as caught:
        merge_bad_boundaries(profile, wanted, run)
    assert caught.value.partly == partly and caught.value.exit_code == Diverged.exit_code


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
