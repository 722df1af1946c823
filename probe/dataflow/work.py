# SPDX-License-Identifier: Apache-2.0
"""Place an application on a number of nodes: who reads, the grid of who computes, and the engines' setting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from checkpoint.errors import ModelInvalid
from probe.dataflow.application import DataApplication, Slides, Surface
from probe.dataflow.graph import OPERATIONS
from probe.dataflow.machine import DiskMachine

MOST_NODES: Final = 10_000_000
_MOST, _MOST_DEVICES = 1 << 50, 1 << 30


@dataclass(frozen=True)
class Placed:
    """An application on `nodes` nodes. readers: the first. settings: of the engines, but the time of a block."""

    application: DataApplication
    machine: DiskMachine
    nodes: int
    readers: int
    blocks: int
    settings: Mapping[str, float]

    def text(self, compute: float, memory: float = 0.0) -> str:
        """Lines that the engines read. compute: seconds of a block. memory: bytes that there are, 0 for any."""
        values = {**self.settings, **self.machine.settings(), "compute": compute, "memory": memory}
        graph = self.application.graph
        lines = [f"{name} {_written(value)}" for name, value in values.items()]
        lines += [f"node {n} {OPERATIONS.index(operation)}" for n, operation in enumerate(graph.operations)]
        return "\n".join([*lines, *(f"edge {a} {b}" for a, b in graph.edges), "end", ""])


def _written(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(float(value))


def place(application: DataApplication, machine: DiskMachine, nodes: int) -> Placed:
    """Raises ModelInvalid for a number of nodes that application or machine does not allow, or too much data."""
    where = f"{application.path}: on {nodes} nodes"
    if not 1 <= nodes <= MOST_NODES:
        raise ModelInvalid(f"{where}: 1 to {MOST_NODES} can be simulated")
    if machine.nodes is not None and nodes > machine.nodes:
        raise ModelInvalid(f"{where}: {machine.name} has {machine.nodes}")
    if nodes * (machine.disks + machine.buses + 3) > _MOST_DEVICES:
        raise ModelInvalid(f"{where}: more than {_MOST_DEVICES} disks, buses and ports")
    if isinstance(application.data, Slides):
        return _slides(application, application.data, machine, nodes, where)
    return _surface(application, application.data, machine, nodes, where)


def _surface(application: DataApplication, data: Surface, machine: DiskMachine, nodes: int, where: str) -> Placed:
    apart = data.compute_per_io
    if apart and nodes % (apart + 1):
        raise ModelInvalid(
            f"{where}: no multiple of {apart + 1}: each node with disks has {apart} that compute (compute_per_io)"
        )
    readers = nodes // (apart + 1)
    computing = nodes - readers if apart else nodes
    columns, rows = data.grid or _squarest(computing)
    if columns * rows != computing:
        raise ModelInvalid(
            f"{where}: a grid of {columns} x {rows} is not the {computing} that compute; give grid = [columns, rows] "
            'for this number, or "square"'
        )
    blocks = data.blocks * nodes if data.per_node else data.blocks
    _refuse_full_disks(application, machine, blocks, readers, where)
    _refuse_many(blocks, "blocks", where)
    west, east, south, north = data.query
    return Placed(application, machine, nodes, readers, blocks, {
        "processors": nodes, "readers": readers, "epoch": data.epoch, "by_query": 0, "blocks": blocks,
        "block_bytes": application.block_bytes, "result_bytes": application.block_bytes, "seed": application.seed,
        "width": data.extent[0], "height": data.extent[1], "polar": data.polar,
        "west": west, "east": east, "south": south, "north": north, "columns": columns, "rows": rows,
    })  # fmt: skip


def _slides(application: DataApplication, data: Slides, machine: DiskMachine, nodes: int, where: str) -> Placed:
    slides = data.slides * nodes if data.slides_per_node else data.slides
    queries = data.queries * nodes if data.queries_per_node else data.queries
    blocks = slides * data.planes * data.slide[0] * data.slide[1]
    _refuse_many(blocks, "blocks", where)
    _refuse_many(queries, "queries", where)
    if slides >= _MOST_DEVICES:
        raise ModelInvalid(f"{where}: {slides} slides; at most {_MOST_DEVICES}")
    if blocks < nodes:
        raise ModelInvalid(f"{where}: {blocks} blocks; some nodes would have none, and empty epochs without end")
    _refuse_full_disks(application, machine, blocks, nodes, where)
    return Placed(application, machine, nodes, nodes, blocks, {
        "processors": nodes, "readers": nodes, "epoch": 1, "by_query": 1, "blocks": blocks,
        "block_bytes": application.block_bytes, "result_bytes": data.result_bytes, "seed": application.seed,
        "columns": 1, "rows": 1, "queries": queries, "slides": slides, "planes": data.planes,
        "slide_columns": data.slide[0], "slide_rows": data.slide[1],
        "query_columns": data.query[0], "query_rows": data.query[1],
    })  # fmt: skip


def _refuse_many(number: int, what: str, where: str) -> None:
    if number > _MOST:
        raise ModelInvalid(f"{where}: {number} {what}; at most {_MOST} can be simulated")


def _squarest(count: int) -> tuple[int, int]:
    """Columns and rows, the fewest rows not above the root that divide."""
    rows = next(rows for rows in range(math.isqrt(count), 0, -1) if count % rows == 0)
    return count // rows, rows


def _refuse_full_disks(
    application: DataApplication, machine: DiskMachine, blocks: int, readers: int, where: str
) -> None:
    held = math.ceil(blocks / (readers * machine.disks)) * application.block_bytes
    if held > machine.capacity:
        raise ModelInvalid(
            f"{where}: each disk of {machine.name} would hold {held:.4g} bytes and has {machine.capacity:.4g}; take "
            "more nodes, or smaller blocks"
        )
