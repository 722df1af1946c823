# SPDX-License-Identifier: Apache-2.0
"""The native tracer: whole profiles of real programs, and programs that cannot be profiled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from native_profiles import INTERVAL, SIZES, column_of, profile_of, totals
from programs import build, symbols
from rivals import rivals
from tracing import SECONDS, compile_small, count_run, program_of, streams_of

import probe.tracers.native as native
from checkpoint.errors import ProbeError, ProgramFailed, ProgramTooShort, ProgramUnsupported
from checkpoint.process.loader import LoadedImage, LoadWatch
from checkpoint.process.tracee import Tracee
from checkpoint.process.waiting import process_state
from checkpoint.stubs.counters import SiteCounters
from checkpoint.stubs.slots import StubRoom
from probe.formats.profile import load_profile, save_profile
from probe.pipeline.runs.boundaries import candidates
from probe.tracers.look_pauses import LookPauses
from probe.tracers.native import trace

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


@pytest.mark.parametrize(("refused", "named"), [({1, 2}, True), ({1}, False), ({2}, False)])
def test_an_image_without_room_for_counters_is_named(
    refused: set[int], named: bool, builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless there is room at one of the times that it is opened."""
    path, take, asked = build("dlopen", builds), StubRoom.take, [0]

    def without_room(room: StubRoom, loaded: LoadedImage, code: int, data: int) -> tuple[int, int]:
        asked[0] += loaded.image.path.endswith("plugin.so")
        if loaded.image.path.endswith("plugin.so") and asked[0] in refused:
            raise LookupError("no room")
        return take(room, loaded, code, data)

    monkeypatch.setattr(StubRoom, "take", without_room)
    profile = profile_of(path, "40")
    assert asked[0] == 2 and profile.uncounted == ((str(path.parent / "plugin.so"),) if named else ())
    save_profile(profile, tmp_path / "it.profile")
    assert load_profile(tmp_path / "it.profile").uncounted == profile.uncounted


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


def test_looks_that_take_long_end_an_interval_each(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with a million sites got two looks for each interval, and so half as many intervals."""
    seen, read = {0}, SiteCounters.read_both

    def slow(counters: SiteCounters) -> object:
        time.sleep(0.03)
        found = read(counters)
        # Looks at a program that had no processor since the last one end nothing.
        seen.add(int(found[0].executions.sum()))
        return found

    monkeypatch.setattr(SiteCounters, "read_both", slow)
    # On a busy machine an interval goes on while the program waits: that is another matter.
    monkeypatch.setattr(native, "run_delay", lambda pid: 0.0)
    with streams_of() as streams:
        profile = trace(program_of(build("nbody", builds), "600"), interval=0.01, streams=streams)
    assert 0.7 * len(seen) < profile.intervals <= len(seen)


def test_a_look_that_takes_longer_does_not_put_off_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that grew counted from the begin of the interval: one that had lasted for minutes went on for minutes."""
    begins: list[float] = []
    look = native._Recording.look

    def noted(recording: native._Recording, *, end_row: bool, end_of_run: bool = False) -> bool:
        begins.append(time.monotonic())
        return look(recording, end_row=end_row, end_of_run=end_of_run)

    monkeypatch.setattr(native._Recording, "look", noted)
    monkeypatch.setattr(LookPauses, "seconds", lambda pauses, interval: 0.005 if len(begins) < 150 else 0.02)
    # An interval does not end while nothing is executed.
    with streams_of() as streams, pytest.raises(ProbeError):
        trace(program_of(Path("/bin/sleep"), "1.5"), interval=INTERVAL, streams=streams)
    assert len(begins) > 160 and np.diff(begins).max() < 0.5


# -- what cannot be profiled


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("crash", ProgramFailed, "SIGSEGV"),
        ("abort", ProgramFailed, "SIGABRT"),
        ("short", ProgramTooShort, "at least 5"),
        ("threads", ProgramUnsupported, "threads beside its first one"),
        ("forker", ProgramUnsupported, "of its CPU time is that of processes it starts"),
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


@pytest.mark.timed
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
