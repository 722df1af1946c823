# SPDX-License-Identifier: Apache-2.0
"""Coverage of the 95 % interval: recorded runs of real programs, on simulated candidates whose full time is known.

tests/recorded holds vectors, work and times of the intervals of real programs, from
scripts/benchmarks/selection/record_intervals.py. The selection is the real one, the repeats are made: what the
representatives take on a candidate is the recorded time times the candidate's ratio for that interval, and the truth is
the sum over all intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from probe.formats.arrays import FloatArray
from probe.formats.choices import SelectionOptions
from probe.formats.selection import Selection
from probe.prediction.estimators import PhaseTiming, ReferenceRun, predict
from probe.selection.select import select_phases

RECORDED = sorted((Path(__file__).parents[1] / "recorded").glob("*.npz"))
MACHINES = 250
"""Candidates for each program and kind of difference."""


@dataclass(frozen=True)
class Run:
    """A recorded run: share of each block group (N x B, rows add up to 1), log rate, work, seconds; its selection."""

    code: FloatArray
    log_rate: FloatArray
    work: FloatArray
    seconds: FloatArray
    selection: Selection


@cache
def recorded(path: Path) -> Run:
    with np.load(path, allow_pickle=False) as stored:
        vectors, work = stored["vectors"].astype(float), stored["work"].astype(float)
        seconds = stored["seconds"].astype(float)
    eligible = np.ones(len(seconds), dtype=bool)
    eligible[[0, -1]] = False
    options = SelectionOptions(kmeans_seeds=2, max_phases=20)
    selection = select_phases(sparse.csr_array(vectors), work, seconds, eligible, options)
    code = vectors / np.maximum(vectors.sum(axis=1, keepdims=True), 1e-9)
    return Run(code, np.log(seconds / np.maximum(work, 1.0)), work, seconds, selection)


Ratios = Callable[[np.random.Generator, Run], FloatArray]
"""Time on the candidate over time on the reference node, for every interval."""


def same(_: np.random.Generator, run: Run) -> FloatArray:
    return np.ones(len(run.seconds))


def slower(rng: np.random.Generator, run: Run) -> FloatArray:
    return np.full(len(run.seconds), rng.uniform(0.3, 8.0))


def by_rate(rng: np.random.Generator, run: Run) -> FloatArray:
    """Code that waits on the reference node, for memory say, is the code that differs."""
    return np.exp(rng.normal(0, 0.4) * (run.log_rate - run.log_rate.mean()))


def by_code(rng: np.random.Generator, run: Run) -> FloatArray:
    """Every group of blocks has a slowdown of its own: other instruction costs, narrower vectors."""
    return run.code @ np.exp(rng.normal(0, 0.5, run.code.shape[1]))


def both(rng: np.random.Generator, run: Run) -> FloatArray:
    return by_rate(rng, run) * by_code(rng, run) * rng.uniform(0.5, 3.0)


def hidden(rng: np.random.Generator, run: Run) -> FloatArray:
    """A stretch of the run is slower for a reason that neither code nor time on the reference node shows: its data fits
    the cache there, and not here."""
    count = len(run.seconds)
    length = int(count * rng.uniform(0.2, 0.5))
    first = int(rng.integers(count - length))
    ratios = np.ones(count)
    ratios[first : first + length] = rng.uniform(1.3, 2.0)
    return ratios


def share_held(ratios: Ratios, run: Run, rng: np.random.Generator) -> tuple[float, float]:
    """Share of the simulated candidates whose full time the interval holds; how far it reaches, in the median."""
    held, reach = 0, []
    for _ in range(MACHINES):
        here = ratios(rng, run) * run.seconds
        noise, run_noise = rng.uniform(0.002, 0.03), rng.uniform(0.001, 0.02)

        def repeated(seconds: float, count: int, spread: float) -> list[float]:
            return (seconds * np.exp(rng.normal(0, spread, count))).tolist()

        phases = [
            PhaseTiming(
                id=p.id, weight=p.weight, time_share=p.time_share, work=float(run.work[p.representative]),
                t_ref=repeated(run.seconds[p.representative], 5, noise),
                t_cand=repeated(here[p.representative], 5, noise),
                t_run=float(run.seconds[p.representative]), spread=p.seconds_spread, stratum=p.stratum,
            )
            for p in run.selection.phases
        ]  # fmt: skip
        reference = ReferenceRun(repeated(float(run.seconds.sum()), 3, run_noise), float(run.work.sum()))
        said = predict(reference, phases)
        truth = float(here.sum()) * float(np.exp(rng.normal(0, run_noise)))
        held += said.low <= truth <= said.high
        reach.append(said.half_width)
    return held / MACHINES, float(np.median(reach))


def over_all(ratios: Ratios) -> tuple[float, float, dict[str, float]]:
    """Over all recorded programs: share held, median reach, and the share for each."""
    rng = np.random.default_rng(2011)
    found = {path.stem: share_held(ratios, recorded(path), rng) for path in RECORDED}
    shares = {name: held for name, (held, _) in found.items()}
    return float(np.mean(list(shares.values()))), float(np.median([reach for _, reach in found.values()])), shares


@pytest.mark.parametrize("ratios", [same, slower, by_rate, by_code, both], ids=lambda kind: str(kind.__name__))
def test_the_interval_covers_on_candidates_that_differ_by_what_was_seen(ratios: Ratios) -> None:
    held, reach, each = over_all(ratios)
    assert len(each) >= 4
    assert held >= 0.93, each
    assert min(each.values()) >= 0.85, each
    # An interval that is always right because it is endless would be of no use.
    assert reach < 0.15


def test_what_the_interval_does_not_claim() -> None:
    """docs/estimators.md, "Limits": were it to cover this for every program, that page would be wrong. Several
    representatives of a stratum, spread over the run, see most of it: with one each, 77 % are held, of perl 22 %."""
    held, _, each = over_all(hidden)
    assert min(each.values()) < 0.93, each
    assert held >= 0.85, each
