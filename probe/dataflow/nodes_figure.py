# SPDX-License-Identifier: Apache-2.0
"""Picture of a prediction over numbers of nodes: the time, and how busy disks, buses, network and processors are."""

from __future__ import annotations

from matplotlib.axes import Axes

from probe.dataflow.prediction import DataPrediction, NodesPredicted
from probe.report.drawing import COLOURS, Drawing, blank, style

_HEIGHT = 3.4


def nodes_figure(found: DataPrediction) -> Drawing:
    """The drawing; its data are the rows of the table."""
    title = f"{found.application.name} on {found.machine.name}"
    with style():
        figure, (times, busy) = blank(_HEIGHT, 1, 2)
        _times(times, found.rows, title)
        _busy(busy, found.rows)
    head = ("nodes", "seconds", "low", "high", "disk", "bus", "sending", "receiving", "processor", "busiest processor")
    data = [(row.nodes, row.seconds, row.low, row.high, *vars(row.simulation.busy).values()) for row in found.rows]
    last = found.rows[-1]
    caption = (
        f"{found.mode.capitalize()} simulation; on {last.nodes} nodes {last.seconds:.4g} s, the busiest processor "
        f"{100 * last.simulation.busy.busiest_processor:.0f} % of them."
    )
    return Drawing("nodes", title, caption, figure, head, data)


def _times(axes: Axes, rows: tuple[NodesPredicted, ...], title: str) -> None:
    nodes = [row.nodes for row in rows]
    axes.plot(nodes, [row.seconds for row in rows], marker="o", color=COLOURS[0])
    axes.fill_between(nodes, [row.low for row in rows], [row.high for row in rows], color=COLOURS[0], alpha=0.2)
    _by_nodes(axes, nodes)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("seconds")
    axes.set_title(title)


def _busy(axes: Axes, rows: tuple[NodesPredicted, ...]) -> None:
    nodes = [row.nodes for row in rows]
    kinds = ("disk", "bus", "sending", "receiving", "processor", "busiest_processor")
    for place, kind in enumerate(kinds):
        shares = [100 * getattr(row.simulation.busy, kind) for row in rows]
        label = kind.replace("_", " ")
        axes.plot(nodes, shares, marker=".", label=label, color=COLOURS[place % len(COLOURS)])
    _by_nodes(axes, nodes)
    axes.set_ylim(0, 105)
    axes.set_ylabel("busy, % of the time")
    axes.legend()


def _by_nodes(axes: Axes, nodes: list[int]) -> None:
    axes.set_xlabel("nodes")
    if max(nodes) > 8 * min(nodes):
        axes.set_xscale("log", base=2)
