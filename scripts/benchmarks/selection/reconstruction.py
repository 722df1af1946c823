# SPDX-License-Identifier: Apache-2.0
"""Judge selections by how well they rebuild the time of runs that they have not seen; nothing is restored.

A selection is made from one timing run of a program. Its direct estimate is compared with each of the other runs, and
its calibrated estimate with candidates made from them: another run, every interval slowed down by a ratio of its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.selection.recorded_runs import RecordedRuns
from probe.formats.arrays import FloatArray
from probe.formats.choices import RANDOM, SIMPOINT, SelectionOptions
from probe.formats.selection import Selection
from probe.selection.select import select_phases

TRAINING = 2
"""How many of the runs selections are made from, one after the other."""

CANDIDATES = 40
"""Of each kind, for each selection."""

ONE_EACH = "one each"
"""Reconstruction with one representative of each stratum."""

METHODS = ("reconstruct", ONE_EACH, SIMPOINT, RANDOM)

STARTS = 2
"""Of k-means for each k: with five, as by default, a program takes minutes."""

_GROUPS = 48
"""Of blocks, each with a slowdown of its own."""

Ratios = Callable[[np.random.Generator, RecordedRuns], FloatArray]
"""Time on a candidate over time on the reference node, for every interval (N)."""


def _same(_: np.random.Generator, runs: RecordedRuns) -> FloatArray:
    return np.ones(len(runs.work))


def _by_rate(rng: np.random.Generator, runs: RecordedRuns) -> FloatArray:
    """Code that waits here is the code that differs: log ratio = slope x log rate."""
    rate = np.log(np.median(runs.seconds, axis=0) / np.maximum(runs.work, 1.0))
    away = np.clip(rate - np.median(rate), -5.0, 5.0)
    return np.asarray(np.exp(rng.normal(0, 0.4) * away))


def _by_code(rng: np.random.Generator, runs: RecordedRuns) -> FloatArray:
    """Groups of blocks, each with a slowdown of its own."""
    groups = rng.integers(_GROUPS, size=runs.vectors.shape[1])
    slowdown = np.exp(rng.normal(0, 0.5, _GROUPS))[groups]
    return np.asarray((runs.vectors @ slowdown) / np.maximum(runs.work, 1.0) + (runs.work == 0), dtype=np.float64)


def _stretch(rng: np.random.Generator, runs: RecordedRuns) -> FloatArray:
    """A stretch of the run is slower, for a reason that nothing shows here: its data no longer fit a cache."""
    count = len(runs.work)
    length = int(count * rng.uniform(0.2, 0.5))
    first = int(rng.integers(count - length))
    ratios = np.ones(count)
    ratios[first : first + length] = rng.uniform(1.3, 2.0)
    return ratios


KINDS: dict[str, Ratios] = {"same": _same, "rate": _by_rate, "code": _by_code, "stretch": _stretch}


def selections(runs: RecordedRuns, training: int, seed: int) -> dict[str, Selection]:
    """One for each of METHODS, from timing run `training`; RANDOM has as many phases as the first."""
    eligible = np.ones(len(runs.work), dtype=bool)
    eligible[[0, -1]] = False

    def select(**options: Any) -> Selection:
        chosen = SelectionOptions(seed=seed, kmeans_seeds=STARTS, **options)
        return select_phases(runs.vectors, runs.work, runs.seconds[training], eligible, chosen)

    first = select()
    return {
        "reconstruct": first,
        ONE_EACH: select(part_above=1.0),
        SIMPOINT: select(method=SIMPOINT),
        RANDOM: select(method=RANDOM, max_phases=len(first.phases)),
    }


def direct_errors(runs: RecordedRuns, selection: Selection, training: int) -> list[float]:
    """Relative errors of the direct estimate of each run but `training`."""
    chosen = np.array([p.representative for p in selection.phases])
    weight = np.array([p.weight for p in selection.phases])
    share = np.array([p.time_share for p in selection.phases])
    worked = runs.work[chosen] > 0
    errors = []
    for run in np.delete(runs.seconds, training, axis=0):
        total = float(run.sum())
        rates = run[chosen[worked]] / runs.work[chosen[worked]]
        estimate = float((weight[worked] * rates).sum()) * float(runs.work.sum()) / float(weight[worked].sum() or 1.0)
        errors.append((estimate + total * float(share[~worked].sum())) / total - 1.0)
    return errors


def candidate_errors(
    runs: RecordedRuns, selection: Selection, training: int, ratios: Ratios, rng: np.random.Generator
) -> list[float]:
    """Relative errors of the calibrated estimate on CANDIDATES. T_ref and ET_ref are medians over all runs, T_cand of
    one that is not `training`."""
    chosen = np.array([p.representative for p in selection.phases])
    share = np.array([p.time_share for p in selection.phases])
    reference = np.median(runs.seconds, axis=0)[chosen]
    whole = float(np.median(runs.seconds.sum(axis=1)))
    others = np.delete(runs.seconds, training, axis=0)
    errors = []
    for _ in range(CANDIDATES):
        there = others[rng.integers(len(others))] * ratios(rng, runs)
        estimate = whole * float((share * there[chosen] / reference).sum()) / float(share.sum())
        errors.append(estimate / float(there.sum()) - 1.0)
    return errors


def evaluate(runs: RecordedRuns, seeds: Sequence[int]) -> dict[str, dict[str, float]]:
    """By method: mean number of phases, and root mean square errors (`direct`, and of each of KINDS) over the seeds and
    training runs."""
    found: dict[str, dict[str, list[float]]] = {
        method: {key: [] for key in ("phases", "direct", *KINDS)} for method in METHODS
    }
    for seed in seeds:
        for training in range(min(TRAINING, len(runs.seconds) - 1)):
            for method, selection in selections(runs, training, seed).items():
                of_method = found[method]
                of_method["phases"].append(len(selection.phases))
                of_method["direct"] += direct_errors(runs, selection, training)
                for kind, ratios in KINDS.items():
                    rng = np.random.default_rng([seed, training])
                    of_method[kind] += candidate_errors(runs, selection, training, ratios, rng)
    return {
        method: {
            key: statistics.fmean(values) if key == "phases" else float(np.sqrt(np.mean(np.square(values))))
            for key, values in keys.items()
        }
        for method, keys in found.items()
    }


def report(found: dict[str, Any]) -> str:
    """Tables as Markdown: for each program and method phases and errors in percent; then median and worst."""
    columns = ("phases", "direct", *KINDS)
    lines = [f"| program | selection | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]

    def cell(key: str, value: float) -> str:
        return f"{value:.0f}" if key == "phases" else f"{100 * value:.1f}"

    for name, methods in found["programs"].items():
        for method, errors in methods.items():
            lines.append(f"| {name} | {method} | {' | '.join(cell(k, errors[k]) for k in columns)} |")
    for method in METHODS if found["programs"] else ():
        for what, of in (("median", statistics.median), ("worst", max)):
            values = {k: of(one[method][k] for one in found["programs"].values()) for k in columns}
            lines.append(f"| **{what}** | {method} | {' | '.join(cell(k, values[k]) for k in columns)} |")
    return "\n".join([*lines, *(f"- {name}: {said}" for name, said in found["failures"].items())])
