# SPDX-License-Identifier: Apache-2.0
"""Models of kernels on a type of nodes: computing, MPI and the rest over numbers of cores, for one unit of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from checkpoint.errors import Unpredictable
from probe.applications.network import Bandwidths, Steps
from probe.formats.arrays import FloatArray
from probe.scaling.fitting import Curve, fit
from probe.scaling.forms import (
    COMPUTING,
    CONSTANT,
    LEAST_SIZES,
    QUADRATIC,
    RIVAL_SIZES,
    Form,
    mpi_form,
    possible_computing_forms,
    possible_mpi_forms,
    rivals,
    volume_forms,
    whole_form,
)
from probe.scaling.judging import doubts_of_distance, doubts_of_work, judge, usual_power, whole_seconds
from probe.store.parallel_run import ParallelRun

COMPUTING_PART, MPI_PART, REST_PART, WHOLE_PART = "computing", "mpi", "rest", "whole"
CHOSEN, PAPER, RIVAL = "chosen", "paper", "rival"
FORMS: Final = (CHOSEN, PAPER, RIVAL)
"""Which forms may be taken: the better one, those of ComPat, or the normal form."""

DRAWS = 1000
_INTERVAL = (2.5, 97.5)
_SEED = 1


@dataclass(frozen=True)
class Predicted:
    """Seconds of a run on `cores` cores with a 95 % interval; `parts`: seconds by part. draws: what it is from."""

    cores: int
    work: float
    seconds: float
    low: float
    high: float
    parts: Mapping[str, float]
    warnings: tuple[str, ...]
    draws: FloatArray


@dataclass(frozen=True)
class KernelModel:
    """Fitted curves of one kernel on one type of nodes. Times of `parts` are seconds for one unit of work.

    watts: per core, median of runs with energy, and its source; None without any. factors: by part, what its time is
    multiplied by, and the relative standard error of that: where probes, not runs, tell of this type of nodes.
    steps: of the network, which the MPI curve is free of; None where these are unknown.
    """

    app: str
    kernel: str
    node_type: str
    parts: Mapping[str, Curve]
    runs: tuple[ParallelRun, ...]
    warnings: tuple[str, ...]
    watts: tuple[float, str] | None
    factors: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    steps: Steps | None = None

    @property
    def name(self) -> str:
        return f"{self.app}.{self.kernel} on {self.node_type}"

    @property
    def sizes(self) -> list[int]:
        """Numbers of cores that were measured."""
        return sorted({run.cores for run in self.runs})

    def predict(
        self,
        cores: int,
        work: float,
        *,
        mpi_seconds: float | None = None,
        draws: int = DRAWS,
        seed: int = _SEED,
    ) -> Predicted:
        """Time on `cores` cores for this work. Raises Unpredictable where that is too far from what was measured.

        mpi_seconds: MPI time of this run in place of the curve's, as of a simulated network.
        """
        x = np.array([float(cores)])
        warnings = [*self.warnings, *doubts_of_distance([cores], self.sizes, self.name)]
        warnings += doubts_of_work(self.runs, self.fitted_seconds(), work)
        parts: dict[str, float] = {}
        generator = np.random.default_rng(seed)
        made = np.zeros(draws)
        for name, curve in self.parts.items():
            factor, error = self._factor(name, x)
            parts[name] = 0.0 if _serial(name, cores) else work * factor * float(curve(x)[0])
            drawn = curve.draws(x, draws, generator)[:, 0] * np.exp(error * generator.standard_normal(draws))
            if name == MPI_PART and mpi_seconds is not None:
                parts[name] = mpi_seconds
                made += mpi_seconds
            elif not _serial(name, cores):
                made += work * factor * drawn
        low, high = (float(value) for value in np.percentile(made, _INTERVAL))
        seconds = sum(parts.values())
        said = tuple(dict.fromkeys(warnings))
        return Predicted(cores, work, seconds, min(low, seconds), max(high, seconds), parts, said, made)

    def fitted_seconds(self) -> FloatArray:
        """Seconds of each run by the curves."""
        x = np.array([float(run.cores) for run in self.runs])
        work = np.array([run.work for run in self.runs])
        total = np.zeros(len(x))
        for name, curve in self.parts.items():
            slower = self.steps(x) if self.steps and name == MPI_PART else 1.0
            total += np.where((x == 1) & (name == MPI_PART), 0.0, work * slower * curve(x))
        return total

    def part_seconds(self, part: str, cores: int, work: float) -> float:
        """Seconds of one part on `cores` cores, however far that is from those measured."""
        x = np.array([float(cores)])
        factor, _ = self._factor(part, x)
        return 0.0 if _serial(part, cores) else work * factor * float(self.parts[part](x)[0])

    def _factor(self, part: str, x: FloatArray) -> tuple[float, float]:
        """What a curve is multiplied by at one number of cores, and the relative error of that."""
        factor, error = self.factors.get(part, (1.0, 0.0))
        return factor * (float(self.steps(x)[0]) if self.steps and part == MPI_PART else 1.0), error

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md says of `probe scale fit`."""
        return {
            "app": self.app,
            "kernel": self.kernel,
            "node_type": self.node_type,
            "runs": len(self.runs),
            "sizes": self.sizes,
            "parts": [
                {
                    "part": name,
                    "form": curve.form.name,
                    "curve": str(curve),
                    "coefficients": [
                        {"term": str(term), "value": float(value)}
                        for term, value in zip(curve.form.terms, curve.coefficients, strict=True)
                    ],
                    "left_out_error": curve.error,
                    "noise": curve.noise,
                    "errors": [{"form": form, "error": error} for form, error in curve.errors.items()],
                }
                for name, curve in self.parts.items()
            ],
            "watts_per_core": self.watts[0] if self.watts else None,
            "energy_source": self.watts[1] if self.watts else "",
            "warnings": list(self.warnings),
        }


def _serial(part: str, cores: int) -> bool:
    """On one core nobody communicates."""
    return part == MPI_PART and cores == 1


def fit_kernel(
    runs: Sequence[ParallelRun], *, forms: str = CHOSEN, bandwidths: Bandwidths | None = None
) -> KernelModel:
    """Fit the curves of one kernel on one type of nodes. Raises Unpredictable for runs that allow none.

    bandwidths: of its network, whose steps are then no part of the MPI curve.
    """
    if not runs:
        raise Unpredictable("no runs of this kernel on this type of nodes; run it with `probe bench`, or import runs")
    first = runs[0]
    what = f"{first.app}.{first.kernel} on {first.node_type}"
    judged = judge(runs, what)
    warnings = list(judged.warnings)
    usable, steps = judged.runs, None
    split = [run for run in usable if run.mpi is not None]
    if len({run.cores for run in split}) >= LEAST_SIZES:
        if len(split) < len(usable):
            warnings.append(f"{len(usable) - len(split)} runs without MPI times are left out")
        usable = tuple(split)
        steps = None if bandwidths is None else _steps(bandwidths, usable, what)
        parts = _parts(usable, forms, steps)
    elif bandwidths is not None:
        raise Unpredictable(f"{what}: MPI times were not measured, so that the network's steps say nothing of them")
    else:
        warnings.append("MPI times were not measured: the run time is fitted as a whole, and extrapolates worse")
        parts = {WHOLE_PART: _curve(usable, lambda run: run.runtime, _whole_choice, forms)}
    power = usual_power(usable)
    made = KernelModel(first.app, first.kernel, first.node_type, parts, usable, (), power, steps=steps)
    return replace(made, warnings=tuple([*warnings, *doubts_of_work(usable, made.fitted_seconds())]))


def _steps(bandwidths: Bandwidths, runs: Sequence[ParallelRun], what: str) -> Steps | None:
    """Of the network under these runs; None where nothing is sent. Raises Unpredictable without sizes of messages."""
    sizes: dict[int, list[float]] = {}
    for run in runs:
        if run.cores > 1 and run.mpi:
            if not (size := run.message):
                raise Unpredictable(
                    f"{what}: a run on {run.cores} cores has no size of messages; make runs with `probe bench`, which "
                    "measures it, or leave the network out"
                )
            sizes.setdefault(run.cores, []).append(size)
    if not sizes:
        return None
    cores = sorted(sizes)
    middle = [float(np.median(sizes[number])) for number in cores]
    return Steps(bandwidths, np.array(cores, dtype=np.float64), np.array(middle))


def _parts(runs: Sequence[ParallelRun], forms: str, steps: Steps | None) -> dict[str, Curve]:
    falling = possible_computing_forms()
    found = {COMPUTING_PART: _curve(runs, lambda run: run.computing or 0.0, _computing_choice, forms, falling)}
    parallel = [run for run in runs if run.cores > 1]
    if any(run.mpi for run in parallel):
        sizes = len({run.cores for run in parallel})
        choice = _mpi_choice if sizes >= LEAST_SIZES else _constant_choice
        slower = {run.cores: float(steps(np.array([float(run.cores)]))[0]) if steps else 1.0 for run in parallel}
        found[MPI_PART] = _curve(
            parallel, lambda run: (run.mpi or 0.0) / slower[run.cores], choice, forms, possible_mpi_forms()
        )
    if any(run.io or run.coupling for run in runs):
        found[REST_PART] = _curve(runs, lambda run: (run.io or 0.0) + (run.coupling or 0.0), _constant_choice, forms)
    return found


def _curve(
    runs: Sequence[ParallelRun],
    seconds: Callable[[ParallelRun], float],
    choice: Callable[[int, str], list[Form]],
    forms: str,
    possible: Sequence[Form] = (),
) -> Curve:
    x = np.array([float(run.cores) for run in runs])
    work = np.array([run.work for run in runs])
    times = np.array([seconds(run) for run in runs]) / work
    rounding = 0.5 / work if whole_seconds(runs) else np.zeros(len(runs))
    sizes = len(np.unique(x))
    return fit(x, times, choice(sizes, forms), rounding, possible)


def _chosen(paper: Form, falling: bool, sizes: int, forms: str) -> list[Form]:
    if forms == PAPER or sizes < RIVAL_SIZES:
        return [paper]
    return [*([paper] if forms == CHOSEN else []), *rivals(falling)]


def _computing_choice(sizes: int, forms: str) -> list[Form]:
    return _chosen(COMPUTING, True, sizes, forms)


def _mpi_choice(sizes: int, forms: str) -> list[Form]:
    found = _chosen(mpi_form(sizes), False, sizes, forms)
    return found if forms == PAPER else [*found, *volume_forms(sizes)]


def _whole_choice(sizes: int, forms: str) -> list[Form]:
    return _chosen(whole_form(sizes), True, sizes, forms)


def _constant_choice(_sizes: int, _forms: str) -> list[Form]:
    return [CONSTANT]


def quadratic_curve(x: FloatArray, times: FloatArray) -> Curve:
    """What the paper compares its MPI form with."""
    return fit(x, times, [QUADRATIC])
