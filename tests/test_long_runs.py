# SPDX-License-Identifier: Apache-2.0
"""A run of ten hours as the native tracer records it, with clock and counters made up: intervals are joined, so that
their number is bounded, and nothing that was counted is lost."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import probe.tracers.native as native
from checkpoint.program import Program, Streams
from probe.tracers.native import DEFAULT_INTERVAL, _matrix, _Recording

HOURS = 10
MOST = 400
"""Intervals kept, in place of 20,000: the run doubles its intervals some times more often then."""

RECORDED = Path(__file__).parent / "recorded" / "perl.npz"


class Counters:
    """What `SiteCounters` tells the tracer: totals of every block so far. The run repeats a recorded one."""

    def __init__(self, per_second: npt.NDArray[np.float64], clock: Clock) -> None:
        self._per_second, self._clock = per_second, clock
        self.columns = per_second.shape[1]
        self.removed = np.zeros(self.columns, dtype=bool)
        self.images: list[Any] = []
        self.total = np.zeros(self.columns)
        self._at = 0.0

    def read(self) -> npt.NDArray[np.int64]:
        # Stretches of ten minutes, so that intervals keep to one kind of code however long they grow.
        rate = self._per_second[int(self._clock.now / 600) % len(self._per_second)]
        self.total = self.total + rate * (self._clock.now - self._at)
        self._at = self._clock.now
        return self.total.astype(np.int64)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> tuple[_Recording, Counters, Clock]:
    with np.load(RECORDED, allow_pickle=False) as stored:
        vectors, seconds = stored["vectors"].astype(float), stored["seconds"].astype(float)
    clock = Clock()
    # Cool enough that no site is removed: that is another matter.
    counters = Counters(vectors / seconds[:, None] / 1e3, clock)
    monkeypatch.setattr(native, "time", clock)
    monkeypatch.setattr(native, "run_delay", lambda pid: 0.0)
    monkeypatch.setattr(native, "written_files", lambda pid: set())
    monkeypatch.setattr(native, "MOST_INTERVALS", MOST)
    monkeypatch.setattr(_Recording, "cost", lambda self: np.zeros(counters.columns))
    made = _Recording(SimpleNamespace(pid=1), None, counters, DEFAULT_INTERVAL)  # type: ignore[arg-type]
    made.begin()
    return made, counters, clock


def test_ten_hours_are_a_bounded_number_of_intervals(recording: tuple[_Recording, Counters, Clock]) -> None:
    made, counters, clock = recording
    entries = []
    for _ in itertools.takewhile(lambda _: clock.now < HOURS * 3600, itertools.count()):
        clock.now += made.interval
        assert made.look(end_row=True)
        assert len(made.rows) == len(made.seconds) <= MOST
        entries.append(sum(len(row.columns) for row in made.rows) if len(made.rows) % 50 == 0 else 0)
    assert made.interval / DEFAULT_INTERVAL == 2 ** round(np.log2(made.interval / DEFAULT_INTERVAL)) >= 1024
    assert len(made.rows) >= MOST // 2
    # Memory is that of the rows: no more after hours than when they were first full.
    assert max(entries) <= MOST * counters.columns
    assert max(entries[len(entries) // 2 :]) <= 1.2 * max(entries[: MOST + 1])
    assert sum(made.seconds) == pytest.approx(clock.now)
    assert sum(row.seconds for row in made.rows) == pytest.approx(clock.now)
    kept = np.asarray(_matrix(made.rows, counters.columns).sum(axis=0)).ravel()
    assert np.array_equal(kept, counters.total.astype(np.int64))


def test_what_was_joined_is_a_profile(recording: tuple[_Recording, Counters, Clock], tmp_path: Path) -> None:
    made, counters, clock = recording
    for _ in range(3 * MOST):
        clock.now += made.interval
        made.look(end_row=True)
    streams = Streams(tmp_path / "out", tmp_path / "err")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counters, "installed", 0, raising=False)
        patch.setattr(native, "_blocks", lambda counters, columns: SimpleNamespace(site=columns))
        profile = native._profile(Program(("made",), "/made", "/"), made, clock.now, streams)
    assert profile.intervals <= MOST and profile.interval == made.interval > DEFAULT_INTERVAL
    assert profile.seconds.sum() == pytest.approx(clock.now)
    assert profile.counts.sum() == counters.total.astype(np.int64).sum()
