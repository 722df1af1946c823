# SPDX-License-Identifier: Apache-2.0
"""`scripts/bench selection`: its errors by hand, and on a recorded program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.selection import reconstruction
from benchmarks.selection.recorded_runs import RecordedRuns
from scipy import sparse

from probe.formats.choices import SelectionOptions
from probe.selection.select import select_phases


def made(runs: int = 3) -> RecordedRuns:
    """Two kinds of code, 40 intervals of each; the second costs three times as much; noise of each run's own."""
    rng = np.random.default_rng(3)
    rows = np.repeat(np.array([[100.0, 0.0, 10.0], [0.0, 100.0, 10.0]]), 40, axis=0)
    rate = np.repeat([1.0, 3.0], 40)
    return RecordedRuns(sparse.csr_array(rows), rows.sum(axis=1), 1e-3 * rate * rng.lognormal(0, 0.02, (runs, 80)))


def test_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    runs = made()
    runs.save(tmp_path / "made.npz")
    back = RecordedRuns.load(tmp_path / "made.npz")
    assert np.array_equal(back.vectors.toarray(), runs.vectors.toarray())
    assert np.array_equal(back.seconds, runs.seconds) and np.array_equal(back.work, runs.work)


def test_errors_are_those_of_the_runs_that_the_selection_has_not_seen() -> None:
    runs = made()
    # Without noise a selection is exact; where its intervals alone are 10 % slower it is wrong by nearly as much.
    even = replace(runs, seconds=np.tile(np.repeat([1e-3, 3e-3], 40), (3, 1)))
    chosen = select_phases(even.vectors, even.work, even.seconds[0], np.ones(80, dtype=bool), SelectionOptions())
    assert reconstruction.direct_errors(even, chosen, 0) == pytest.approx([0.0, 0.0])
    odd = even.seconds.copy()
    odd[2, [p.representative for p in chosen.phases]] *= 1.1
    slower = replace(even, seconds=odd)
    gone = 1.1 / (odd[2].sum() / even.seconds[0].sum()) - 1
    assert reconstruction.direct_errors(slower, chosen, 0) == pytest.approx([0.0, gone])
    rng = np.random.default_rng(1)
    for kind in ("same", "code"):
        errors = reconstruction.candidate_errors(even, chosen, 0, reconstruction.KINDS[kind], rng)
        assert len(errors) == reconstruction.CANDIDATES and errors == pytest.approx([0.0] * len(errors), abs=1e-9)
    assert max(map(abs, reconstruction.candidate_errors(even, chosen, 0, reconstruction.KINDS["stretch"], rng))) > 0.02


def test_several_representatives_win_where_nothing_here_shows_the_difference() -> None:
    found = reconstruction.evaluate(made(), [1])
    assert set(found) == set(reconstruction.METHODS)
    assert found["reconstruct"]["phases"] == found["random"]["phases"] > found[reconstruction.ONE_EACH]["phases"]
    assert found["reconstruct"]["stretch"] < 0.7 * found[reconstruction.ONE_EACH]["stretch"]
    assert found["reconstruct"]["direct"] < found["random"]["direct"]
    said = reconstruction.report({"programs": {"made": found}, "failures": {"gone": "no such program"}})
    assert "| made | one each | 2 |" in said and "- gone: no such program" in said
