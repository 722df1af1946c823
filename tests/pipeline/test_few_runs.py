# SPDX-License-Identifier: Apache-2.0
"""Few full runs of long programs: how many, what stands in for those not made, and what is said of it."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import build as compiled

from checkpoint.process.program import resolve_program
from probe.formats.choices import AUTO, SelectionOptions
from probe.formats.manifest import FEW_RUNS_VERSION, MANIFEST_VERSION, Manifest
from probe.formats.phase_record import CRIU, DIRECT
from probe.formats.profile import load_profile
from probe.formats.timing import load_timing
from probe.inspection.description import show
from probe.pipeline import capture, reference, select, self_check
from probe.pipeline.build import BuiltProbe, build, full_runs
from probe.pipeline.options import BuildOptions
from probe.pipeline.reference import measure_reference
from probe.pipeline.runs import plan
from probe.pipeline.runs.plan import FullRuns, full_runs_for, length
from probe.prediction import limits
from probe.prediction.limits import Limit
from probe.prediction.target_error import spend
from probe.progress import Lines
from probe.selection.simpoint import Point

pytestmark = pytest.mark.slow(minutes=2)

Make = Callable[..., tuple[BuiltProbe, int, str]]

ROUNDS = "40"


@pytest.fixture
def make(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Build of a program that is taken to be long, or `middle`: what was built, runs made, and lines said."""

    def made(
        runs: int | None = None,
        *,
        odd: int = -1,
        length: str = "long",
        phases: int = 3,
        best_effort: bool | None = None,
        worse: float = 1.0,
        holding: str = "",
        capture: str = DIRECT,
        **more: object,
    ) -> tuple[BuiltProbe, int, str]:
        monkeypatch.setattr(plan, "FEW_SECONDS", 1e-3)
        # Of a run this short the machine's other load is a large part.
        monkeypatch.setattr(reference, "CPU_BOUND_BLOCKED", 1.0)
        harmless = Limit(1.0, math.inf)
        monkeypatch.setattr(
            limits,
            "LIMITS",
            replace(
                limits.LIMITS, asleep=harmless, waited=harmless, restore=harmless, unlike=harmless, single=harmless,
                held_out=harmless,
            ),
        )  # fmt: skip
        monkeypatch.setattr(select, "HELD_OUT_WORSE", worse)
        monkeypatch.setattr(select, "UNLIKE_WORSE", worse)
        monkeypatch.setattr(select, "MERGED_WORSE", worse)
        monkeypatch.setattr(plan, "LONG_SECONDS", 1e-3 if length == "long" else 1e6)
        tally, said = tmp_path / "tally", io.StringIO()
        before = tally.stat().st_size if tally.exists() else 0
        options = BuildOptions(
            interval=0.01, capture=capture, runs=runs, repeats=1, selection=SelectionOptions(max_phases=phases),
            target_error=None if best_effort is None else 1e-6, best_effort=bool(best_effort),
        )  # fmt: skip
        command = [str(compiled("tally", builds)), ROUNDS, str(tally), str(odd)]
        if holding:
            command, before = [str(compiled("holder", builds)), "700", holding], 0
            tally.touch()
        built = build(
            command, tmp_path / "x.probe", options=options,
            display=Lines(said), **more,  # type: ignore[arg-type]
        )  # fmt: skip
        return built, tally.stat().st_size - before, said.getvalue()

    return made


def printed(built: BuiltProbe) -> list[str]:
    """What the build says of the program's output."""
    return [said for said in (*built.manifest.warnings, *built.manifest.notes) if "stdout" in said]


@pytest.mark.parametrize(
    ("seconds", "wanted", "expected"),
    [
        (3.0, None, FullRuns(2, 1, 2, 3, few=False)),
        (19.9, None, FullRuns(2, 1, 0, 3, few=False)),
        (19.9, 1, FullRuns(2, 1, 0, 1, few=False)),
        (30.0, None, FullRuns(0, 0, 0, 2, few=True, at_once=True)),
        (1200.0, None, FullRuns(0, 0, 0, 1, few=True, at_once=True)),
        (1200.0, 0, FullRuns(0, 0, 0, 0, few=True, at_once=True)),
        (1200.0, 5, FullRuns(0, 0, 0, 5, few=True, at_once=True)),
    ],
)
def test_runs_by_length(seconds: float, wanted: int | None, expected: FullRuns) -> None:
    assert full_runs_for(seconds, wanted) == expected
    # The timing run does not show how processes and threads wait: one run with nothing of ours inside does.
    early = expected.early or 1
    assert full_runs_for(seconds, wanted, by_itself=False) == replace(expected, early=early, at_once=False)
    assert full_runs_for(seconds, wanted, apart=True) == replace(expected, at_once=False)


@pytest.mark.parametrize(
    ("options", "apart"),
    [
        (BuildOptions(capture=DIRECT), False),
        (BuildOptions(capture=CRIU), True),
        (BuildOptions(capture=DIRECT, warmup=AUTO), True),
        (BuildOptions(capture=DIRECT, points=(Point(3, 1.0),)), True),
    ],
)
def test_checkpoints_that_need_a_run_of_their_own(options: BuildOptions, apart: bool) -> None:
    assert options.captures_apart == apart


def test_other_load_does_not_make_a_program_long() -> None:
    assert length(300.0, 10.0) == length(10.0, 300.0) == 10.0


@pytest.mark.parametrize("worth", [0.0, 3600.0])
def test_the_end_of_long_runs_is_said(worth: float, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.pipeline.build._WORTH_AN_END", worth)
    *_, said = make()
    assert bool(re.search(r"and what the phases take; not over before \d\d:\d\d\n", said)) == (worth == 0.0), said


def test_long_programs_are_run_three_times(make: Make, tmp_path: Path) -> None:
    built, runs, said = make(work=tmp_path / "work")
    found = built.manifest.reference
    assert runs == 3 and sum(full_runs(BuildOptions(), full_runs_for(1e4)).values()) == runs
    assert "2 more runs of the program" in said and "3 more runs of the program" not in said
    # Nothing is left of checkpoints that stand for no phase.
    kept = {path.name.split("-")[1] for path in (tmp_path / "work").glob("phase-*")}
    assert kept == {str(phase.id) for phase in built.manifest.phases}
    assert (found.early_wall, found.plain_environment, found.few) == ((), (), True)
    # The timing run, less what its stamps cost, and the plain one.
    assert len(found.runs) == 2 and len(found.voted) == 2
    assert built.manifest.to_json()["manifest_version"] == FEW_RUNS_VERSION
    assert Manifest.from_json(json.loads(json.dumps(built.manifest.to_json()))) == built.manifest
    assert show(built.path)["et_plain_environment_seconds"] is None
    assert printed(built) == []


def test_without_a_plain_run(make: Make) -> None:
    built, runs, _ = make(0)
    found = built.manifest.reference
    assert runs == 2 and len(found.runs) == 1 and found.voted == ()
    assert any("ET_ref is the time of the timing run" in said for said in built.manifest.warnings)


def test_runs_asked_for_are_made(make: Make) -> None:
    built, runs, _ = make(3)
    assert runs == 5 and len(built.manifest.reference.runs) == 3
    assert not any("ET_ref" in said for said in built.manifest.warnings)


@pytest.mark.parametrize(("wanted", "between"), [(None, 2), (0, 1), (1, 1)])
def test_a_timing_run_with_dear_stamps_does_not_count(
    wanted: int | None, between: int, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "TRUSTED_STAMPS", -1.0)
    built, runs, _ = make(wanted)
    assert runs == 2 + between and len(built.manifest.reference.runs) == between
    noted = [said for said in built.manifest.notes if said.startswith(f"ET_ref comes from {between} plain runs alone")]
    assert len(noted) == 1


def test_a_program_of_half_a_minute(make: Make) -> None:
    built, runs, _ = make(length="middle")
    assert runs == 4 and len(built.manifest.reference.runs) == 3


def test_short_programs_are_run_as_ever(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "full_runs_for", lambda *_, **__: FullRuns(2, 1, 0, 1, few=False))
    built, runs, _ = make()
    assert runs == 7 and not built.manifest.reference.few
    assert built.manifest.to_json()["manifest_version"] == MANIFEST_VERSION


@pytest.mark.parametrize(
    ("odd", "runs", "which"),
    [(1, None, "the traced run"), (2, None, "the timing run"), (3, None, "the plain run"), (1, 2, "the traced run")],
)
def test_the_odd_one_out_is_named(odd: int, runs: int | None, which: str, make: Make) -> None:
    built, _, _ = make(runs, odd=odd)
    (said,) = printed(built)
    assert said.startswith(which) and "stdout, line 1, differs" in said and said in built.manifest.warnings


def test_two_runs_alone_cannot_tell(make: Make) -> None:
    built, _, _ = make(0, odd=2)
    (said,) = printed(built)
    assert "the traced run" in said


def test_a_resumed_build_knows_what_the_timing_run_said(make: Make, tmp_path: Path) -> None:
    work = tmp_path / "work"
    first, _, _ = make(work=work)
    again, runs, _ = make(work=work, resume=True, phases=2)
    assert runs == 2, "capture, and the plain run"
    for name in ("blocked_share", "waited_share", "clock"):
        assert getattr(again.manifest.reference, name) == getattr(first.manifest.reference, name)
    # The timing run is the same one, joined and less its stamps.
    assert again.manifest.reference.wall[0] == pytest.approx(first.manifest.reference.wall[0], rel=1e-6)


@pytest.mark.parametrize(("few_from", "early", "own"), [(1e-3, 1, 0), (1e6, 2, 1)])
def test_the_first_plain_run_tells_how_long_an_exact_tracers_program_is(
    few_from: float, early: int, own: int, builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "FEW_SECONDS", few_from)
    program = resolve_program([str(compiled("tally", builds)), "1", str(tmp_path / "tally")])
    found = measure_reference(program, plan=None, folder=tmp_path)
    assert (tmp_path / "tally").stat().st_size == early + own
    assert (len(found.early_wall), len(found.plain_environment)) == (early, 2 * own)


@pytest.mark.parametrize(("best_effort", "may"), [(True, False), (False, True)])
def test_more_runs_are_made_only_where_a_width_is_asked_for(
    best_effort: bool, may: bool, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def spending(measured: Any, target: float, _: float, **more: Any) -> Any:
        seen.append(more["full_runs"] is not None)
        return spend(measured, target, 0.0, **more)

    monkeypatch.setattr(self_check, "spend", spending)
    make(best_effort=best_effort)
    assert seen == [may]


def test_stamps_are_taken_off_the_timing_run(make: Make, tmp_path: Path) -> None:
    work = tmp_path / "work"
    make(work=work)
    timed, profile = load_timing(work / "timing.npz"), load_profile(work / "profile.npz")
    plain = timed.unstamped()
    assert len(timed.stamping) == timed.intervals and profile.intervals >= timed.intervals
    assert (timed.stamping >= 0).all() and timed.stamping.sum() > 0
    off = float(np.minimum(timed.stamping, timed.seconds / 2).sum())
    assert plain.wall == pytest.approx(timed.wall_seconds + timed.loading - off)


def test_a_sleeper_is_timed_by_its_wall_clock(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "FEW_SECONDS", 1e-3)
    options = BuildOptions(interval=0.01, capture="direct", repeats=2, selection=SelectionOptions(max_phases=3))
    built = build([str(compiled("sleeper", builds)), "200", "2"], tmp_path / "x.probe", options=options)
    assert built.manifest.reference.clock == "wall"
    assert any("the program sleeps for" in said for said in built.manifest.warnings)


def test_worse_phases_cost_a_run(make: Make, tmp_path: Path) -> None:
    built, runs, said = make(work=tmp_path / "work", worse=-2.0)
    assert runs == 4 and "no checkpoints of the timing run stand for all phases" in said
    assert len(printed(built)) == 0
    kept = {path.name.split("-")[1] for path in (tmp_path / "work").glob("phase-*")}
    assert kept == {str(phase.id) for phase in built.manifest.phases}


def interrupt(stage: Any, make: Make, work: Path) -> None:
    """A build that is interrupted where this stage begins."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make(work=work)


def test_a_build_goes_on_with_the_checkpoints_of_its_timing_run(make: Make, tmp_path: Path) -> None:
    work = tmp_path / "work"
    interrupt(select, make, work)
    assert list(work.glob("phase-1???-reduced"))
    built, runs, _ = make(work=work, resume=True)
    assert runs == 1, "the plain run"
    assert len(built.manifest.phases) > 0


def test_a_build_that_lost_them_takes_others(make: Make, tmp_path: Path) -> None:
    work = tmp_path / "work"
    interrupt(capture, make, work)
    for path in work.glob("phase-1???-reduced"):
        shutil.rmtree(path)
    _, runs, _ = make(work=work, resume=True)
    assert runs == 2, "capture, and the plain run"


def test_what_is_held_at_some_phases_alone_costs_those(make: Make) -> None:
    """A socket, closed halfway: intervals behind that stand for those before it."""
    built, _, said = make(holding="early")
    assert built.manifest.phases and "are taken in a run of their own" not in said
    assert all(len(phase.direct.cpu) for phase in built.manifest.phases)


def test_criu_takes_over_from_the_timing_run(make: Make) -> None:
    built, _, said = make(holding="posix", capture="auto")
    assert "no checkpoints of the timing run stand for all phases" in said
    assert any(note.startswith("checkpoints are captured by CRIU") for note in built.manifest.notes)
