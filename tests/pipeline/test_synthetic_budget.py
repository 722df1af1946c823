# SPDX-License-Identifier: Apache-2.0
"""Seconds that synthesizing may take unasked: half of the build, and recording the flow counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from probe.flow.memory import BY_WORD, DOUBLES, WHOLE, PhaseMemory
from probe.flow.packing_time import SavedPacking
from probe.flow.synthesis import Answer, Proved, settle, unchanged
from probe.flow.times import PairedTimes, Repeats
from probe.formats.checkpoints import CapturedPhase, ReducedPhase
from probe.formats.phase_record import Synthetic
from probe.pipeline import synthesize
from probe.pipeline.stage import Build


def allowed(*, gone: float, images: float, flow: float, wall: float = 10.0) -> float:
    build = SimpleNamespace(
        folder=SimpleNamespace(seconds=gone),
        flatten_seconds=(images, flow),
        plan=SimpleNamespace(between=3),
        timed=SimpleNamespace(wall_seconds=wall),
    )
    return synthesize._allowed(cast(Any, build))


def test_half_of_the_build_is_for_the_flow_and_for_synthesizing() -> None:
    # 200 s until here without the flow, three runs of 10 s and three rounds of 5 s to come: half of 245 s for both.
    assert allowed(gone=220.0, images=5.0, flow=20.0) == pytest.approx(122.5 - 20.0, abs=0.5)


def test_phases_are_judged_together_and_time_is_kept_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Largest first. Each proved phase varies so much that it needs more repeats in the end."""
    given: dict[int, float] = {}
    order: list[int | None] = []

    def made(
        _: Build,
        phase: CapturedPhase,
        reduced: ReducedPhase,
        following: ReducedPhase | None,
        seconds: float,
        *rest: Sequence[Proved],
    ) -> tuple[Proved | Synthetic, None]:
        assert len(rest[-1]) == max(0, len(given) - 1)
        order.append(following.phase if following else None)
        given[phase.phase] = seconds
        if phase.phase == 1:
            return unchanged("not this one"), None
        times = PairedTimes(nullcontext, [0.03, -0.03, 0.0], seconds=30.0)
        return Proved(unchanged("proved"), unchanged("kept"), Path("nowhere"), times), None

    def settled(proved: Sequence[Proved], until: float, _: Sequence[Proved]) -> list[Synthetic]:
        return [replace(one.record, time_ratio=1.0 + number) for number, one in enumerate(proved)]

    monkeypatch.setattr(synthesize, "_made", made)
    monkeypatch.setattr(synthesize, "settle", settled)
    sizes = {0: 10, 1: 30, 2: 20, 3: 5}
    build = SimpleNamespace(
        options=SimpleNamespace(synthetic_budget=1000.0),
        captured=[SimpleNamespace(phase=phase) for phase in sizes],
        reduced=[ReducedPhase(phase, "reduced", size, size, size, size, "") for phase, size in sizes.items()],
        folder=None,
        synthetic={},
    )
    synthesize.replace_data(cast(Any, build), lambda _: None)
    assert list(given) == [1, 2, 0, 3] and order == [2, 0, 3, None]
    assert 999.0 < given[2] <= given[1] <= 1000.0
    # Two more pairs of ten seconds for each proved phase, and half as much again.
    assert given[0] == pytest.approx(970.0, abs=1.0) and given[3] == pytest.approx(940.0, abs=1.0)
    found = {phase: (one.refused, one.time_ratio) for phase, one in build.synthetic.items()}
    assert found == {1: ("not this one", None), 2: ("proved", 1.0), 0: ("proved", 2.0), 3: ("proved", 3.0)}


def test_a_short_build_has_some_seconds_for_it() -> None:
    assert allowed(gone=10.0, images=1.0, flow=9.0, wall=0.1) == 15.0


def test_time_that_judging_left_is_for_phases_that_were_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging the first may take 60 s of 70, and takes none; the second gets what is left, and is judged with it."""
    asked: list[int] = []
    judged: list[tuple[int, int]] = []

    def made(_: Build, phase: CapturedPhase, *rest: Any) -> tuple[Proved | Synthetic, None]:
        seconds = rest[2]
        if seconds < 15.0:
            return unchanged(synthesize._USED_UP), None
        asked.append(phase.phase)
        times = PairedTimes(nullcontext, [0.03, -0.03, 0.0], seconds=60.0)
        return Proved(unchanged(""), unchanged("kept"), Path("nowhere"), times), None

    def settled(proved: Sequence[Proved], until: float, before: Sequence[Proved]) -> list[Synthetic]:
        judged.append((len(proved), len(before)))
        return [one.record for one in proved]

    monkeypatch.setattr(synthesize, "_made", made)
    monkeypatch.setattr(synthesize, "settle", settled)
    build = SimpleNamespace(
        options=SimpleNamespace(synthetic_budget=70.0),
        captured=[SimpleNamespace(phase=phase) for phase in (7, 8)],
        reduced=[ReducedPhase(phase, "reduced", size, size, size, size, "") for phase, size in ((7, 9), (8, 1))],
        folder=None,
        synthetic={},
    )
    synthesize.replace_data(cast(Any, build), lambda _: None)
    assert asked == [7, 8] and judged == [(1, 0), (1, 1)]
    assert {phase: one.refused for phase, one in build.synthetic.items()} == {7: "", 8: ""}
    build.options.synthetic_budget = 5.0
    synthesize.replace_data(cast(Any, build), lambda _: None)
    assert {one.refused for one in build.synthetic.values()} == {synthesize._USED_UP}


def test_what_packing_less_saves_is_found_by_a_sample(tmp_path: Path) -> None:
    """Of pages by their addresses, so that phases have those in common that are packed once."""
    words = np.random.default_rng(1).integers(0, 1 << 63, (2048, 512), dtype=np.uint64)
    words.tofile(tmp_path / "pages")
    memory = PhaseMemory.__new__(PhaseMemory)
    memory.addresses, memory._file = np.arange(2048, dtype=np.uint64) * np.uint64(4096), tmp_path / "pages"
    whole = np.full(2048, WHOLE, dtype=np.uint8)
    saved = SavedPacking("gzip")
    first = saved.seconds(memory, whole)
    assert first > 0 and saved._seen == {hash(words[row].tobytes()) for row in range(0, 2048, 64)}
    before = len(saved._seen)
    saved.seconds(memory, whole)
    assert len(saved._seen) == before
    assert SavedPacking("gzip").seconds(memory, np.zeros(2048, dtype=np.uint8)) < first

    by_words = np.full(2048, BY_WORD, dtype=np.uint8)
    assert SavedPacking("gzip").seconds(memory, by_words) < first


@pytest.mark.parametrize(("budget", "refused", "expected"), [
    (None, "", [100.0, 150.0, 200.0, 400.0]), (None, "open", [100.0, 150.0, 200.0, 200.0]), (300.0, "", [300.0] * 4),
])  # fmt: skip
def test_time_is_given_for_what_packing_less_saves(
    budget: float | None, refused: str, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it at once, as half of packing may be added in any case; all of it once phases have passed."""
    given: list[float] = []
    answer = Answer(cast(Any, None), np.zeros(0, dtype=np.uint8), DOUBLES, cast(Any, None))

    def made(*all_of_it: Any) -> tuple[Proved | Synthetic, Answer | None]:
        phase, seconds = all_of_it[1].phase, all_of_it[4]
        given.append(seconds)
        if phase == 3 and len(given) < 4:
            return unchanged(synthesize._USED_UP), None
        times = PairedTimes(nullcontext, [0.0, 0.0, 0.0], seconds=0.0)
        return Proved(unchanged(""), unchanged("kept"), Path("nowhere"), times), answer

    monkeypatch.setattr(synthesize, "_made", made)
    monkeypatch.setattr(synthesize, "settle", lambda proved, *_: [unchanged(refused) for _one in proved])
    monkeypatch.setattr(synthesize, "_allowed", lambda build: 100.0)
    monkeypatch.setattr(SavedPacking, "seconds", lambda *_: 100.0)
    build = SimpleNamespace(
        options=SimpleNamespace(synthetic_budget=budget, compress="gzip"),
        captured=[SimpleNamespace(phase=phase) for phase in (1, 2, 3)],
        reduced=[ReducedPhase(phase, "reduced", 9, 9, 9, 9, "") for phase in (1, 2, 3)],
        folder=None,
        synthetic={},
    )
    synthesize.replace_data(cast(Any, build), lambda _: None)
    assert given == [pytest.approx(seconds, abs=1.0) for seconds in expected]


def test_phases_that_passed_are_not_judged_again(tmp_path: Path) -> None:
    """Further ones are judged beside them, however few they are, and no time is spent beyond the end."""
    made: list[int] = []

    @contextmanager
    def repeats() -> Iterator[Repeats]:
        made.append(1)
        yield [lambda: 1.0, lambda: 1.0]

    rng = np.random.default_rng(4)
    old = [PairedTimes(repeats, rng.normal(0.0, 0.004, 5).tolist(), seconds=5.0) for _ in range(4)]
    records = [Proved(unchanged(""), unchanged("kept"), tmp_path / str(n), one) for n, one in enumerate(old)]
    fresh = Proved(unchanged(""), unchanged("kept"), tmp_path / "new", PairedTimes(repeats, [0.003, -0.002, 0.0]))
    for one in (*records, fresh):
        one.folder.mkdir()
    (found,) = settle([fresh], 0.0, records)
    assert not found.refused and not made
    assert all(one.folder.exists() for one in (*records, fresh))
    # By itself it is compared to the end.
    settle([fresh], 0.0)
    assert made
