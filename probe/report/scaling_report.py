# SPDX-License-Identifier: Apache-2.0
"""A report on scaling from beginning to end: asked of the store alone, drawn, written as files and as a page."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint.errors import NoPrediction, NotInStore, Unpredictable
from probe.applications.application import Application
from probe.report.drawing import style
from probe.report.figure_files import write_drawings, write_file
from probe.report.page import picture
from probe.report.scaling_figures import DrawnScaling, scaling_figures
from probe.report.templates import templates
from probe.scaling.asking import Question, ScalingFit, ScalingPrediction, fit_application, predict_application
from probe.scaling.forms import LEAST_SIZES
from probe.scaling.judging import EXTRAPOLATION_WARNED
from probe.store.opening import Store
from probe.store.runs import stored_runs
from reducer.output_file import check_target


@dataclass(frozen=True)
class ScalingReport:
    """What was written, and what could not be predicted, with the reasons."""

    page: Path | None
    files: tuple[Path, ...]
    refused: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md says of `probe scale plot`."""
        page = str(self.page) if self.page is not None else None
        return {"page": page, "files": [str(path) for path in self.files], "refused": list(self.refused)}


def write_scaling_report(
    store: Store,
    application: Application,
    settings: Mapping[str, float],
    *,
    cores: Sequence[int] = (),
    page: Path | None = None,
    figures: Path | None = None,
    form: str = "png",
    waits: Mapping[str, float] | None = None,
) -> ScalingReport:
    """Draw the application's runs and predictions on every type of nodes that has them.

    cores: numbers of cores, as far as each type allows (default: those measured, and twice the largest). form: of the
    pictures in `figures`, "png" or "svg". waits: seconds by type, in place of the median of the runs'. Raises
    Unpredictable where there is nothing to draw, StorageError.
    """
    if page is not None:
        check_target(page)
    with style():
        drawn = draw_scaling(store, application, settings, cores=cores, waits=waits)
        files = write_drawings(drawn.drawings, figures, form) if figures is not None else []
        if page is not None:
            text = _page(drawn)
            write_file(page, lambda out: out.write(text.encode("utf-8", "replace")))
    return ScalingReport(page, tuple(files), drawn.refused)


def draw_scaling(
    store: Store,
    application: Application,
    settings: Mapping[str, float],
    *,
    cores: Sequence[int] = (),
    waits: Mapping[str, float] | None = None,
) -> DrawnScaling:
    """As `write_scaling_report`, inside `style()`. Raises Unpredictable where there is nothing to draw."""
    fitted = fit_application(store, application)
    predictions, refused = _predictions(store, application, fitted, settings, cores)
    if not predictions:
        raise Unpredictable("; ".join(refused))
    known = _waits(store, application) | dict(waits or {})
    drawings = scaling_figures(application, fitted, predictions, known)
    return DrawnScaling(application, fitted, tuple(drawings), tuple(refused))


def _predictions(
    store: Store, application: Application, fitted: ScalingFit, settings: Mapping[str, float], cores: Sequence[int]
) -> tuple[list[ScalingPrediction], list[str]]:
    found = []
    refused = [f"{one.kernel} on {one.node_type or 'any type'}: {one.reason}" for one in fitted.refused]
    for kind in sorted({model.node_type for model in fitted.models}):
        models = [model for model in fitted.models if model.node_type == kind]
        if len(models) < len(application.kernels):
            refused.append(f"{kind}: not all kernels of {application.name} have curves there")
            continue
        largest = int(EXTRAPOLATION_WARNED * min(model.sizes[-1] for model in models))
        wanted = cores or sorted({size for model in models for size in model.sizes} | {largest})
        try:
            reachable = [n for n in wanted if n <= largest] or list(wanted)[:LEAST_SIZES]
            found += predict_application(store, application, Question(kind, settings), reachable)
        except (Unpredictable, NoPrediction, NotInStore) as error:
            refused.append(str(error))
    return found, refused


def _waits(store: Store, application: Application) -> dict[str, float]:
    """Median wait of runs, by type of nodes."""
    by_type: dict[str, list[float]] = {}
    for run in stored_runs(store, app=application.name):
        if run.wait is not None:
            by_type.setdefault(run.node_type, []).append(run.wait)
    return {kind: statistics.median(values) for kind, values in by_type.items()}


def _page(drawn: DrawnScaling) -> str:
    pictures = [picture(one) for one in drawn.drawings]
    return templates().get_template("scaling.html").render(scaling=drawn, scaling_pictures=pictures)
