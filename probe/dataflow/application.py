# SPDX-License-Identifier: Apache-2.0
"""Descriptions of data-intensive applications: family, blocks, queries, grid of processors, time of a block (TOML)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from probe.dataflow.graph import MICROSCOPE, PATHFINDER, TITAN, Graph, parse_graph
from probe.dataflow.toml_file import count, counts, number, pair, positive, read_toml, refuse_unknown, text

GRAPH = "graph"
FAMILIES: Final = ("titan", "pathfinder", "microscope", GRAPH)

QUERIES: Final = {
    "world": (-180.0, 180.0, -90.0, 90.0),
    "north-america": (-170.0, -50.0, 10.0, 75.0),
    "south-america": (-85.0, -33.0, -56.0, 13.0),
    "africa": (-20.0, 52.0, -35.0, 38.0),
}
"""West, east, south, north in degrees. The paper names these, and gives no numbers."""

_COMMON = ("name", "family", "block_bytes", "data_bytes", "compute", "seed")
_SURFACE = ("blocks", "blocks_per_node", "extent", "polar", "query", "grid", "epoch", "compute_per_io", GRAPH)
_SLIDES = (
    "slides", "slides_per_node", "planes", "slide", "queries", "queries_per_node", "query", "result_bytes",
)  # fmt: skip
_EPOCH, _MOST_EPOCH = 16, 1 << 20


@dataclass(frozen=True)
class ProbedBlocks:
    """Computing of a block by a probe: its run time over the blocks that a run handles."""

    probe: str
    blocks_per_run: int


@dataclass(frozen=True)
class Surface:
    """Blocks over the earth. blocks: in all, or of each reading node. extent: degrees at the equator, width and height.

    polar: share of blocks that hold a pole. query: west, east, south, north. grid: columns and rows of computing nodes,
    None for as square as can be. compute_per_io: computing nodes for each node with disks; 0: all do both.
    """

    blocks: int
    per_node: bool
    extent: tuple[float, float]
    polar: float
    query: tuple[float, float, float, float]
    grid: tuple[int, int] | None
    epoch: int
    compute_per_io: int


@dataclass(frozen=True)
class Slides:
    """Blocks of digitised slides, `slide` columns and rows of them on each of `planes`; queries are rectangles.

    The numbers of slides and queries are those in all, or of each node. result_bytes: sent to the client for a block.
    """

    slides: int
    slides_per_node: bool
    planes: int
    slide: tuple[int, int]
    queries: int
    queries_per_node: bool
    query: tuple[int, int]
    result_bytes: float


@dataclass(frozen=True)
class DataApplication:
    """compute: seconds of computing a block, or the probe they come from. data: where blocks are, and who asks."""

    name: str
    family: str
    path: Path
    block_bytes: float
    compute: float | ProbedBlocks
    seed: int
    graph: Graph
    data: Surface | Slides


def read_data_application(path: Path) -> DataApplication:
    """Read a description. Raises ModelInvalid with the file and what is wrong, StorageError."""
    return read_toml(path, lambda said: _application(path, said))


def _application(path: Path, said: Mapping[str, Any]) -> DataApplication:
    family = text(said, "family")
    if family not in FAMILIES:
        raise ValueError(f"family = {family!r} is none of {', '.join(FAMILIES)}")
    if (GRAPH in said) != (family == GRAPH):
        raise ValueError(f"a table [graph] goes with family = {GRAPH!r}, and only with that")
    slides = family == "microscope"
    refuse_unknown(said, (*_COMMON, *(_SLIDES if slides else _SURFACE)), f"family {family}")
    size = positive(said, "block_bytes")
    graph = {"titan": TITAN, "pathfinder": PATHFINDER, "microscope": MICROSCOPE}.get(family)
    if graph is None:
        graph = parse_graph(said[GRAPH])
    data = _slides(said) if slides else _surface(said, family, size)
    if isinstance(data, Surface) and data.compute_per_io and not graph.sends_to_consumers:
        raise ValueError("compute_per_io goes with a graph that sends blocks to other processors")
    return DataApplication(
        name=text(said, "name", path.stem),
        family=family,
        path=path,
        block_bytes=size,
        compute=_compute(said),
        seed=count(said, "seed", 1),
        graph=graph,
        data=data,
    )


def _compute(said: Mapping[str, Any]) -> float | ProbedBlocks:
    value = said.get("compute")
    if not isinstance(value, dict):
        return number(said, "compute")
    refuse_unknown(value, ("probe", "blocks_per_run"), "compute")
    return ProbedBlocks(text(value, "probe"), count(value, "blocks_per_run"))


def _surface(said: Mapping[str, Any], family: str, size: float) -> Surface:
    width, height = pair(said, "extent")
    if not (0 < width <= 360 and 0 < height <= 180):
        raise ValueError(f"extent = [{width:g}, {height:g}] are no degrees of width and height")
    polar = number(said, "polar", 0.0)
    if polar > 1:
        raise ValueError(f"polar = {polar:g} is no share of the blocks")
    blocks, per_node = _blocks(said, size)
    apart = count(said, "compute_per_io", 3, 1 << 20) if family == "pathfinder" else 0
    if family == GRAPH and "compute_per_io" in said:
        apart = count(said, "compute_per_io", most=1 << 20)
    elif family == "titan" and "compute_per_io" in said:
        raise ValueError("compute_per_io: all nodes of Titan read and compute; Pathfinder has nodes apart")
    return Surface(
        blocks=blocks,
        per_node=per_node,
        extent=(width, height),
        polar=polar,
        query=_query(said),
        grid=_grid(said),
        epoch=count(said, "epoch", _EPOCH, _MOST_EPOCH),
        compute_per_io=apart,
    )


def _blocks(said: Mapping[str, Any], size: float) -> tuple[int, bool]:
    ways = [key for key in ("blocks", "blocks_per_node", "data_bytes") if key in said]
    if len(ways) != 1:
        raise ValueError("give one of blocks, blocks_per_node and data_bytes")
    if ways[0] != "data_bytes":
        return count(said, ways[0]), ways[0] == "blocks_per_node"
    data = positive(said, "data_bytes")
    if size > data:
        raise ValueError(f"block_bytes = {size:g} is larger than the data, data_bytes = {data:g}")
    return int(data // size), False


def _query(said: Mapping[str, Any]) -> tuple[float, float, float, float]:
    value = said.get("query", "world")
    if isinstance(value, str):
        if value not in QUERIES:
            raise ValueError(f"query = {value[:40]!r} is none of {', '.join(QUERIES)}, nor [west, east, south, north]")
        return QUERIES[value]
    if not isinstance(value, list) or len(value) != 4:
        raise ValueError("query is a name or [west, east, south, north]")
    west, east = pair({"query": value[:2]}, "query")
    south, north = pair({"query": value[2:]}, "query")
    if not (-180 <= west < east <= 180 and -90 <= south < north <= 90):
        raise ValueError(f"query = [{west:g}, {east:g}, {south:g}, {north:g}] is no window [west, east, south, north]")
    return west, east, south, north


def _grid(said: Mapping[str, Any]) -> tuple[int, int] | None:
    return None if said.get("grid", "square") == "square" else counts(said, "grid")


def _either(said: Mapping[str, Any], key: str) -> tuple[int, bool]:
    if (key in said) == (f"{key}_per_node" in said):
        raise ValueError(f"give one of {key} and {key}_per_node")
    return (count(said, key), False) if key in said else (count(said, f"{key}_per_node"), True)


def _slides(said: Mapping[str, Any]) -> Slides:
    slides, slides_per_node = _either(said, "slides")
    queries, queries_per_node = _either(said, "queries")
    slide, query = counts(said, "slide"), counts(said, "query")
    if slide[0] * slide[1] > _MOST_EPOCH:
        raise ValueError(f"slide = {list(slide)} has more than {_MOST_EPOCH} blocks")
    if query[0] > slide[0] or query[1] > slide[1]:
        raise ValueError(f"query = {list(query)} blocks is larger than a slide of {list(slide)}")
    return Slides(
        slides=slides,
        slides_per_node=slides_per_node,
        planes=count(said, "planes", 1, 1 << 20),
        slide=slide,
        queries=queries,
        queries_per_node=queries_per_node,
        query=query,
        result_bytes=number(said, "result_bytes", 0.0),
    )
