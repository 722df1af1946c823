# SPDX-License-Identifier: Apache-2.0
"""Probes of programs whose threads share the work: traced, timed, and whole, as root and as any user."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from direct_runs import open_to_anybody
from native_profiles import INTERVAL
from ordinary_user import as_ordinary_user, home_for_anybody
from programs import build
from small_probe import command
from tracing import program_of, streams_of

from checkpoint.binary.elf import needed_libraries
from checkpoint.errors import Diverged, NodeUnfit, ProgramUnsupported
from checkpoint.process.program import Program, Worker
from checkpoint.process.threads import WorkingThreads
from probe.formats.profile import Profile, load_profile, save_profile
from probe.pipeline import trace as trace_stage
from probe.pipeline import validate as validate_stage
from probe.pipeline.options import BuildOptions
from probe.pipeline.reference import seen_in_trace
from probe.pipeline.runs import boundaries
from probe.pipeline.runs.boundaries import candidates
from probe.pipeline.stage import Build
from probe.pipeline.trace import doubts
from probe.pipeline.validate import validate
from probe.prediction.sharing import doubts_of_sharing, sharing_of
from probe.progress import Silent
from probe.tracers.lives import WorkedByChildren
from probe.tracers.native import trace
from probe.tracers.team import OthersMark
from probe.work_folder import WorkFolder, work_folder

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two threads need two processors")


def traced(builds: Path, how: str, rounds: str = "200") -> Profile:
    program = replace(program_of(build("team", builds), rounds, how), threads=2)
    with streams_of() as streams:
        return trace(program, interval=INTERVAL, streams=streams)


@pytest.mark.parametrize("how", ["barrier", "dynamic"])
def test_the_first_thread_marks_the_intervals(how: str, builds: Path, tmp_path: Path) -> None:
    profile = traced(builds, how)
    assert profile.first is not None and profile.helper_threads == 0 and profile.program.threads == 2
    assert 0.3 < profile.first.sum() / profile.counts.sum() < 0.98
    assert ((profile.counts - profile.first).toarray() >= 0).all()
    assert profile.thread_work is not None and profile.thread_work.shape == (profile.intervals, 2)
    instructions = profile.blocks.instructions
    # Blocks whose counters were removed as too hot are among the threads' work, not among the columns.
    assert (profile.thread_work.sum(axis=1) >= profile.counts @ instructions).all()
    assert (profile.thread_work[:, 0] >= profile.first @ instructions).all()
    assert profile.could_mark == (), "it works as much as the other"
    save_profile(replace(profile, could_mark=((1,), (2, 0))), tmp_path / "team.profile")
    again = load_profile(tmp_path / "team.profile")
    assert again.could_mark == ((1,), (2, 0))
    assert again.first is not None and (again.first != profile.first).nnz == 0 and again.program.threads == 2
    assert again.thread_work is not None and (again.thread_work == profile.thread_work).all()
    with streams_of() as streams:
        timed = validate(profile, streams=streams)
    assert timed.outside.commands == () and timed.agreeing > 0
    # The other thread is started in the first interval or the next; nothing else is in the way of a phase.
    assert timed.beside.sum() <= 2
    sharing = sharing_of(profile, timed)
    assert sharing is not None and sharing.threads == 2 and doubts_of_sharing(sharing) == []
    # Who does how much of a loop that is shared dynamically differs from run to run, the more so on a busy machine.
    if how == "barrier":
        assert timed.agreeing == timed.compared and timed.intervals > 0.8 * profile.intervals
        assert sharing.marking == pytest.approx(0.5, abs=0.05) and sharing.alone_share < 0.5
        by_thread, found = profile.thread_work.sum(axis=0), sharing.record()
        # In one interval a busy machine may hold one of them up.
        assert by_thread[1] == pytest.approx(by_thread[0], rel=0.1)
        assert found.imbalance is not None and found.imbalance < 1.0 and found.waiting < 1.0


def test_what_the_first_alone_executes_is_the_better_marker(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = traced(builds, "dynamic")
    assert profile.first is not None
    shared = np.asarray((profile.counts - profile.first).sum(axis=0)).ravel() > 0
    chosen = [shared[one.column] for one in candidates(profile)]
    monkeypatch.setattr(boundaries, "_shared_sites", lambda _: np.zeros(len(shared), dtype=bool))
    without = [shared[one.column] for one in candidates(profile)]
    assert np.mean(chosen) < 0.5 and sum(chosen) < sum(without)


def test_openmp_that_nobody_gave_a_number_is_warned_of(builds: Path, tmp_path: Path) -> None:
    """All runs get one processor, and OpenMP counts processors: no thread would ever be seen."""
    program = build("team", builds)
    assert any(name.startswith("libgomp") for name in needed_libraries(program))
    assert needed_libraries(tmp_path) == [] == needed_libraries(Path("/bin/sh-that-is-not"))
    made = Build(
        program_of(program), cast(BuildOptions, None), cast(WorkFolder, None), None, Silent(), tmp_path / "out", None
    )
    made.profile = replace(traced(builds, "barrier", "60"), program=made.program, first=None)
    (said,) = doubts(made)
    assert "is linked with OpenMP and ran with one thread" in said
    for other in (replace(made.program, threads=2), replace(made.program, env={"OMP_NUM_THREADS": "1"})):
        made.program = other
        assert doubts(made) == []
    made.profile = replace(made.profile, uncounted=("/lib/far.so",))
    assert doubts(made) == [] and "nothing was counted in /lib/far.so: there is no room" in made.notes[-1]


def test_a_thread_may_load_a_library(builds: Path) -> None:
    profile = traced(builds, "load")
    with streams_of() as streams:
        timed = validate(profile, streams=streams)
    assert timed.agreeing == timed.compared > 0


def test_nested_regions_leave_few_places(builds: Path) -> None:
    """OpenMP starts the inner threads anew each time, and no phase lies where a thread starts: few places, or none."""
    profile = traced(builds, "nested")
    with streams_of() as streams:
        try:
            timed = validate(profile, streams=streams)
        except ProgramUnsupported as error:
            # A fast processor starts some in every interval.
            assert "threads were started 401 times, in each of its" in str(error)
            return
    assert timed.agreeing == timed.compared and timed.beside.mean() > 0.5


def test_working_threads_are_told_apart_from_waiting_ones(builds: Path) -> None:
    with streams_of() as streams, pytest.raises(WorkingThreads, match="beside its first one") as raised:
        trace(program_of(build("team", builds), "200", "barrier"), interval=INTERVAL, streams=streams)
    assert raised.value.threads == 2


@pytest.mark.timed
@pytest.mark.alone("tells what two threads on two processors do most of the time")
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("crew", "no place that its first thread reaches"),
        ("crews", "no place that its first thread reaches"),
        ("poll", "its first thread sleeps by the clock in"),
        ("boss", "its first thread sleeps by the clock in"),
    ],
)
def test_others_mark_where_the_first_thread_only_waits(how: str, said: str, builds: Path) -> None:
    program = replace(program_of(build("crews", builds), "300", how), threads=2)
    with streams_of() as streams, pytest.raises(OthersMark, match=said) as raised:
        trace(program, interval=INTERVAL, streams=streams)
    # Of two in each crew one marks, whichever.
    marking = raised.value.program.marking
    assert [line[-1] // 2 for line in marking] == list(range(8 if how == "crews" else 1))
    assert {line[:-1] for line in marking} == {(0,) if how == "boss" else ()}
    assert Program.from_json(json.loads(json.dumps(raised.value.program.to_json()))).marking == marking
    with streams_of() as streams:
        profile = trace(raised.value.program, interval=INTERVAL, streams=streams)
    assert profile.first is not None and profile.program == raised.value.program
    assert 0.4 < profile.first.sum() / profile.counts.sum() < 0.8
    with streams_of() as streams:
        timed = validate(profile, streams=streams)
    # Until the boss's workers start the first marks, and looks after them more or less often.
    assert timed.agreeing >= (0.7 if how == "boss" else 1) * timed.compared > 0
    assert timed.intervals > 0.7 * profile.intervals
    # No phase lies where a thread starts, nor where one ends that marked.
    assert timed.beside.sum() <= 3 * len(profile.program.marking)


def test_too_many_that_mark_are_refused_before_they_are_traced(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many threads work at the same time is known at the end of a run."""

    def trace_program(program: Program, **_: object) -> Profile:
        if program.threads == 1:
            raise WorkingThreads("two")
        assert not program.marking, "it was traced once more"
        raise OthersMark("many more", replace(program, threads=4000, marking=((0,),)))

    monkeypatch.setattr(trace_stage, "trace_program", trace_program)
    with pytest.raises(NodeUnfit, match="4000 threads, but"):
        trace_stage.trace([str(build("crews", builds))], tmp_path / "out")


@pytest.mark.timed
@pytest.mark.alone("two threads share the work on two processors: without the other the first waits")
def test_where_others_cannot_mark_all_stays_as_it_was(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few places are better than none. Without any it is said why these are none."""

    def refuse(made: Build) -> None:
        made.notes.append("of the second trace")
        made.program = replace(made.program, marking=made.profile.could_mark)
        raise ProgramUnsupported("starts a process")

    def diverge(*_: object) -> None:
        raise Diverged("not repeated")

    monkeypatch.setattr(validate_stage, "trace_with_others", refuse)
    program = replace(program_of(build("crews", builds), "400", "look"), threads=2)
    with work_folder(None, {}, resume=False) as folder:
        made = Build(program, BuildOptions(), folder, None, Silent(), tmp_path / "out", None)
        with streams_of() as streams:
            made.profile = profile = trace(program, interval=INTERVAL, streams=streams)
        made.reference = seen_in_trace(profile)
        assert len(profile.could_mark) == 1
        validate_stage.run(made, lambda _: None)
        assert made.timed.unmarked > 0.2 * profile.intervals and made.notes[-1].endswith(
            "left it at these: starts a process"
        )
        assert len(made.notes) == 1 and made.program.marking == () and made.profile is profile
        monkeypatch.setattr(validate_stage, "_time", diverge)
        with pytest.raises(Diverged, match="not repeated") as raised:
            validate_stage.run(made, lambda _: None)
        assert isinstance(raised.value.__cause__, ProgramUnsupported)


class Traced(Exception):
    """The program that was traced in the end."""


def test_threads_of_a_wrapper_are_not_its_workers(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(str(build("short", builds)), 0, ("short",), "/")

    def trace_program(program: Program, **_: object) -> Profile:
        if program.worker is not None:
            raise Traced(program)
        if program.threads == 1:
            raise WorkingThreads("two")
        if not program.marking:
            raise OthersMark("the second", replace(program, marking=((0,),)))
        raise WorkedByChildren("its children")

    monkeypatch.setattr(trace_stage, "trace_program", trace_program)
    monkeypatch.setattr(trace_stage, "find_worker", lambda *_, **__: worker)
    with work_folder(None, {}, resume=False) as folder:
        launcher = program_of(build("team", builds))
        made = Build(launcher, BuildOptions(), folder, None, Silent(), tmp_path / "out", None)
        with pytest.raises(Traced) as caught:
            trace_stage.run(made, lambda _: None)
    assert caught.value.args[0] == replace(launcher, worker=worker)


def test_nobody_that_marks_is_refused(builds: Path) -> None:
    program = replace(program_of(build("crews", builds), "200", "crew"), threads=2, marking=((7,),))
    with (
        streams_of() as streams,
        pytest.raises(ProgramUnsupported, match="nor one of the threads that it starts, where a phase"),
    ):
        trace(program, interval=INTERVAL, streams=streams)


def test_what_the_waiting_first_thread_may_not_do(builds: Path) -> None:
    program = replace(program_of(build("crews", builds), "200", "fork"), threads=2, marking=((0,),))
    with (
        streams_of() as streams,
        pytest.raises(
            ProgramUnsupported, match="starts a process: while another thread marks the places, it may not; let it"
        ),
    ):
        trace(program, interval=INTERVAL, streams=streams)


def test_a_marking_thread_may_end_the_run(builds: Path) -> None:
    program = replace(program_of(build("crews", builds), "200", "kill"), threads=2, marking=((0,),))
    with streams_of() as streams:
        assert trace(program, interval=INTERVAL, streams=streams).exit_status == 3


@pytest.mark.slow(minutes=3)
@pytest.mark.timed
@pytest.mark.alone("two threads share the work on two processors: without the other each phase takes longer")
@pytest.mark.parametrize("how", ["barrier", "static"])
def test_a_whole_probe_anywhere_as_anybody(how: str, builds: Path, tmp_path: Path) -> None:
    program = str(build("team", builds))
    made = command(
        "build", "-q", "-o", "team.probe", "--interval", "20ms", "--max-phases", "4", "--json",
        "--", program, "400", how, cwd=tmp_path,
    )  # fmt: skip
    shown = json.loads(made.stdout)
    assert shown["threads"] == 2 and shown["clock"] == "wall"
    assert shown["phases"] and not any(phase["only_criu"] for phase in shown["phases"])
    said = command("show", "team.probe", cwd=tmp_path).stdout
    assert "threads         2 share the work" in said
    assert "note: the thread that tells places executes " in said
    assert "\nsharing         " in said and " imbalance" in said and " not running" in said
    of_phases = [phase["sharing"] for phase in shown["phases"]]
    assert shown["sharing"]["waiting"] < 1 and all(0 <= one["imbalance"] <= 1 for one in of_phases)
    explained = json.loads(command("explain", "team.probe", "--json", cwd=tmp_path).stdout)
    assert [phase["sharing"] for phase in explained["phases"]] == of_phases
    assert (
        "\nthreads: " in command("explain", "team.probe", "--phase", str(shown["phases"][0]["id"]), cwd=tmp_path).stdout
    )
    command("report", "team.probe", "-o", "team.html", cwd=tmp_path)
    page = (tmp_path / "team.html").read_text()
    assert "Threads by phase" in page and "2 threads share the work" in page
    ran = json.loads(command("run", "team.probe", "--json", cwd=tmp_path).stdout)
    assert all(phase["status"] == "ok" for phase in ran["phases"])
    refused = command("run", "team.probe", "--only-recorded-calls", "--restorer", "direct", cwd=tmp_path, status=12)
    assert "its system calls were not recorded" in refused.stderr
    with home_for_anybody() as home:
        probe = home / "team.probe"
        probe.write_bytes((tmp_path / "team.probe").read_bytes())
        open_to_anybody(home)
        for namespaces in (True, False):
            done = as_ordinary_user("run", probe, "--json", home=home, namespaces=namespaces)
            assert done.returncode == 0, done.stderr
            assert all(phase["status"] == "ok" for phase in json.loads(done.stdout)["phases"])


@pytest.mark.slow(minutes=2)
@pytest.mark.timed
@pytest.mark.alone("where both processors are taken the first thread is held up, and is refused for that")
@pytest.mark.parametrize("elsewhere", [True, False])
def test_work_that_is_handed_out(elsewhere: bool, builds: Path, tmp_path: Path) -> None:
    """Refused where the others are at another piece each time: what is restored is not what was chosen."""
    arguments = ["800", "runs"] if elsewhere else ["800"]
    made = command(
        "build", "-q", "-o", "it.probe", "--interval", "10ms", "--max-phases", "4",
        "--", build("queue", builds), *arguments, cwd=tmp_path, status=7 if elsewhere else 0,
    )  # fmt: skip
    refused = re.search(r"restored regions take \d+% more or less .* and hands out the rest, so that each", made.stderr)
    assert bool(refused) == elsewhere == (not (tmp_path / "it.probe").exists()), made.stderr


@pytest.mark.slow(minutes=3)
@pytest.mark.timed
@pytest.mark.alone("two threads share the work on two processors: without the other each phase takes longer")
@pytest.mark.parametrize("how", ["crew", "poll", "boss", "look"])
def test_a_whole_probe_whose_first_thread_waits(how: str, builds: Path) -> None:
    """Built and run as an ordinary user; the one that polls by a program that is no shell, and starts it. That the
    first looks after the others in another way than a sleep is known when a run does not repeat its places."""
    start = [] if how != "poll" else ["/usr/bin/env", "perl", "-e", "exit system(@ARGV) >> 8"]
    with home_for_anybody() as home:
        program = home / "crews"
        program.write_bytes(build("crews", builds).read_bytes())
        program.chmod(0o755)
        open_to_anybody(home)
        made = as_ordinary_user(
            "build", "-q", "-o", home / "crews.probe", "--interval", "20ms", "--max-phases", "4", "--json",
            "--", *start, program, "400", how, home=home,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        shown = json.loads(made.stdout)
        assert shown["threads"] == 2 and shown["clock"] == "wall"
        assert "the first thread tells too few places: others tell them in its stead" in shown["notes"]
        boundaries = shown["boundaries"]
        assert boundaries["unmarked"] + boundaries["missing"] < 0.3 * boundaries["all"]
        done = as_ordinary_user("run", home / "crews.probe", "--json", home=home)
        assert done.returncode == 0, done.stderr
        assert all(phase["status"] == "ok" for phase in json.loads(done.stdout)["phases"])
