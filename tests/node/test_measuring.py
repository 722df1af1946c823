# SPDX-License-Identifier: Apache-2.0
"""Rounds: every phase once, then all again; the program in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import probe.node.measuring
from checkpoint.errors import PhaseFailed, ProgramFailed
from checkpoint.restore.criu_restore import RegionTime, RestoreJob
from checkpoint.restore.direct_restore import DirectRefused
from probe.formats.phase_record import CRIU, DIRECT
from probe.formats.reference import Reference
from probe.formats.timing import IntervalRun
from probe.node.measuring import MeasuredPhase, PhaseToMeasure, Restorers, measure_phases
from probe.pipeline.reference import SpreadRuns


class Recorded(Restorers):
    """Restorers that note who is asked for what, and fail as told."""

    def __init__(self, log: list[str], failing: dict[tuple[str, int], Exception] | None = None) -> None:
        super().__init__()
        object.__setattr__(self, "log", log)
        object.__setattr__(self, "failing", failing or {})

    def start(self, restorer: str, job: RestoreJob, scratch: Path, cpu: int | None) -> _Agent:  # type: ignore[override]
        return _Agent(restorer, job, self.log, self.failing.get((restorer, job.phase)))  # type: ignore[attr-defined]


class _Agent:
    warnings: frozenset[str] = frozenset()

    def __init__(self, restorer: str, job: RestoreJob, log: list[str], failure: Exception | None) -> None:
        self._name, self._log, self._failure = f"{restorer[0]}{job.phase}", log, failure
        self._log.append(f"+{self._name}")

    def repeat(self) -> RegionTime:
        if self._failure is not None:
            raise self._failure
        self._log.append(self._name)
        return RegionTime(1.0, 1.0, 1.0, 1.0)

    def close(self) -> None:
        self._log.append(f"-{self._name}")


def job(phase: int, images: Path = Path("nowhere")) -> RestoreJob:
    return RestoreJob(phase, images, (), (), (), (), 0, 0, 0, 1.0)


def measured(
    phases: list[PhaseToMeasure], restorers: Restorers, repeats: int, after: Callable[[int], None] | None = None
) -> list[MeasuredPhase]:
    shares: list[float] = []
    found = measure_phases(
        phases, restorers, repeats=repeats, scratch=Path("nowhere"), cpu=None, progress=shares.append, after_round=after
    )
    assert shares == sorted(shares) and shares[-1] == 1.0
    return found


def test_repeats_are_made_in_rounds() -> None:
    log: list[str] = []
    phases = [PhaseToMeasure(job(1)), PhaseToMeasure(job(1), DIRECT), PhaseToMeasure(job(2))]
    found = measured(phases, Recorded(log), 2, lambda number: log.append(f"round {number}"))
    assert log == [
        "+c1", "c1", "+d1", "d1", "+c2", "c2", "round 1", "c1", "d1", "c2", "round 2", "-c2", "-d1", "-c1",
    ]  # fmt: skip
    assert [(m.phase, m.restorer, len(m.times)) for m in found] == [(1, CRIU, 2), (1, DIRECT, 2), (2, CRIU, 2)]


def test_a_phase_that_fails_is_not_asked_again_and_stops_nobody() -> None:
    log: list[str] = []
    failing: dict[tuple[str, int], Exception] = {(CRIU, 1): PhaseFailed("no")}
    first, second = measured([PhaseToMeasure(job(1)), PhaseToMeasure(job(2))], Recorded(log, failing), 3)
    assert (first.times, first.failure, len(second.times)) == ((), "no", 3)
    assert log.count("+c1") == 1


def test_criu_takes_over_where_direct_refuses() -> None:
    log: list[str] = []
    failing: dict[tuple[str, int], Exception] = {
        (DIRECT, 1): DirectRefused("not here"),
        (DIRECT, 2): DirectRefused("no"),
    }
    phases = [PhaseToMeasure(job(1), DIRECT, fall_back=True), PhaseToMeasure(job(2), DIRECT)]
    first, second = measured(phases, Recorded(log, failing), 2)
    assert (first.restorer, len(first.times), first.failure) == (CRIU, 2, "")
    assert (second.restorer, second.times, second.failure) == (DIRECT, (), "no")


def test_what_concerns_the_machine_ends_it() -> None:
    failing: dict[tuple[str, int], Exception] = {(CRIU, 1): ProgramFailed("all")}
    with pytest.raises(ProgramFailed):
        measured([PhaseToMeasure(job(1))], Recorded([], failing), 2)


def test_unpacked_phases_are_taken_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.node.measuring, "GROUP_BYTES", 10)
    there: list[int] = []

    def unpack(images: Path) -> None:
        images.mkdir()
        there.append(len(list(tmp_path.iterdir())))

    log: list[str] = []
    phases = [PhaseToMeasure(job(n, tmp_path / str(n)), unpack=unpack, size=6 if n < 3 else 4) for n in range(1, 5)]
    assert all(len(m.times) == 2 for m in measured(phases, Recorded(log), 2))
    assert there == [1, 1, 2, 1] and list(tmp_path.iterdir()) == []
    assert [entry for entry in log if entry[0] == "c"] == ["c1", "c1", "c2", "c3", "c2", "c3", "c4", "c4"]


@pytest.mark.parametrize(
    ("runs", "rounds", "after"),
    [(3, 5, [1, 1, 2, 2, 3]), (3, 1, [3]), (1, 5, [0, 0, 1, 1, 1]), (2, 5, [0, 1, 1, 2, 2]), (4, 4, [1, 2, 3, 4])],
)
def test_plain_runs_are_spread_between_rounds(runs: int, rounds: int, after: list[int]) -> None:
    made: list[float] = []

    def plain(number: int) -> IntervalRun:
        assert number == len(made)
        made.append(float(len(made) + 1))
        return IntervalRun(made[-1], made[-1] / 2, np.full(4, made[-1] / 5), np.full(4, made[-1] / 10))

    spread = SpreadRuns(plain, runs=runs, rounds=rounds)
    seen = []
    for number in range(1, rounds + 1):
        spread.after_round(number)
        seen.append(len(made))
    assert seen == after
    early = Reference((9.0,), (8.0,), 0.0, (7.0, 6.0), "cpu", (9.0,), (8.0,))
    late = spread.reference(early)
    assert late.wall == tuple(made) and late.cpu == tuple(t / 2 for t in made)
    assert (late.early_wall, late.early_seconds, late.clock) == ((9.0,), 8.0, "cpu")
    assert late.seconds == pytest.approx(np.quantile(late.cpu, 0.25)) and bool(late.voted) == (runs > 1)
