# SPDX-License-Identifier: Apache-2.0
"""Repeats that something disturbed are made again; those made while a probe arrived never count."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rivals import rivals
from small_probe import SmallProbe, small_probe

from checkpoint.restore.criu_restore import PhaseAgent, RegionTime, RestoreJob
from probe.candidates.local import run
from probe.formats.manifest import Manifest
from probe.formats.phase_record import DIRECT
from probe.node.measuring import (
    ARRIVING,
    LEAST_UNDISTURBED,
    OTHER_WORK,
    MeasuredPhase,
    PhaseToMeasure,
    Restorers,
    measure_phases,
)
from probe.node.quietness import DISTURBED, QuietJudge
from reducer.unpack import open_probe

_RULE = "repeats that it disturbed had to be used"


class Given(Restorers):
    """Restorers whose repeats take the wall times given, in order, and 1 s of processor time each."""

    def __init__(self, walls: list[float]) -> None:
        super().__init__()
        object.__setattr__(self, "walls", iter(walls))

    def start(self, restorer: str, job: RestoreJob, scratch: Path, cpu: int | None) -> PhaseAgent:
        walls: Iterator[float] = self.walls  # type: ignore[attr-defined]

        class Agent:
            warnings: frozenset[str] = frozenset()

            def repeat(self) -> RegionTime:
                return RegionTime(next(walls), 1.0, 0.0, 0.0)

            def close(self) -> None:
                pass

        return Agent()  # type: ignore[return-value]


class Said:
    """A judge that says what it is told to, and counts the repeats."""

    def __init__(self, verdicts: list[str]) -> None:
        self._verdicts = iter(verdicts)
        self.made = 0

    def begin(self) -> None:
        self.made += 1

    def why_not(self, phase: int, restorer: str, time: RegionTime) -> str:
        return next(self._verdicts)


def measured(verdicts: list[str], repeats: int) -> tuple[MeasuredPhase, int]:
    judge = Said(verdicts)
    job = RestoreJob(0, Path("nowhere"), (), (), (), (), 0, 0, 0, 1.0)
    (found,) = measure_phases(
        [PhaseToMeasure(job, DIRECT)], Given([float(n) for n in range(1, 100)]), repeats=repeats,
        scratch=Path("nowhere"), cpu=None, progress=lambda _: None, judge=judge,
    )  # fmt: skip
    return found, judge.made


@pytest.mark.parametrize(
    ("verdicts", "counted", "made", "warned"),
    [
        # Undisturbed: as many as wanted, no more.
        ("_____", [1, 2, 3, 4, 5], 5, False),
        # Those disturbed are made again ...
        ("x_x___x_", [2, 4, 5, 6, 8], 8, False),
        # ... in twice as many rounds and one; enough are left.
        ("xxxxxxxx___", [9, 10, 11], 11, False),
        # Too few are left: all count, and it is said.
        ("xxxxxxxxx__", [10, 11, 1, 2, 3, 4, 5, 6, 7, 8, 9], 11, True),
        ("xxxxxxxxxxx", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 11, True),
        # What was made while the probe arrived does not count even then.
        ("aaxxxxxxxxx", [3, 4, 5, 6, 7, 8, 9, 10, 11], 11, True),
        ("a_____", [2, 3, 4, 5, 6], 6, False),
    ],
)
def test_disturbed_repeats_are_made_again(verdicts: str, counted: list[int], made: int, warned: bool) -> None:
    assert LEAST_UNDISTURBED == 3
    found, repeats = measured([{"_": "", "x": OTHER_WORK, "a": ARRIVING}[v] for v in verdicts], 5)
    assert [int(time.wall) for time in found.times] == counted and repeats == made
    assert any(_RULE in warning for warning in found.warnings) == warned


def test_a_single_repeat_is_made_again_too() -> None:
    found, made = measured([OTHER_WORK, ""], 1)
    assert [int(time.wall) for time in found.times] == [2] and made == 2 and not found.warnings
    found, made = measured([OTHER_WORK] * 3, 1)
    assert len(found.times) == 3 == made and found.warnings


@pytest.fixture(scope="module")
def manifest(builds: Path) -> Manifest:
    with open_probe(small_probe(builds).path) as archive:
        return Manifest.from_json(archive.manifest)


def usual(manifest: Manifest, phase: int) -> float:
    """Wall over processor time on the reference node."""
    times = manifest.phases[phase].restored(DIRECT)
    ratios = sorted(w / c for w, c in zip(times.wall, times.cpu, strict=True))
    return (ratios[(len(ratios) - 1) // 2] + ratios[len(ratios) // 2]) / 2


def test_a_repeat_is_judged_by_what_is_usual_for_its_phase(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    arriving, told, stolen = [True], [], [0.0]
    monkeypatch.setattr("probe.node.quietness._processor_seconds", lambda cpu: (0.0, stolen[0]))
    judge = QuietJudge(
        manifest, None, arriving=lambda: arriving[0], told=lambda phase, restorer, time, why: told.append(why)
    )
    phase = manifest.phases[0].id
    stretch = usual(manifest, 0) if manifest.reference.clock != "cpu" else 1.0

    def why(ratio: float, taken: float = 0.0, cpu: float = 1.0) -> str:
        judge.begin()
        stolen[0] += taken
        return judge.why_not(phase, DIRECT, RegionTime(stretch * ratio, cpu, 0.0, 0.0))

    assert why(1.0) == ARRIVING
    judge.begin()
    # What counts is how it was when the repeat began.
    arriving[0] = False
    assert judge.why_not(phase, DIRECT, RegionTime(stretch, 1.0, 0.0, 0.0)) == ARRIVING
    assert why(1.0) == "" and why(1.0 + 0.9 * DISTURBED) == ""
    assert why(1.0 + 1.1 * DISTURBED) == OTHER_WORK
    assert why(1.0, cpu=0.0) == OTHER_WORK
    # The hypervisor's own tick or two are no disturbance, a tenth of the region is.
    assert why(1.0, taken=0.01) == "" and why(1.0, taken=0.2) == OTHER_WORK
    assert told == [ARRIVING, ARRIVING, "", "", OTHER_WORK, OTHER_WORK, "", OTHER_WORK]
    said = judge.describe()
    assert (said["repeats"], said["disturbed"]) == (8, 3) and len(said["load"]) == 2


def test_a_thread_that_waited_for_its_processor_spoils_a_repeat(manifest: Manifest) -> None:
    """Of a region of one second behind a warm-up of one: 42 ms may pass so. CPU time says nothing, and how often it
    lost its processor only where nobody knows for how long."""
    judge = QuietJudge(replace(manifest, threads=2), None)
    stretch = usual(manifest, 0) if manifest.reference.clock != "cpu" else 1.0

    def why(**more: float | None) -> str:
        judge.begin()
        return judge.why_not(manifest.phases[0].id, DIRECT, replace(quiet, **more))  # type: ignore[arg-type]

    quiet = RegionTime(stretch, 1.0, 2.0 - stretch, 0.0, switches=0, delay=0.0)
    assert why() == why(delay=0.041) == why(switches=50) == "" and why(delay=0.043) == OTHER_WORK
    assert why(switches=3, delay=None) == "" and why(switches=5, delay=None) == OTHER_WORK


def test_others_on_the_processor_are_noticed(builds: Path) -> None:
    small: SmallProbe = small_probe(builds)
    with rivals(max(os.sched_getaffinity(0)), 1):
        found = run(small.path, repeats=2)
    # A phase that shares its processor takes twice as long by the clock, and as long as ever by processor time.
    assert any(_RULE in warning for phase in found.phases for warning in phase.warnings)
    assert any(len(phase.times) == 5 for phase in found.phases)
    shared = [t.wall / t.cpu for phase in found.phases for t in phase.times]
    assert max(shared) > 1.0 + DISTURBED


def test_what_others_used_is_described(manifest: Manifest) -> None:
    judge = QuietJudge(manifest, None)
    begun = time.monotonic()
    with rivals(max(os.sched_getaffinity(0)), 1):
        time.sleep(0.5)
        said = judge.describe()
    share = 0.5 / (time.monotonic() - begun) / (os.cpu_count() or 1)
    # It is not ours before it has been waited for.
    assert said["others"] > 0.5 * share and 0 <= said["stolen"] <= 1
    assert all(0 < mhz < 10_000 for mhz in said["mhz"])
