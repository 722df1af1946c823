# SPDX-License-Identifier: Apache-2.0
"""Picture of a prediction over numbers of nodes: the time, and how busy disks, buses, network and processors are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from matplotlib.axes import Axes

from checkpoint.foreign_file import finite
from probe.dataflow.engines import Busy
from probe.report.drawing import COLOURS, Drawing, blank, style

_HEIGHT = 3.4
_MOST_NODES = 1 << 53


@dataclass(frozen=True)
class DrawnRow:
    """A number of nodes, its seconds with both ends of their interval, and busy shares."""

    nodes: int
    seconds: float
    low: float
    high: float
    busy: Busy


@dataclass(frozen=True)
class DrawnNodes:
    """What is drawn of a prediction."""

    application: str
    machine: str
    mode: str
    block_seconds: float
    block_source: str
    rows: tuple[DrawnRow, ...]

    @property
    def title(self) -> str:
        return f"{self.application} on {self.machine}, {self.mode}"


def drawn_nodes(said: Mapping[str, Any]) -> DrawnNodes:
    """Of what `probe simulate -P --json` prints. Raises KeyError, TypeError or ValueError for anything else."""
    rows = tuple(_row(row) for row in said["rows"])
    if not rows:
        raise ValueError("no rows")
    return DrawnNodes(
        application=str(said["application"]),
        machine=str(said["machine"]),
        mode=str(said["mode"]),
        block_seconds=finite(said["block_seconds"]),
        block_source=str(said["block_source"]),
        rows=rows,
    )


def _row(row: Mapping[str, Any]) -> DrawnRow:
    nodes = row["nodes"]
    if type(nodes) is not int or not 1 <= nodes <= _MOST_NODES:
        raise ValueError("nodes is no number of nodes")
    seconds, low, high = (finite(row[key]) for key in ("seconds", "low", "high"))
    busy = Busy(*(finite(row["busy"][field.name]) for field in fields(Busy)))
    return DrawnRow(nodes, seconds, low, high, busy)


def nodes_figure(shown: DrawnNodes, name: str = "nodes") -> Drawing:
    """The drawing; its data are the rows of the table. name: of its files."""
    with style():
        figure, (times, busy) = blank(_HEIGHT, 1, 2)
        _times(times, shown)
        _busy(busy, shown)
    kinds = [field.name for field in fields(Busy)]
    head = ("nodes", "seconds", "low", "high", *(kind.replace("_", " ") for kind in kinds))
    data = [(row.nodes, row.seconds, row.low, row.high, *asdict(row.busy).values()) for row in shown.rows]
    last = shown.rows[-1]
    caption = (
        f"{shown.mode.capitalize()} simulation; on {last.nodes} nodes {last.seconds:.4g} s, the busiest processor "
        f"{100 * last.busy.busiest_processor:.0f} % of them."
    )
    return Drawing(name, shown.title, caption, figure, head, data)


def _times(axes: Axes, shown: DrawnNodes) -> None:
    nodes = [row.nodes for row in shown.rows]
    axes.plot(nodes, [row.seconds for row in shown.rows], marker="o", color=COLOURS[0])
    low, high = ([getattr(row, end) for row in shown.rows] for end in ("low", "high"))
    axes.fill_between(nodes, low, high, color=COLOURS[0], alpha=0.2)
    _by_nodes(axes, nodes)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("seconds")
    axes.set_title(shown.title)


def _busy(axes: Axes, shown: DrawnNodes) -> None:
    nodes = [row.nodes for row in shown.rows]
    for place, kind in enumerate(field.name for field in fields(Busy)):
        shares = [100 * getattr(row.busy, kind) for row in shown.rows]
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
