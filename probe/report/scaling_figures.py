# SPDX-License-Identifier: Apache-2.0
"""Figures of scaling: fits with their runs, strong scaling by type of nodes, time by kernel, energy, wait and run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter

from probe.applications.application import Application
from probe.report.drawing import COLOURS, FAINT, INK, MARKERS, OTHER, Drawing, blank
from probe.scaling.asking import ScalingFit, ScalingPrediction
from probe.scaling.judging import EXTRAPOLATION_WARNED
from probe.scaling.model import KernelModel

_POINTS = 25
_DRAWS = 1000
_HEIGHT = 3.6


@dataclass(frozen=True)
class DrawnScaling:
    """Figures of an application, the curves in them, and what could not be predicted, with the reasons."""

    application: Application
    fitted: ScalingFit
    drawings: tuple[Drawing, ...]
    refused: tuple[str, ...]

    @property
    def warnings(self) -> list[str]:
        """Of the types of nodes, and of every curve by its name."""
        models = self.fitted.models
        return [*self.fitted.warnings, *(f"{model.name}: {said}" for model in models for said in model.warnings)]


def scaling_figures(
    application: Application, fitted: ScalingFit, predictions: Sequence[ScalingPrediction], waits: dict[str, float]
) -> list[Drawing]:
    """All figures. waits: seconds in the queue by type of nodes, for the last one."""
    drawings = [_fit(model, number) for number, model in enumerate(fitted.models)]
    drawings.append(_strong(application, predictions))
    drawings += [_kernels(kind, _of(predictions, kind)) for kind in _types(predictions)]
    return [*drawings, _energy(application, predictions), _waits(application, predictions, waits)]


def _types(predictions: Sequence[ScalingPrediction]) -> list[str]:
    return sorted({one.node_type for one in predictions})


def _of(predictions: Sequence[ScalingPrediction], node_type: str) -> list[ScalingPrediction]:
    return sorted((one for one in predictions if one.node_type == node_type), key=lambda one: one.cores)


def _fit(model: KernelModel, number: int) -> Drawing:
    """Curves over runs, for one unit of work, with the interval of a further run."""
    low, high = model.sizes[0], model.sizes[-1] * EXTRAPOLATION_WARNED
    x = np.unique(np.geomspace(max(low, 1), high, _POINTS))
    figure, axes = blank(_HEIGHT, 1, len(model.parts), squeeze=False)
    rows: list[tuple[Any, ...]] = []
    for place, (part, curve) in enumerate(model.parts.items()):
        here, colour = axes[0][place], COLOURS[place % len(COLOURS)]
        inside = x[x > 1] if part == "mpi" else x
        draws = curve.draws(inside, _DRAWS, np.random.default_rng(number))
        lower, upper = np.percentile(draws, [2.5, 97.5], axis=0)
        here.fill_between(inside, lower, upper, color=colour, alpha=0.2, linewidth=0, label="95 % of further runs")
        here.plot(inside, curve(inside), color=colour, label=str(curve))
        here.plot(curve.x, curve.times, linestyle="", marker=MARKERS[0], color=INK, markersize=4, label="runs")
        here.axvline(model.sizes[-1], color=FAINT, linestyle=":")
        _cores_axis(here)
        if (curve.times > 0).all():
            _log_seconds(here)
        here.set_title(part)
        here.set_ylabel("seconds for one unit of work" if place == 0 else "")
        here.legend(fontsize=7)
        values = zip(inside, curve(inside), lower, upper, strict=True)
        rows += [(part, "curve", *(float(value) for value in row)) for row in values]
        rows += [(part, "run", float(n), float(t), "", "") for n, t in zip(curve.x, curve.times, strict=True)]
    name = f"fit-{model.kernel}-{_file_name(model.node_type)}"
    caption = (
        f"{len(model.runs)} runs on {', '.join(map(str, model.sizes))} cores. Right of the dotted line the curve is "
        "extrapolated."
    )
    header = ("part", "what", "cores", "seconds_per_work", "low", "high")
    return Drawing(name, f"Fit of {model.kernel} on {model.node_type}", caption, figure, header, rows)


def _strong(application: Application, predictions: Sequence[ScalingPrediction]) -> Drawing:
    figure, axes = blank(_HEIGHT)
    for number, kind in enumerate(_types(predictions)):
        found, colour = _of(predictions, kind), COLOURS[number % len(COLOURS)]
        x = [one.cores for one in found]
        axes.fill_between(
            x, [one.low for one in found], [one.high for one in found], color=colour, alpha=0.2, linewidth=0
        )
        axes.plot(x, [one.seconds for one in found], marker=MARKERS[number % len(MARKERS)], color=colour, label=kind)
        ideal = [found[0].seconds * found[0].cores / cores for cores in x]
        axes.plot(x, ideal, color=colour, linestyle=":", linewidth=0.8)
    _cores_axis(axes)
    _log_seconds(axes)
    axes.set_ylabel("seconds")
    axes.legend()
    rows = [(one.node_type, one.cores, one.seconds, one.low, one.high) for one in predictions]
    caption = "Predicted time of the whole with its 95 % interval; dotted: as fast as cores were added."
    header = ("node_type", "cores", "seconds", "low", "high")
    return Drawing("strong-scaling", f"Strong scaling of {application.name}", caption, figure, header, rows)


def _kernels(kind: str, found: Sequence[ScalingPrediction]) -> Drawing:
    figure, axes = blank(_HEIGHT)
    places = np.arange(len(found))
    bottom = np.zeros(len(found))
    for number, name in enumerate(one.kernel for one in found[0].kernels):
        heights = np.array([p.kernels[number].predicted.seconds for p in found])
        axes.bar(places, heights, bottom=bottom, color=COLOURS[number % len(COLOURS)], label=name)
        bottom += heights
    axes.set_xticks(places, [str(one.cores) for one in found])
    axes.set_xlabel("cores")
    axes.set_ylabel("seconds")
    axes.legend()
    rows = [(p.cores, k.kernel, k.predicted.seconds) for p in found for k in p.kernels]
    caption = "Predicted time by kernel, one above the other, whichever run side by side."
    header = ("cores", "kernel", "seconds")
    return Drawing(f"kernels-{_file_name(kind)}", f"Kernels on {kind}", caption, figure, header, rows)


def _energy(application: Application, predictions: Sequence[ScalingPrediction]) -> Drawing:
    known = [one for one in predictions if one.energy is not None]
    title = f"Energy to solution of {application.name}"
    if not known:
        return Drawing("energy", title, "No power is known of these types: `probe energy set` enters it.", None)
    figure, axes = blank(_HEIGHT)
    rows = []
    for number, kind in enumerate(_types(known)):
        found = _of(known, kind)
        joules = [one.energy.share for one in found if one.energy]
        sources = ", ".join(sorted({one.energy.source for one in found if one.energy}))
        axes.plot(
            [one.cores for one in found], joules, marker=MARKERS[number % len(MARKERS)],
            color=COLOURS[number % len(COLOURS)], label=f"{kind}, by {sources}",
        )  # fmt: skip
        rows += [(kind, p.cores, p.energy.share, p.energy.whole, p.energy.source) for p in found if p.energy]
    _cores_axis(axes)
    axes.set_ylabel("joules")
    axes.set_ylim(bottom=0)
    axes.legend()
    header = ("node_type", "cores", "joules", "joules_of_nodes", "source")
    return Drawing("energy", title, "Joules of the cores used, and where the watts come from.", figure, header, rows)


def _waits(application: Application, predictions: Sequence[ScalingPrediction], waits: dict[str, float]) -> Drawing:
    title = f"Wait and run of {application.name}"
    kinds = [kind for kind in _types(predictions) if kind in waits]
    if not kinds:
        return Drawing("wait-and-run", title, "No run in the store has a wait, and none was given.", None)
    found = [one for kind in kinds for one in _of(predictions, kind)]
    figure, axes = blank(_HEIGHT)
    places = np.arange(len(found))
    waited = np.array([waits[one.node_type] for one in found])
    took = np.array([one.seconds for one in found])
    axes.bar(places, waited, color=OTHER, label="waits")
    low = took - np.array([one.low for one in found])
    high = np.array([one.high for one in found]) - took
    axes.bar(places, took, bottom=waited, color=COLOURS[0], yerr=np.maximum([low, high], 0), ecolor=INK, label="runs")
    axes.set_xticks(places, [f"{one.node_type}\n{one.cores}" for one in found], fontsize=7)
    axes.set_ylabel("seconds")
    axes.legend()
    rows = [(one.node_type, one.cores, waits[one.node_type], one.seconds, one.low, one.high) for one in found]
    header = ("node_type", "cores", "wait", "seconds", "low", "high")
    caption = "Seconds in the queue, and then of the run with its 95 % interval."
    return Drawing("wait-and-run", title, caption, figure, header, rows)


def _log_seconds(axes: Any) -> None:
    """Plain numbers: letters of mathematics are switched off (drawing.py)."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(_few_labels))


def _few_labels(value: float, _position: int) -> str:
    """2 and 5 of a decade."""
    digit = round(value / 10 ** np.floor(np.log10(value)))
    return f"{value:g}" if digit in (2, 5) else ""


def _cores_axis(axes: Any) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("cores")


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "-" for c in text)
