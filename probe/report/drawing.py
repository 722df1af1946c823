# SPDX-License-Identifier: Apache-2.0
"""Common parts of every figure: its data, its colours, and how it becomes SVG, PNG and CSV. Needs no display."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from probe.formats.arrays import FloatArray
from probe.formats.phase_record import PhaseRecord

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Okabe and Ito's, told apart by people who are colour-blind; the palest last."""

OTHER, DROPPED, INK, FAINT = "#8c8c8c", "#dcdcdc", "#222222", "#c8c8c8"

MARKERS = ("o", "s", "^", "D", "v", "P", "X")

WIDTH = 9.2
"""Inches of every figure."""

MOST_VECTOR_MARKS = 1500
"""Marks that are still drawn one by one in an SVG; more become a picture inside it."""

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    # Names and arguments are text, whatever signs of mathematics they hold.
    "text.parse_math": False,
    "svg.fonttype": "path",
    # Equal data give equal files.
    "svg.hashsalt": "probe",
}
_PNG_DPI = 150
_SVG_DPI = 110


@dataclass(frozen=True)
class Drawing:
    """One figure. `header` and `rows` are its data in full, also what the picture draws together.

    name: of its files. caption: what it shows, with numbers. figure: None where there is nothing to draw; the caption
    then says why.
    """

    name: str
    title: str
    caption: str
    figure: Figure | None = field(repr=False)
    header: tuple[str, ...] = ()
    rows: Sequence[Sequence[Any]] = field(default=(), repr=False)

    def write_csv(self, out: TextIO) -> None:
        """The data, one line per row under the header; times in seconds, shares as fractions."""
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows([_cell(value) for value in row] for row in self.rows)

    def png(self) -> bytes:
        """The picture, 1,380 pixels wide."""
        return self._saved(FigureCanvasAgg, "png", _PNG_DPI)

    def svg(self) -> bytes:
        """The picture, self-contained: letters are shapes, and no date is in it."""
        return self._saved(FigureCanvasSVG, "svg", _SVG_DPI)

    def _saved(self, canvas: Any, form: str, dpi: int) -> bytes:
        assert self.figure is not None, "there is nothing to draw"
        out = io.BytesIO()
        metadata: dict[str, Any] = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
        with _quiet():
            canvas(self.figure).print_figure(out, format=form, dpi=dpi, metadata=metadata)
        return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if value != value else f"{value:.9g}"
    # A spreadsheet takes a text that begins so for a formula.
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value


@contextmanager
def style() -> Iterator[None]:
    """Our style alone: no matplotlibrc of the user's or of the current folder changes the figures."""
    with matplotlib.rc_context(), _quiet():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        # Foreign names may have letters that the font lacks; they become boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def blank(height: float, rows: int = 1, columns: int = 1, **more: Any) -> tuple[Figure, Any]:
    """A figure `height` inches tall and its axes, as `Figure.subplots` gives them."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **more)


def by_share(phases: Iterable[PhaseRecord]) -> list[PhaseRecord]:
    """The phases with most of the time first."""
    return sorted(phases, key=lambda phase: (-phase.time_share, phase.id))


def phase_colours(phases: Iterable[PhaseRecord]) -> dict[int, str]:
    """A colour for each phase's id: its own for those with most of the time, one for all others."""
    ordered = by_share(phases)
    return {phase.id: COLOURS[n] if n < len(COLOURS) else OTHER for n, phase in enumerate(ordered)}


def label_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Names beside rows 0, 1, ... from the top down."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)


def percents() -> FuncFormatter:
    """Labels of an axis of shares."""
    return FuncFormatter(lambda value, _: f"{100 * value:.4g} %")


def step(values: FloatArray) -> FloatArray:
    """0 and the running sums: the edges of intervals of these lengths."""
    return np.concatenate([[0.0], np.cumsum(values)])
