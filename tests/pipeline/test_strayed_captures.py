# SPDX-License-Identifier: Apache-2.0
"""Capture runs that are not where the timing run was: at some phases, which others stand in for, or at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from programs import build as compiled
from programs import symbols
from regions import no_copies
from tracing import SECONDS, compile_small, program_of

from checkpoint.errors import Diverged
from checkpoint.process.program import Streams
from checkpoint.stubs.markers import Marker
from probe.formats.checkpoints import CapturedPhase
from probe.formats.choices import SelectionOptions
from probe.formats.profile import Profile
from probe.formats.selection import Selection
from probe.formats.timing import TimedProfile
from probe.pipeline import capture as capture_module
from probe.pipeline.build import build
from probe.pipeline.capture import Lost, capture
from probe.pipeline.options import BuildOptions
from probe.pipeline.runs.boundaries import Place, RegionPlan, plan_regions
from probe.pipeline.runs.standing import MarkedRun, Unfit

BEHIND, NEVER = 2, 99
"""Regions: the second's start was there once already, as a first; the last is in a library that is never loaded."""

SOURCE = r"""
#include "site.h"
__attribute__((noipa)) static void region_warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void region_start(void) { SITE(site_start); }
__attribute__((noipa)) static void region_end(void) { SITE(site_end); }
int main(void)
{
    for (int i = 0; i < 5; i++) {
        region_warm();
        region_start();
        region_end();
    }
    return 0;
}
"""


def small(folder: Path) -> Path:
    """A program of five regions, whose libraries are loaded."""
    return compile_small(folder, "small", SOURCE, f"-I{Path(__file__).parents[1] / 'programs'}")


def regions(program: Path, numbers: list[int], folder: Path, lost: Lost | None, **more: Any) -> list[CapturedPhase]:
    def place(name: str, number: int, count: int) -> Place:
        image = "/nowhere.so" if number == NEVER else str(program.resolve())
        return Place(Marker(image, symbols(program)[name]), count)

    plans = [
        RegionPlan(
            n, n, 1, place("site_warm", n, n), place("site_start", n, 1 if n == BEHIND else n), place("site_end", n, n)
        )
        for n in numbers
    ]
    return capture(
        cast(Any, SimpleNamespace(program=program_of(program), written=())), plans, criu=None, folder=folder,
        streams=Streams(folder / "stdout", folder / "stderr"), expected_seconds=SECONDS, on_dump=no_copies, lost=lost,
        **more,
    )  # fmt: skip


def test_phases_at_which_the_run_strays_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on, and libraries that are loaded later are seen."""
    program, lost, armed = small(tmp_path), Lost(), []
    go_on = MarkedRun.go_on

    def going(run: MarkedRun, criu: None) -> None:
        armed.append(run.watch.armed)
        go_on(run, criu)

    monkeypatch.setattr(MarkedRun, "go_on", going)
    assert [one.phase for one in regions(program, [1, BEHIND, 3, NEVER], tmp_path, lost)] == [1, 3]
    assert armed == [True] * 3
    assert set(lost.strayed) == {BEHIND, NEVER} and not lost.unfit
    assert "is not ahead but 0 behind" in str(lost.strayed[BEHIND])
    assert "did not reach the markers of phases [99]" in str(lost.strayed[NEVER])
    assert lost.phases == {BEHIND, NEVER} and lost.refusal("small", lost.phases) is lost.strayed[BEHIND]
    assert lost.refusal("small", {NEVER}) is lost.strayed[NEVER]
    lost.add(Lost(unfit={BEHIND: ["a socket"]}))
    assert "a probe cannot hold a socket (phase 2)" in str(lost.refusal("small", lost.phases))
    assert lost.why(BEHIND).startswith("a socket; another count") and not lost.why(1)


def test_nothing_is_kept_of_a_phase_that_cannot_be_restored(tmp_path: Path) -> None:
    def third_has_no_end(phase: CapturedPhase) -> CapturedPhase:
        if phase.phase == 3:
            raise Unfit(["it has no end"])
        return phase

    lost = Lost()
    regions(small(tmp_path), [1, 3], tmp_path, lost, on_captured=third_has_no_end)
    assert set(lost.unfit) == {3} and [path.name for path in tmp_path.glob("*-[0-9]*")] == ["phase-1"]


@pytest.mark.parametrize("region", [BEHIND, NEVER])
def test_without_others_it_is_refused(region: int, tmp_path: Path) -> None:
    with pytest.raises(Diverged):
        regions(small(tmp_path), [1, region], tmp_path, None)


def straying(monkeypatch: pytest.MonkeyPatch, strays: Callable[[RegionPlan, int], bool]) -> list[int]:
    """Builds whose capture run is elsewhere at some phases; numbers of the phases where it was to be captured.
    `strays`: of a phase, tried so often before."""
    dump, tried = MarkedRun.dump, list[int]()

    def dumped(run: MarkedRun, plan: RegionPlan, *more: Any) -> CapturedPhase:
        tried.append(plan.phase)
        if strays(plan, tried.count(plan.phase) - 1):
            raise Diverged("a marker is not ahead")
        return dump(run, plan, *more)

    monkeypatch.setattr(MarkedRun, "dump", dumped)
    return tried


def options(**more: Any) -> BuildOptions:
    return BuildOptions(
        interval=0.01, capture="direct", runs=1, repeats=1, selection=SelectionOptions(max_phases=3, **more)
    )


def largest_phase(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where the number of the phase with most time will be before anything is captured: it has other intervals."""
    largest = list[int]()

    def planned(profile: Profile, timed: TimedProfile, selection: Selection, warmup: int) -> list[RegionPlan]:
        largest[:] = largest or [max(selection.phases, key=lambda phase: phase.time_share).id]
        return plan_regions(profile, timed, selection, warmup)

    monkeypatch.setattr(capture_module, "plan_regions", planned)
    return largest


@pytest.mark.slow
def test_another_interval_stands_for_such_a_phase(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strayed = largest_phase(monkeypatch)
    tried = straying(monkeypatch, lambda plan, before: plan.phase == strayed[0] and not before)
    built = build([str(compiled("nbody", builds)), "60"], tmp_path / "x.probe", options=options())
    assert len(built.manifest.phases) == len(set(tried)) and tried.count(strayed[0]) == 2
    said = f"phase {strayed[0]}: interval "
    (note,) = [note for note in built.manifest.notes if note.startswith(said)]
    assert note.endswith("the program held another count of executions than the timing run had shown")


@pytest.mark.slow
def test_a_run_that_strays_everywhere_is_refused_at_once(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = straying(monkeypatch, lambda *_: True)
    with pytest.raises(Diverged, match="a marker is not ahead"):
        build([str(compiled("nbody", builds)), "60"], tmp_path / "x.probe", options=options())
    assert len(tried) == len(set(tried)) and not (tmp_path / "x.probe").exists()


@pytest.mark.slow
def test_a_phase_that_strays_every_time_refuses_where_it_is_large(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = largest_phase(monkeypatch)
    straying(monkeypatch, lambda plan, _: plan.phase == largest[0])
    with pytest.raises(Diverged, match="a marker is not ahead"):
        build([str(compiled("nbody", builds)), "60"], tmp_path / "x.probe", options=options())
