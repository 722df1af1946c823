# SPDX-License-Identifier: Apache-2.0
"""Seconds that synthesizing may take unasked: half of the build, and recording the flow counts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from probe.flow.memory import DOUBLES, WHOLE, Known, PhaseMemory
from probe.flow.packing_time import SavedPacking
from probe.flow.synthesis import Answer, Proved, unchanged
from probe.flow.times import PairedTimes
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

    def settled(proved: Sequence[Proved], until: float) -> list[Synthetic]:
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
    synthesize.run(cast(Any, build), lambda _: None)
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
    judged: list[int] = []

    def made(_: Build, phase: CapturedPhase, *rest: Any) -> tuple[Proved | Synthetic, None]:
        seconds = rest[2]
        if seconds < 15.0:
            return unchanged(synthesize._USED_UP), None
        asked.append(phase.phase)
        times = PairedTimes(nullcontext, [0.03, -0.03, 0.0], seconds=60.0)
        return Proved(unchanged(""), unchanged("kept"), Path("nowhere"), times), None

    def settled(proved: Sequence[Proved], until: float) -> list[Synthetic]:
        judged.append(len(proved))
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
    synthesize.run(cast(Any, build), lambda _: None)
    assert asked == [7, 8] and judged == [1, 2]
    assert {phase: one.refused for phase, one in build.synthetic.items()} == {7: "", 8: ""}
    build.options.synthetic_budget = 5.0
    synthesize.run(cast(Any, build), lambda _: None)
    assert {one.refused for one in build.synthetic.values()} == {synthesize._USED_UP}


def test_what_packing_less_saves_is_time_for_more_unless_the_budget_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    given: list[float] = []

    def made(*all_of_it: Any) -> tuple[Synthetic, Answer]:
        given.append(all_of_it[4])
        return unchanged("no"), Answer(memory, whole, DOUBLES, Known(memory.addresses, whole))

    monkeypatch.setattr(synthesize, "_made", made)
    monkeypatch.setattr(synthesize, "settle", lambda proved, until: [])
    monkeypatch.setattr(synthesize, "_allowed", lambda build: 100.0)
    monkeypatch.setattr(SavedPacking, "seconds", lambda *_: 50.0)
    for budget, more in ((None, 50.0), (100.0, 0.0)):
        given.clear()
        build = SimpleNamespace(
            options=SimpleNamespace(synthetic_budget=budget, compress="gzip"),
            captured=[SimpleNamespace(phase=phase) for phase in (1, 2)],
            reduced=[ReducedPhase(phase, "reduced", 9, 9, 9, 9, "") for phase in (1, 2)],
            folder=None,
            synthetic={},
        )
        synthesize.run(cast(Any, build), lambda _: None)
        assert given == [pytest.approx(100.0, abs=1.0), pytest.approx(100.0 + more, abs=1.0)]
