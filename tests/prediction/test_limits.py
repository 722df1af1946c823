# SPDX-License-Identifier: Apache-2.0
"""Probes and predictions that would mislead: warned of with the reason, and refused above a limit."""

from __future__ import annotations

import math
import os
import re
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from documentation import rows, section
from made_probe import made_manifest
from rivals import rivals
from small_probe import command, small_probe

from checkpoint.errors import Diverged, ProgramTooShort, Unpredictable
from checkpoint.restore.criu_restore import RegionTime
from probe import run
from probe.candidates.result import RunResult, predict_from
from probe.formats.choices import SelectionOptions
from probe.formats.phase_record import CRIU, DIRECT, InRun, Times
from probe.formats.reference import Reference
from probe.node.measuring import DEFAULT_REPEATS, MeasuredPhase
from probe.prediction import limits as doubts
from probe.prediction.inputs import scatter_of
from probe.prediction.limits import (
    LIMITS,
    Limit,
    doubts_of_draws,
    doubts_of_outside,
    doubts_of_phases,
    doubts_of_reference,
    doubts_of_run,
    doubts_of_selection,
    doubts_of_stubs,
    unlike_share,
)
from probe.prediction.sharing import Sharing
from probe.selection.select import select_phases

from programs import build  # isort: skip

REFERENCE = Reference((2.0,), (2.0,), 0.0, (2.0, 2.0), "cpu", (2.0,), (2.0,))
N = 60


def selection(labels: list[int], **more: Any) -> Any:
    """Phases by their labels; the first member of each represents it, and all intervals take equally long."""
    phases = []
    for number in sorted(set(labels)):
        members = np.flatnonzero(np.array(labels) == number)
        phases.append(
            SimpleNamespace(
                id=number, members=members, representative=int(members[0]), time_share=len(members) / len(labels)
            )
        )
    fixed = {"phases": phases, "held_out_error": None, "k_bic": 2, "options": SelectionOptions()}
    return SimpleNamespace(**{**fixed, **more})


def vectors(*parts: tuple[int, list[float]]) -> sp.csr_array:
    """(how many intervals, their vector), one after the other."""
    return sp.csr_array(np.array([row for count, row in parts for _ in range(count)]))


ALIKE = vectors((N, [1.0, 2.0, 3.0]))
TIMES = np.ones(N)


# -- the full runs


def test_programs_that_sleep() -> None:
    assert doubts_of_reference(replace(REFERENCE, blocked_share=0.04)) == []
    (said,) = doubts_of_reference(replace(REFERENCE, blocked_share=0.3))
    assert "sleeps for 30% of its run" in said
    with pytest.raises(Unpredictable, match="sleeps for 51% of its run"):
        doubts_of_reference(replace(REFERENCE, blocked_share=0.51))


def test_a_busy_reference_node() -> None:
    assert doubts_of_reference(replace(REFERENCE, waited_share=0.19)) == []
    (said,) = doubts_of_reference(replace(REFERENCE, waited_share=0.5))
    assert "something else had the processor for 50%" in said
    with pytest.raises(Unpredictable, match="build on an idle node"):
        doubts_of_reference(replace(REFERENCE, waited_share=0.96))


def test_a_program_that_takes_longer_with_stubs() -> None:
    plain = replace(REFERENCE, early_wall=(2.0, 2.0), early_cpu=(2.0, 2.0))
    assert doubts_of_stubs(plain, 2.5) == []
    (said,) = doubts_of_stubs(plain, 3.0)
    assert "takes 1.5 times as long where our stubs have some of its addresses (3 s for 2 s)" in said
    with pytest.raises(Diverged, match=r"takes 2\.1 times"):
        doubts_of_stubs(plain, 4.2)
    # Not where equal runs differ by as much.
    rough = (1.6, 2.4) * 2
    assert len(doubts_of_stubs(replace(plain, early_wall=rough, early_cpu=rough), 4.2)) == 1


def test_a_program_whose_time_depends_on_what_it_draws() -> None:
    plain = replace(REFERENCE, early_wall=(2.0, 2.1), early_cpu=(2.0, 2.1))
    assert doubts_of_draws(plain, 2.5) == doubts_of_draws(plain, 1.7) == []
    for same, words in ((1.5, "takes 1.5 to 2.1 s, by the random numbers"), (2.9, "takes 2 to 2.9 s")):
        (said,) = doubts_of_draws(plain, same)
        assert words in said
    for same in (1.2, 3.2):
        with pytest.raises(Diverged, match="fix its seed"):
            doubts_of_draws(plain, same)
    # Plain runs tell, too, where those of the build happen to take the usual time.
    apart = replace(REFERENCE, early_wall=(1.5, 2.5), early_cpu=(1.5, 2.5))
    with pytest.raises(Diverged, match=r"takes 1\.5 to 2\.5 s"):
        doubts_of_draws(apart, 2.0)


def test_reference_runs_tell_how_long_they_waited() -> None:
    assert Reference.from_json(replace(REFERENCE, waited_share=0.25).to_json()).waited_share == 0.25
    older = {k: v for k, v in REFERENCE.to_json().items() if k != "waited_share"}
    assert Reference.from_json(older).waited_share == 0.0


# -- phases that stand for what is not like them


def test_time_in_other_processes() -> None:
    assert doubts_of_outside(0.05, ["a"]) == []
    assert "43% of the run's time is that of other processes (a, b)" in doubts_of_outside(0.43, ["a", "b", "a"])[0]
    with pytest.raises(Unpredictable):
        doubts_of_outside(0.95, ["a"])


def test_intervals_unlike_their_representative() -> None:
    mixed = vectors((40, [1.0, 1.0, 0.0]), (20, [0.0, 1.0, 9.0]))
    assert unlike_share(selection([0] * N), mixed, TIMES) == pytest.approx(1 / 3)
    assert unlike_share(selection([0] * 40 + [1] * 20), mixed, TIMES) == 0.0
    # Time counts, not intervals; and work in another amount is still the same work.
    assert unlike_share(selection([0] * N), mixed, np.repeat([1.0, 8.0], [40, 20])) == pytest.approx(0.8)
    assert unlike_share(selection([0] * N), vectors((40, [1.0, 1.0, 0.0]), (20, [7.0, 7.0, 0.0])), TIMES) == 0.0
    # Of what was not counted nothing is known.
    assert unlike_share(selection([0] * N), vectors((40, [1.0, 0.0, 0.0]), (20, [0.0] * 3)), TIMES) == 0.0
    assert unlike_share(selection([0] * N), vectors((40, [0.0] * 3), (20, [1.0, 0.0, 0.0])), TIMES) == 0.0


def test_runs_that_repeat_themselves_too_little() -> None:
    def judged(count: int, **more: Any) -> list[str]:
        mixed = vectors((N - count, [1.0, 0.0, 0.0]), (count, [0.0, 1.0, 0.0]))
        return doubts_of_selection(selection([0] * N, **more), mixed, TIMES, REFERENCE)

    assert judged(5) == []
    (said,) = judged(20)
    assert "33% of the time execute mostly other code" in said
    with pytest.raises(Unpredictable, match="repeats itself too little"):
        judged(31)
    # What is chosen at random is chosen so on purpose.
    assert judged(31, options=SelectionOptions(method="random")) == []


def test_phases_that_occur_once() -> None:
    (said,) = doubts_of_selection(selection([0] * 40 + list(range(1, 21))), ALIKE, TIMES, REFERENCE)
    assert "33% of the time occur once" in said
    with pytest.raises(Unpredictable, match="97% of the time occur once"):
        doubts_of_selection(selection([*range(58), 58, 58]), ALIKE, TIMES, REFERENCE)


def test_equal_code_that_takes_different_times() -> None:
    assert doubts_of_selection(selection([0] * N, held_out_error=0.09), ALIKE, TIMES, REFERENCE) == []
    (said,) = doubts_of_selection(selection([0] * N, held_out_error=0.25), ALIKE, TIMES, REFERENCE)
    assert "by 25%: equal code takes different times" in said
    with pytest.raises(Unpredictable, match="by 60%"):
        doubts_of_selection(selection([0] * N, held_out_error=0.6), ALIKE, TIMES, REFERENCE)
    # All of a program of one phase is alike, however its intervals differ in time.
    (said,) = doubts_of_selection(selection([0] * N, held_out_error=0.6, k_bic=1), ALIKE, TIMES, REFERENCE)
    assert "by 60%" in said


def test_times_with_other_load_in_them_refuse_nothing() -> None:
    by_wall = replace(REFERENCE, clock="wall")
    blurred = replace(by_wall, waited_share=0.3)
    uneven = selection([0] * N, held_out_error=0.6)
    slow = [phase(restore_error=lambda _: 0.6)], [measured(0.01)]
    with pytest.raises(Unpredictable):
        doubts_of_selection(uneven, ALIKE, TIMES, by_wall)
    with pytest.raises(Unpredictable):
        doubts_of_phases(slow[0], by_wall, slow[1])
    assert len(doubts_of_selection(uneven, ALIKE, TIMES, blurred)) == 1
    assert len(doubts_of_phases(slow[0], blurred, slow[1])) == 1
    assert len(doubts_of_selection(selection([*range(58), 58, 58]), ALIKE, TIMES, blurred)) == 1


def test_times_that_depend_on_data_are_found_by_the_selection() -> None:
    """One vector, and times between which 1,000 lies: no choice of a few intervals rebuilds those held out."""
    rng = np.random.default_rng(5)
    times = 0.001 * 1000.0 ** rng.random(N) ** 3
    eligible = np.ones(N, dtype=bool)
    found = select_phases(ALIKE, np.full(N, 6.0), times, eligible, SelectionOptions(max_phases=2))
    assert any("by its data" in said for said in _said(found, times))


def _said(found: Any, times: Any) -> list[str]:
    try:
        return doubts_of_selection(found, ALIKE, times, REFERENCE)
    except Unpredictable as error:
        return [str(error)]


def test_of_few_intervals_nothing_is_refused() -> None:
    few = LIMITS.judged - 1
    mixed = vectors((1, [1.0, 0.0, 0.0]), (few - 1, [0.0, 1.0, 0.0]))
    said = doubts_of_selection(selection([0] * few, held_out_error=0.9), mixed, np.ones(few), REFERENCE)
    assert len(said) == 2
    alone = doubts_of_selection(selection(list(range(few))), vectors((few, [1.0, 0.0, 0.0])), np.ones(few), REFERENCE)
    assert len(alone) == 1


# -- restored phases


def phase(**more: Any) -> Any:
    fixed = {"id": 0, "in_run": InRun(0.0, 0.1, 0.1), "time_share": 1.0, "restore_error": lambda _: 0.0}
    return SimpleNamespace(**{**fixed, **more})


def measured(wall: float, restorer: str = DIRECT, number: int = 0, **more: float) -> MeasuredPhase:
    time = RegionTime(wall, more.get("cpu", wall), more.get("warm", 0.0), more.get("restore", 0.0))
    return MeasuredPhase(number, (time,) * 3, restorer=restorer)


def test_regions_that_take_another_time_restored() -> None:
    quick = [measured(0.01)]
    assert doubts_of_phases([phase(restore_error=lambda _: -0.05)], REFERENCE, quick) == []
    (said,) = doubts_of_phases([phase(restore_error=lambda _: -0.2)], REFERENCE, quick)
    assert "take 20% more or less" in said
    with pytest.raises(Unpredictable, match="take 60% more or less"):
        doubts_of_phases([phase(restore_error=lambda _: 0.6)], REFERENCE, quick)
    # Where equal runs of the program differ by a fifth regions may, too; not by anything.
    rough = replace(REFERENCE, early_wall=(1.6, 2.4) * 2, early_cpu=(1.6, 2.4) * 2)
    scatter = scatter_of(rough.all_runs)
    assert scatter is not None and scatter.variance**0.5 == pytest.approx(0.2)
    assert scatter_of(REFERENCE.all_runs) is None
    assert len(doubts_of_phases([phase(restore_error=lambda _: 0.6)], rough, quick)) == 1
    with pytest.raises(Unpredictable, match=r"take 100% more or less"):
        doubts_of_phases([phase(restore_error=lambda _: 1.0)], rough, quick)
    assert doubts_of_phases([phase(restore_error=lambda _: None)], REFERENCE, quick) == []


def test_regions_of_threads_that_are_handed_their_work() -> None:
    """Refused by another name, and beside other load, too; but only where the regions do differ."""
    quick, none = [measured(0.01)], np.zeros(1)
    blurred = replace(REFERENCE, clock="wall", waited_share=0.3)
    pool, team = (Sharing(2, own, none > 0, none, none, none, None, none) for own in (0.01, 0.4))
    for reference in (REFERENCE, blurred):
        with pytest.raises(Diverged, match=r"take 51% more or less .* does 1.00% of the work and hands out the rest"):
            doubts_of_phases([phase(restore_error=lambda _: -0.51)], reference, quick, pool)
    assert len(doubts_of_phases([phase(restore_error=lambda _: -0.51)], blurred, quick, team)) == 1
    assert len(doubts_of_phases([phase(restore_error=lambda _: 0.2)], blurred, quick, pool)) == 1
    assert doubts_of_phases([phase()], blurred, quick, pool) == []


def test_regions_that_mostly_wait() -> None:
    waiting, quick = phase(id=4, in_run=InRun(0.0, 0.1, 0.04)), [measured(0.01)]
    by_wall = replace(REFERENCE, clock="wall")
    (said,) = doubts_of_phases([waiting, phase()], by_wall, quick)
    assert "phases [4] mostly wait" in said
    assert doubts_of_phases([phase(in_run=InRun(0.0, 0.1, 0.06))], by_wall, quick) == []
    # It is not known what they waited for.
    assert doubts_of_phases([waiting], replace(by_wall, waited_share=0.21), quick) == []
    assert doubts_of_phases([waiting], REFERENCE, quick) == []


def test_programs_shorter_than_their_probe() -> None:
    slow = measured(0.1, warm=0.1, restore=0.3)
    assert doubts.probing_seconds([slow]) == pytest.approx(DEFAULT_REPEATS * 0.5)
    by_both = [measured(0.1), measured(9.0, CRIU)]
    assert doubts.probing_seconds(by_both) == doubts.probing_seconds(by_both[::-1]) == pytest.approx(0.5)
    (said,) = doubts_of_phases([phase()], REFERENCE, [slow])
    assert "takes 2.5 s, the program itself 2 s" in said
    assert doubts_of_phases([phase()], REFERENCE, [measured(0.1)]) == []
    with pytest.raises(ProgramTooShort, match="run the program"):
        doubts_of_phases([phase()], REFERENCE, [measured(0.5, number=n) for n in range(41)])


def test_that_the_program_is_shorter_is_said_once() -> None:
    manifest, _ = made_manifest(3, 30)
    slow = [MeasuredPhase(p.id, (RegionTime(t, t, 0.0, 9.0),) * 3) for p in manifest.phases for t in (p.in_run.wall,)]
    (built,) = doubts_of_phases([phase()], REFERENCE, [measured(0.1, warm=0.1, restore=0.3)])
    manifest = replace(manifest, warnings=(built, "another"))
    found = predict_from(manifest, slow)
    said = RunResult("x", manifest, {}, tuple(slow), found).warnings
    assert sum("run the program" in one for one in said) == 1 and "another" in said
    assert any(one.startswith("timing the phases took") for one in said)
    # A node on which it is worth its while says what the build said.
    quick = replace(found, warnings=())
    assert RunResult("x", manifest, {}, tuple(slow), quick).warnings == (built, "another")


@pytest.mark.parametrize(
    ("granted", "times"),
    [(0.5, "2"), (0.3, "3.333"), (0.001, "1000"), (1, ""), (1.5, ""), (0, ""), (-1, ""), (5e-324, ""), (True, ""),
     ("0.5", ""), (math.nan, ""), (math.inf, ""), (None, "")],
)  # fmt: skip
@pytest.mark.parametrize("clock", ["cpu", "wall"])
def test_a_node_that_grants_a_part_of_a_processor(granted: Any, times: str, clock: str) -> None:
    """Its own word for it is not trusted either."""
    manifest, _ = made_manifest(3, 30)
    manifest = replace(manifest, reference=replace(manifest.reference, clock=clock))
    usual = [MeasuredPhase(p.id, (RegionTime(t, t, 0.0, 0.0),) * 3) for p in manifest.phases for t in (p.in_run.wall,)]
    result = RunResult("x", manifest, {"granted": granted}, tuple(usual), predict_from(manifest, usual))
    said = [warning for warning in result.warnings if "control group" in warning]
    assert len(said) == bool(times)
    if times:
        assert f"the time of {granted:g} processors" in said[0]
        assert (f"up to {times} times as long there" if clock == "cpu" else "waited for their share") in said[0]


# -- a run of a probe


def test_nodes_with_hardly_any_processor_to_spare() -> None:
    manifest: Any = SimpleNamespace(
        phases=[phase(id=0, time_share=0.6), phase(id=1, time_share=0.4)], reference=REFERENCE
    )

    def judged(first: float, second: float) -> list[str]:
        return doubts_of_run(manifest, [measured(first, cpu=1.0), measured(second, number=1, cpu=1.0)], 1e6)

    assert judged(1.0, 30.0) == judged(19.0, 19.0) == []
    with pytest.raises(Unpredictable, match="phases with 60% of the time took over 20 times"):
        judged(21.0, 1.0)
    # Programs that sleep take longer than their CPU time everywhere.
    manifest.reference = replace(REFERENCE, clock="wall")
    for one in manifest.phases:
        one.restored = lambda _: Times((30.0,) * 3, (1.0,) * 3)
    assert judged(31.0, 31.0) == []
    with pytest.raises(Unpredictable):
        judged(700.0, 700.0)


def test_a_real_run_on_a_busy_node(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = small_probe(builds)
    monkeypatch.setattr(doubts, "LIMITS", replace(LIMITS, stretch=Limit(1.05, 1.4), cost=Limit(1e-6, 50.0)))
    with (
        rivals(max(os.sched_getaffinity(0)), 3),
        pytest.raises(Unpredictable, match="run the probe when this node is idle"),
    ):
        run(small.path, repeats=2)
    monkeypatch.setattr(doubts, "LIMITS", replace(LIMITS, stretch=Limit(1.05, 1e6), cost=Limit(1e-6, 50.0)))
    found = run(small.path, repeats=1)
    assert any(re.search(r"timing the phases took .* would take .*: run the program", said) for said in found.warnings)


def test_a_program_that_never_repeats_itself(builds: Path, tmp_path: Path) -> None:
    said = command(
        "build", "-q", "-o", tmp_path / "x.probe", "--interval", "5ms", "--max-phases", "4",
        "--", build("everchanging", builds), "3", status=34,
    ).stderr  # fmt: skip
    assert "execute mostly other code than those that stand for them" in said
    assert not (tmp_path / "x.probe").exists()


def test_a_program_that_mostly_sleeps(builds: Path, tmp_path: Path) -> None:
    said = command(
        "build", "-q", "-o", tmp_path / "x.probe", "--interval", "10ms",
        "--", build("sleeper", builds), "40", "60", status=34,
    ).stderr  # fmt: skip
    assert "waits for disks, networks or timers" in said
    assert not (tmp_path / "x.probe").exists()


# -- the page


def test_every_limit_is_documented() -> None:
    listed = {
        cells[0].strip("`"): cells[2:4] for cells in rows(section("docs/limits.md", "When there is no prediction"))
    }
    for field in fields(LIMITS):
        limit = getattr(LIMITS, field.name)
        if isinstance(limit, Limit):
            assert [f"{limit.warn:g}", f"{limit.refuse:g}"] == listed[field.name], field.name
    assert f"fewer than {LIMITS.judged} intervals" in section("docs/limits.md", "When there is no prediction")
