# SPDX-License-Identifier: Apache-2.0
"""Figures of what came of the probe on other nodes. Above some dozens of nodes they are drawn by rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from probe.formats.arrays import FloatArray
from probe.prediction.variance import CAUSES
from probe.report.drawing import (
    COLOURS,
    FAINT,
    MARKERS,
    MOST_VECTOR_MARKS,
    OTHER,
    Drawing,
    blank,
    by_share,
    label_rows,
    percents,
)
from probe.report.gathering import Gathered
from probe.report.results import NodeResult
from probe.report.wording import percent, plain, seconds, several

MOST_NODE_ROWS = 30
"""Nodes that get a row of their own in a figure."""

_FAR_APART = 5.0
"""Slowest over fastest from which on times stand on a logarithmic axis."""

_MOST_COLOURED = len(COLOURS)
_MOST_PHASE_ROWS = 25
_MOST_DOTS = 20_000
_NO_NODES = "No results were given: run the probe on a node (`probe run --json`) and name the file behind the probe."

CAUSE_NAMES = {
    "repeats_candidate": "repeats on the node",
    "repeats_reference": "repeats on the reference node",
    "reference_runs": "full reference runs",
    "within_strata": "spread inside the phases",
    "uncovered": "time in no measured phase",
    "outside": "time in other processes",
    "minimum": "session to session",
    "load": "other load from round to round",
    "direct": "error of the direct estimate",
}
"""The variances of a prediction in words."""


def node_figures(found: Gathered) -> list[Drawing]:
    """All figures of the nodes, in the order to read them."""
    return [predictions(found), phase_times(found), error_budget(found), estimators(found)]


def _node(node: NodeResult) -> str:
    return plain(node.name, 28)


def predictions(found: Gathered) -> Drawing:
    """Predicted times with their intervals, against measured ones (thesis, figure 6.1)."""
    title = "Predicted and measured run times"
    head = ("node", "cpu", "predicted_s", "low_s", "high_s", "coverage", "measured_s", "measured_runs")
    data = [
        (n.name, n.cpu, n.seconds, n.low, n.high, n.coverage, _mean(found.measured_on(n)), len(found.measured_on(n)))
        for n in found.nodes
    ]
    if not found.nodes:
        return Drawing("predictions", title, _NO_NODES, None, head, data)
    reference = found.manifest.reference.seconds
    nodes = found.nodes
    label, low, high = "predicted, 95 % interval", np.array([n.low for n in nodes]), np.array([n.high for n in nodes])
    middle = np.array([n.seconds for n in nodes])
    ranks = np.arange(len(nodes))
    runs = [(rank, run) for rank, node in enumerate(nodes) for run in found.measured_on(node)]
    if len(nodes) <= MOST_NODE_ROWS:
        figure, axes = blank(1.5 + 0.3 * len(nodes))
        axes.errorbar(
            middle, ranks, xerr=[middle - low, high - middle], fmt="o", color=COLOURS[0], capsize=3, label=label
        )
        label_rows(axes, [_node(n) for n in nodes])
        axes.axvline(reference, color=OTHER, linestyle="--", linewidth=1, label="ET_ref, the reference node")
        if runs:
            # Below the interval, which they would hide.
            below = [rank + 0.24 for rank, _ in runs]
            axes.plot([run for _, run in runs], below, "D", color=COLOURS[5], markersize=5, label="measured, full run")
        axes.set_xlabel("run time of the whole program, seconds")
    else:
        figure, axes = blank(4.0)
        axes.fill_between(ranks, low, high, color=COLOURS[4], alpha=0.5, linewidth=0, label="95 % interval")
        axes.plot(ranks, middle, color=COLOURS[0], linewidth=1.3, label="predicted")
        axes.axhline(reference, color=OTHER, linestyle="--", linewidth=1, label="ET_ref, the reference node")
        if runs:
            axes.plot(
                [n for n, _ in runs], [r for _, r in runs], "D", color=COLOURS[5], markersize=2.5,
                label="measured, full run", rasterized=len(runs) > MOST_VECTOR_MARKS,
            )  # fmt: skip
        axes.set_xlabel(f"{len(nodes):,} nodes, the fastest first")
        axes.set_ylabel("run time of the whole program, seconds")
        if high.max() > _FAR_APART * low.min():
            axes.set_yscale("log")
            _plain_logarithm(axes.yaxis)
        else:
            axes.set_ylim(bottom=0)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    return Drawing("predictions", title, _prediction_caption(found), figure, head, data)


def _plain_logarithm(axis: Any) -> None:
    """Numbers as people write them along a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _prediction_caption(found: Gathered) -> str:
    nodes = found.nodes
    fastest = nodes[0]
    caption = (
        f"How long the whole program takes on {several(len(nodes), 'node')}. The fastest is "
        f"{plain(fastest.name, 40)}: {seconds(fastest.seconds)}, and with 95 % probability one full run takes "
        f"{seconds(fastest.low)} to {seconds(fastest.high)}. Where two intervals overlap, the order of the nodes "
        "may be the other way round."
    )
    pairs = [(node, run) for node in nodes for run in found.measured_on(node)]
    if pairs:
        held = sum(node.low <= run <= node.high for node, run in pairs)
        off = [abs(node.seconds / run - 1) for node, run in pairs]
        caption += f" {several(len(pairs), 'full run')} measured: {held:,} inside the interval, predictions off by "
        middle = f"{percent(float(np.median(off)))} in the median and {percent(max(off))} at most."
        caption += middle if len(off) > 1 else f"{percent(off[0])}."
    return caption


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def phase_times(found: Gathered) -> Drawing:
    """T_ref against T_cand of every phase on every node."""
    title = "The phases' times here and there"
    head = ("node", "phase", "t_ref_s", "t_cand_s", "ratio", "failure")
    phases = found.manifest.phases
    rows = _PhaseTimes(found)
    data: Sequence[Any] = rows
    if not found.nodes:
        return Drawing("phase-times", title, _NO_NODES, None, head, data)
    ref, cand = (np.array([getattr(n, key) for n in found.nodes]) for key in ("t_ref", "t_cand"))
    both = np.isfinite(ref) & np.isfinite(cand)
    if not both.any():
        return Drawing("phase-times", title, "No phase has a time on both sides.", None, head, data)
    figure, (left, right) = blank(4.6, 1, 2, width_ratios=[1, 1.15])
    few = len(found.nodes) <= _MOST_COLOURED
    if few:
        for number, node in enumerate(found.nodes):
            left.plot(
                node.t_ref, node.t_cand, MARKERS[number], color=COLOURS[number], markersize=5, alpha=0.8,
                label=plain(node.name, 20), rasterized=len(phases) > MOST_VECTOR_MARKS,
            )  # fmt: skip
        left.legend(loc="upper left", fontsize=8)
    elif both.sum() <= _MOST_DOTS:
        left.plot(ref[both], cand[both], ".", color=COLOURS[0], markersize=3, alpha=0.4, rasterized=True)
    else:
        left.hexbin(
            ref[both], cand[both], gridsize=70, xscale="log", yscale="log", bins="log", mincnt=1, cmap="viridis",
            linewidths=0, rasterized=True,
        )  # fmt: skip
    ends = [min(ref[both].min(), cand[both].min()), max(ref[both].max(), cand[both].max())]
    left.plot(ends, ends, color=OTHER, linewidth=1, zorder=0)
    left.set(xscale="log", yscale="log", xlabel="T_ref, seconds", ylabel="T_cand, seconds", title="each phase")
    for axis in (left.xaxis, left.yaxis):
        _plain_logarithm(axis)
    order = [phases.index(p) for p in by_share(phases)[:_MOST_PHASE_ROWS]]
    ratios = np.divide(cand, ref, out=np.full_like(cand, math.nan), where=both)
    labels = [f"phase {phases[at].id}" for at in order]
    if few:
        for number, _ in enumerate(found.nodes):
            right.plot(ratios[number, order], range(len(order)), MARKERS[number], color=COLOURS[number], markersize=5)
        right.axvline(1.0, color=OTHER, linewidth=1)
        right.set_xlabel("T_cand / T_ref (below 1: faster)")
        label_rows(right, labels)
    else:
        _ratio_map(right, ratios[:, order].T, labels)
    right.set_title("ratio, phases with most of the time first")
    return Drawing("phase-times", title, _ratio_caption(found, ratios, both), figure, head, data)


class _PhaseTimes(Sequence[Any]):
    """Rows of the CSV, made one by one: there may be millions."""

    def __init__(self, found: Gathered) -> None:
        self._nodes, self._phases = found.nodes, found.manifest.phases

    def __len__(self) -> int:
        return len(self._nodes) * len(self._phases)

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        node, at = self._nodes[number // len(self._phases)], number % len(self._phases)
        ref, cand = float(node.t_ref[at]), float(node.t_cand[at])
        phase = self._phases[at].id
        return (node.name, phase, ref, cand, cand / ref, node.failures.get(phase, ""))


def _ratio_map(axes: Axes, ratios: FloatArray, labels: Sequence[str]) -> None:
    finite = np.abs(np.log2(ratios[np.isfinite(ratios)]))
    reach = max(0.05, float(finite.max(initial=0.0)))
    picture = axes.imshow(
        np.log2(ratios), aspect="auto", interpolation="none", cmap="PuOr_r", vmin=-reach, vmax=reach, rasterized=True
    )
    axes.set_facecolor(FAINT)
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.grid(False)
    axes.set_xlabel(f"{ratios.shape[1]:,} nodes, the fastest first; grey: no time")
    assert axes.figure is not None
    bar = axes.figure.colorbar(picture, ax=axes, shrink=0.8)
    ticks = [t for t in bar.get_ticks() if -reach <= t <= reach]
    bar.set_ticks(ticks, labels=[f"{2**t:.2f}" for t in ticks])
    bar.set_label("T_cand / T_ref")


def _ratio_caption(found: Gathered, ratios: FloatArray, both: Any) -> str:
    low, high = (float(v) for v in np.nanquantile(ratios, (0.05, 0.95)))
    caption = (
        "T_ref is a phase's captured region restored and timed on the reference node, T_cand the same on another. Were "
        "all ratios equal, one factor would do for any program; here nine of ten lie between "
        f"{low:.2f} and {high:.2f}, and each phase counts with its own."
    )
    if missing := int((~both).sum()):
        caption += f" {several(missing, 'time')} of {both.size:,} are missing: see what was refused, below."
    if len(found.manifest.phases) > _MOST_PHASE_ROWS:
        caption += f" On the right are the {_MOST_PHASE_ROWS} phases with most of the time."
    return caption


def error_budget(found: Gathered) -> Drawing:
    """What widens the interval of each prediction."""
    title = "What makes the intervals as wide as they are"
    head = ("node", "half_width", *CAUSES)
    data = [(n.name, n.half_width, *(n.variances[c] for c in CAUSES)) for n in found.nodes]
    if not found.nodes:
        return Drawing("error-budget", title, _NO_NODES, None, head, data)
    parts = np.array([[n.variances[c] for c in CAUSES] for n in found.nodes])
    totals = parts.sum(axis=1, keepdims=True)
    widths = np.array([n.half_width for n in found.nodes])
    scaled = np.divide(parts, totals, out=np.zeros_like(parts), where=totals > 0) * widths[:, None]
    colours = (*COLOURS[:5], OTHER, FAINT, *COLOURS[5:7])
    if len(found.nodes) <= MOST_NODE_ROWS:
        figure, axes = blank(1.7 + 0.3 * len(found.nodes))
        left = np.zeros(len(found.nodes))
        for number, cause in enumerate(CAUSES):
            axes.barh(
                range(len(found.nodes)), scaled[:, number], left=left, height=0.6, color=colours[number],
                edgecolor="white", linewidth=0.5, label=CAUSE_NAMES[cause],
            )  # fmt: skip
            left += scaled[:, number]
        label_rows(axes, [_node(n) for n in found.nodes])
        axes.set_xlabel("half width of the 95 % interval, parted by the variance of each cause")
        axes.xaxis.set_major_formatter(percents())
    else:
        figure, axes = blank(4.0)
        axes.stackplot(
            range(len(found.nodes)), scaled.T, colors=colours, labels=[CAUSE_NAMES[c] for c in CAUSES], linewidth=0,
            rasterized=len(found.nodes) > MOST_VECTOR_MARKS,
        )  # fmt: skip
        axes.set_xlabel(f"{len(found.nodes):,} nodes, the fastest first")
        axes.set_ylabel("half width of the 95 % interval")
        axes.yaxis.set_major_formatter(percents())
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    most = CAUSES[int(scaled.sum(axis=0).argmax())]
    share = float(scaled.sum(axis=0).max() / max(float(scaled.sum()), 1e-12))
    caption = (
        f"The intervals reach {percent(float(np.median(widths)))} above the prediction in the median. The largest "
        f"part, {percent(share, 0)} of the variance, is {CAUSE_NAMES[most]}: {_REMEDIES[most]}."
    )
    return Drawing("error-budget", title, caption, figure, head, data)


_REMEDIES = {
    "repeats_candidate": "more `--repeat`, or a quieter node, narrows it",
    "repeats_reference": "building again on a quieter reference node, or with a smaller `--target-error`, narrows it",
    "reference_runs": "full runs on the reference node differ by so much, and so will the one predicted",
    "within_strata": "more `--max-phases`, a shorter `--interval` or a longer run narrows it",
    "uncovered": "see which phases were not measured",
    "outside": "only a probe of the other processes themselves narrows it",
    "minimum": "whole sessions of repeats differ by this, and more repeats do not narrow it",
    "load": "a quieter node narrows it, or more repeats",
    "direct": "more `--max-phases` narrows it",
}


def estimators(found: Gathered) -> Drawing:
    """The other two estimators against the calibrated one."""
    title = "Three ways to predict from the same times"
    names = ("calibrated", "direct", "strube")
    head = ("node", *(f"{name}_s" for name in names))
    data = [(n.name, *(n.estimators[name] for name in names)) for n in found.nodes]
    if not found.nodes:
        return Drawing("estimators", title, _NO_NODES, None, head, data)
    ratios = {
        name: np.array([n.estimators[name] / n.estimators["calibrated"] - 1 for n in found.nodes]) for name in names[1:]
    }
    ranks = np.arange(len(found.nodes))
    rows = len(found.nodes) <= MOST_NODE_ROWS
    figure, axes = blank(1.6 + 0.26 * len(found.nodes) if rows else 3.6)
    for number, (name, label) in enumerate((("direct", "direct (SimPoint)"), ("strube", "by weights (thesis, 4.7)"))):
        mark = {"marker": MARKERS[number + 1], "color": COLOURS[(1, 3)[number]], "label": label}
        if rows:
            axes.plot(ratios[name], ranks, linestyle="none", **mark)
        else:
            axes.plot(ranks, ratios[name], linestyle="none", markersize=2.5, rasterized=True, **mark)
    if rows:
        axes.axvline(0.0, color=COLOURS[0], linewidth=1.5, label="calibrated")
        label_rows(axes, [_node(n) for n in found.nodes])
        axes.set_xlabel("difference from the calibrated estimate")
        axes.xaxis.set_major_formatter(percents())
    else:
        axes.axhline(0.0, color=COLOURS[0], linewidth=1.5, label="calibrated")
        axes.set_xlabel(f"{len(found.nodes):,} nodes, the fastest first")
        axes.yaxis.set_major_formatter(percents())
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    apart = np.abs(ratios["direct"][np.isfinite(ratios["direct"])])
    caption = (
        "The calibrated estimate scales the reference node's run time by each phase's ratio. The direct one adds up "
        "the candidate's times alone and knows nothing of the reference run. So the two check each other, and the "
        "answer combines them by their variances; the thesis's formula takes instructions for time, which is wrong by "
        "as much as phases differ in speed."
    )
    if len(apart):
        caption += f" Calibrated and direct are apart by {percent(float(apart.max()))} at most; 10 % is a warning."
    return Drawing("estimators", title, caption, figure, head, data)
