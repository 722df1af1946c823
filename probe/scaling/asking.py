# SPDX-License-Identifier: Apache-2.0
"""Answers from the store: models of an application's kernels, and predictions for one type of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkpoint.errors import NotInStore, ProbeError, Unpredictable
from probe.applications.application import SHARED, Application, Kernel
from probe.applications.composition import FARM, PARALLEL, REPLICA, Composed
from probe.applications.inputs import configuration
from probe.applications.network import Bandwidths
from probe.formats.arrays import FloatArray
from probe.scaling.energy import Joules, composed_joules, of_cores, of_power
from probe.scaling.joining import joined, probe_ratio
from probe.scaling.judging import doubts_of_types
from probe.scaling.model import CHOSEN, KernelModel, Predicted, fit_kernel
from probe.store.opening import Store
from probe.store.parallel_run import ParallelRun
from probe.store.runs import NodePower, stored_power, stored_runs

_INTERVAL = (2.5, 97.5)


@dataclass(frozen=True)
class Refused:
    """A kernel on a type of nodes without a model, and why."""

    kernel: str
    node_type: str
    reason: str


@dataclass(frozen=True)
class ScalingFit:
    """Models of kernels by type of nodes, those that there are none of, and doubts about comparing types."""

    models: tuple[KernelModel, ...]
    refused: tuple[Refused, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md says of `probe scale fit`."""
        return {
            "models": [model.to_json() for model in self.models],
            "refused": [vars(one) for one in self.refused],
            "warnings": list(self.warnings),
        }


def fit_application(
    store: Store,
    application: Application,
    *,
    kernels: Sequence[str] = (),
    node_type: str | None = None,
    forms: str = CHOSEN,
) -> ScalingFit:
    """Fit every kernel (or those named) on every type of nodes (or one) that has runs.

    Raises Unpredictable, with the reasons, where not one can be fitted; ProbeError for an unknown kernel.
    """
    wanted = [application.kernel(name).name for name in kernels] or list(application.kernels)
    models, refused, warnings = [], [], []
    for name in wanted:
        found = stored_runs(store, app=application.name, kernel=name, node_type=node_type)
        types = sorted({run.node_type for run in found})
        if not types:
            refused.append(Refused(name, node_type or "", "no runs; make some with `probe bench`, or import them"))
        for kind in types:
            try:
                models.append(fit_kernel([run for run in found if run.node_type == kind], forms=forms))
            except Unpredictable as error:
                refused.append(Refused(name, kind, str(error)))
        warnings += [f"{name}: {doubt}" for doubt in doubts_of_types(found)]
    if not models:
        raise Unpredictable("; ".join(f"{one.kernel}: {one.reason}" for one in refused))
    return ScalingFit(tuple(models), tuple(refused), tuple(warnings))


@dataclass(frozen=True)
class KernelPrediction:
    """One kernel of a prediction. energy: None where nothing is known of this type's power."""

    kernel: str
    predicted: Predicted
    energy: Joules | None

    def to_json(self) -> dict[str, Any]:
        p = self.predicted
        return {
            "kernel": self.kernel,
            "work": p.work,
            "seconds": p.seconds,
            "low": p.low,
            "high": p.high,
            "parts": [{"part": name, "seconds": value} for name, value in p.parts.items()],
            **energy_json(self.energy),
            "warnings": list(p.warnings),
        }


@dataclass(frozen=True)
class ScalingPrediction:
    """The whole application on `cores` cores of one type, each kernel on all of them.

    `parallel` kernels have `cores` each.
    """

    node_type: str
    cores: int
    seconds: float
    low: float
    high: float
    kernels: tuple[KernelPrediction, ...]
    energy: Joules | None

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md says of `probe scale predict`."""
        return {
            "node_type": self.node_type,
            "cores": self.cores,
            "seconds": self.seconds,
            "low": self.low,
            "high": self.high,
            **energy_json(self.energy),
            "kernels": [one.to_json() for one in self.kernels],
        }


def energy_json(energy: Joules | None) -> dict[str, Any]:
    """Keys of energy, as in docs/json.md."""
    return {
        "joules": energy.share if energy else None,
        "joules_of_nodes": energy.whole if energy else None,
        "energy_source": energy.source if energy else "",
        "energy_how": energy.how if energy else "",
    }


@dataclass(frozen=True)
class Question:
    """What to predict. like: type of nodes whose curves are joined with probes where `node_type` has none of its own.

    mpi_seconds: of each kernel, in place of the curve's, as of a simulated network. kernels: all where empty.
    bandwidths: of the network that the runs had, which the predicted ones have, too.
    """

    node_type: str
    settings: Mapping[str, float]
    like: str | None = None
    mpi_seconds: float | None = None
    forms: str = CHOSEN
    kernels: tuple[str, ...] = ()
    bandwidths: Bandwidths | None = None


def model_for(store: Store, application: Application, kernel: Kernel, asked: Question) -> KernelModel:
    """The kernel's model of the type asked for, its own or joined with probes. Raises Unpredictable, NotInStore."""
    own = stored_runs(store, app=application.name, kernel=kernel.name, node_type=asked.node_type)
    if asked.like is None:
        return _fitted(own, application, kernel, asked.node_type, asked)
    if not kernel.probe:
        raise ProbeError(f'[kernel.{kernel.name}] names no probe; joining needs one: probe = "NAME"')
    base = stored_runs(store, app=application.name, kernel=kernel.name, node_type=asked.like)
    model = _fitted(base, application, kernel, asked.like, asked)
    return joined(model, probe_ratio(store, kernel.probe, asked.like, asked.node_type), own)


def _fitted(
    runs: Sequence[ParallelRun], application: Application, kernel: Kernel, node_type: str, asked: Question
) -> KernelModel:
    if not runs:
        raise Unpredictable(
            f"{application.name}.{kernel.name}: no runs on {node_type}; run it there with `probe bench`, import runs, "
            "or join another type's curve with a probe (--like)"
        )
    return fit_kernel(runs, forms=asked.forms, bandwidths=asked.bandwidths)


def predict_application(
    store: Store, application: Application, asked: Question, cores: Iterable[int]
) -> list[ScalingPrediction]:
    """One prediction for each number of cores. Raises Unpredictable, NotInStore, NoPrediction, ProbeError."""
    found = predict_where_possible(store, application, asked, cores)
    if found.refused:
        raise Unpredictable(found.refused[0].reason)
    return list(found.predictions)


@dataclass(frozen=True)
class RefusedSize:
    """A number of cores without a prediction, and why."""

    cores: int
    reason: str


@dataclass(frozen=True)
class ScalingAnswer:
    """Predictions by number of cores, and the numbers that there is none for."""

    predictions: tuple[ScalingPrediction, ...]
    refused: tuple[RefusedSize, ...]

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md says of `probe scale predict`."""
        return {
            "predictions": [one.to_json() for one in self.predictions],
            "refused": [vars(one) for one in self.refused],
        }


def predict_where_possible(
    store: Store, application: Application, asked: Question, cores: Iterable[int]
) -> ScalingAnswer:
    """Predictions for the numbers of cores that are near enough to those measured.

    Raises Unpredictable where not one is, NotInStore, NoPrediction, ProbeError.
    """
    wanted = [application.kernel(name) for name in asked.kernels] or list(application.kernels.values())
    unknown = set(asked.settings) - {name for kernel in wanted for name in kernel.parameters}
    if unknown:
        raise ProbeError(f"--set {sorted(unknown)[0]}: no kernel has such a parameter")
    models = {}
    for kernel in wanted:
        own = {name: value for name, value in asked.settings.items() if name in kernel.parameters}
        found = configuration(application, kernel, own)
        models[kernel.name] = model_for(store, application, kernel, asked), found
    values = {name: value for _, found in models.values() for name, value in found.parameters.items()}
    power = power_of(store, asked.node_type)
    made: list[ScalingPrediction] = []
    refused: list[RefusedSize] = []
    for number in sorted(cores):
        try:
            made.append(_prediction(application, asked, number, models, {**values, **asked.settings}, power))
        except Unpredictable as error:
            refused.append(RefusedSize(number, str(error)))
    if refused and not made:
        raise Unpredictable(refused[0].reason)
    return ScalingAnswer(tuple(made), tuple(refused))


def power_of(store: Store, node_type: str) -> NodePower | None:
    """The most trusted power of a type; None where there is none."""
    try:
        return stored_power(store, node_type)[0]
    except NotInStore:
        return None


def _prediction(
    application: Application,
    asked: Question,
    cores: int,
    models: Mapping[str, Any],
    values: Mapping[str, float],
    power: NodePower | None,
) -> ScalingPrediction:
    kernels = []
    for position, (name, (model, found)) in enumerate(models.items()):
        predicted = model.predict(cores, found.work, mpi_seconds=asked.mpi_seconds, seed=1 + position)
        kernels.append(KernelPrediction(name, predicted, joules(model, power, cores, predicted.seconds)))
    if asked.kernels:
        one = kernels[0].predicted
        draws = sum((k.predicted.draws for k in kernels), np.zeros_like(one.draws))
        seconds = sum(k.predicted.seconds for k in kernels)
    else:
        times = {k.kernel: k.predicted.seconds for k in kernels}
        seconds = float(composed_seconds(application.graph, {n: np.array([t]) for n, t in times.items()}, values)[0])
        draws = composed_seconds(application.graph, {k.kernel: k.predicted.draws for k in kernels}, values)
    low, high = (float(value) for value in np.percentile(draws, _INTERVAL))
    return ScalingPrediction(
        asked.node_type, cores, seconds, min(low, seconds), max(high, seconds), tuple(kernels),
        _together(kernels, None if asked.kernels else application, values),
    )  # fmt: skip


def joules(model: KernelModel, power: NodePower | None, cores: int, seconds: float) -> Joules | None:
    """By watts per core of the kernel's own runs, else by the power of nodes of its type; None without either."""
    if model.watts is not None:
        return of_cores(*model.watts, cores, seconds, power.cores if power else None)
    return of_power(power, cores, seconds) if power is not None else None


def _together(
    kernels: Sequence[KernelPrediction], application: Application | None, values: Mapping[str, float]
) -> Joules | None:
    """Of the whole application, or the sum of these kernels without one; None where one of them is not known."""
    known = {one.kernel: one.energy for one in kernels if one.energy is not None}
    if len(known) < len(kernels):
        return None
    sources = ", ".join(sorted({one.source for one in known.values()}))
    if application is None:
        whole, share = sum(one.whole for one in known.values()), sum(one.share for one in known.values())
        return Joules(whole, share, sources, "sum of the kernels")
    whole, share = composed_joules(application.graph, known, values, application.nodes == SHARED)
    return Joules(whole, share, sources, f"kernels as {application.graph}, nodes {application.nodes}")


def composed_seconds(graph: Composed, seconds: Mapping[str, FloatArray], values: Mapping[str, float]) -> FloatArray:
    """Time of the whole by the kernels' times, arrays of one shape: loops multiply, parallel parts overlap.

    A farm has its copies one after the other here; `probe plan` gives it more places.
    """
    if not graph.kind:
        return seconds[graph.name]
    parts = [composed_seconds(part, seconds, values) for part in graph.parts]
    if graph.kind == PARALLEL:
        longest: FloatArray = np.maximum.reduce(parts)
        return longest
    times = 1 if graph.kind == REPLICA else graph.times(values)
    assert graph.kind != FARM or len(parts) == 1
    total: FloatArray = times * np.sum(parts, axis=0)
    return total
