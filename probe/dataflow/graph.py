# SPDX-License-Identifier: Apache-2.0
"""Work-flow graphs: the life of one block, as operations and what follows them (Uysal et al., section 4.3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

READ, SEND, RECEIVE, COMPUTE = "read", "send", "receive", "compute"
OPERATIONS: Final = (READ, SEND, RECEIVE, COMPUTE)
"""In the order of the engines' numbers (blocks.h)."""

_MOST_NODES = 16
_MAY_FOLLOW: Final = {READ: (SEND, COMPUTE), SEND: (RECEIVE,), RECEIVE: (COMPUTE, SEND), COMPUTE: (COMPUTE, SEND)}


@dataclass(frozen=True)
class Graph:
    """operations: by node, the read first, each before what follows it. edges: pairs of places in that list."""

    operations: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]

    def followers(self, node: int) -> list[int]:
        return [after for before, after in self.edges if before == node]

    @property
    def sends_to_consumers(self) -> bool:
        """Whether blocks go to other processors of the machine."""
        return RECEIVE in self.operations


def parse_graph(table: Mapping[str, Any]) -> Graph:
    """A graph of `operations = { NAME = "read", ... }` and `edges = ["NAME -> NAME", ...]`. Raises ValueError."""
    operations, edges = table.get("operations"), table.get("edges")
    if not isinstance(operations, dict) or not isinstance(edges, list):
        raise ValueError('[graph] needs operations = { NAME = "read", ... } and edges = ["NAME -> NAME", ...]')
    if not 1 <= len(operations) <= _MOST_NODES:
        raise ValueError(f"[graph] has {len(operations)} operations; 1 to {_MOST_NODES} are possible")
    for name, operation in operations.items():
        if operation not in OPERATIONS:
            raise ValueError(f"[graph] {name} = {str(operation)[:40]!r} is none of {', '.join(OPERATIONS)}")
    return _graph(operations, [_edge(str(edge), operations) for edge in edges])


def _edge(edge: str, operations: Mapping[str, str]) -> tuple[str, str]:
    ends = [end.strip() for end in edge.split("->")]
    if len(ends) != 2:
        raise ValueError(f"[graph] edge {edge[:40]!r} is not written NAME -> NAME")
    for end in ends:
        if end not in operations:
            raise ValueError(f"[graph] edge {edge[:40]!r}: there is no operation {end!r}")
    return ends[0], ends[1]


def _graph(operations: Mapping[str, str], edges: Sequence[tuple[str, str]]) -> Graph:
    order = _ordered(operations, edges)
    _refuse_contradictions(operations, edges)
    place = {name: number for number, name in enumerate(order)}
    numbered = sorted({(place[first], place[second]) for first, second in edges})
    return Graph(tuple(operations[name] for name in order), tuple(numbered))


def _ordered(operations: Mapping[str, str], edges: Sequence[tuple[str, str]]) -> list[str]:
    sorter: TopologicalSorter[str] = TopologicalSorter({name: [] for name in operations})
    for first, second in edges:
        sorter.add(second, first)
    try:
        order = list(sorter.static_order())
    except CycleError as error:
        raise ValueError(f"[graph] has a cycle: {' -> '.join(reversed(error.args[1]))}") from error
    reads = [name for name in order if operations[name] == READ]
    if len(reads) != 1:
        raise ValueError(f"[graph] has {len(reads)} reads; a block is read once")
    return [reads[0], *(name for name in order if name != reads[0])]


def _refuse_contradictions(operations: Mapping[str, str], edges: Sequence[tuple[str, str]]) -> None:
    reached = {second for _, second in edges}
    for name, operation in operations.items():
        if operation != READ and name not in reached:
            kind = "a receive without a send" if operation == RECEIVE else "nothing leads to it"
            raise ValueError(f"[graph] {name}: {kind}")
    for first, second in edges:
        if operations[second] not in _MAY_FOLLOW[operations[first]]:
            kind = operations[first]
            if operations[second] == RECEIVE:
                raise ValueError(f"[graph] {second}: a receive without a send: {kind} {first} goes before it")
            raise ValueError(
                f"[graph] {first} -> {second}: a {kind} is followed by {' or '.join(_MAY_FOLLOW[kind])} alone"
            )
    for name, operation in operations.items():
        receives = [second for first, second in edges if first == name]
        if operation == SEND and len(receives) > 1:
            raise ValueError(f"[graph] {name}: {len(receives)} receives of one send")


_RSC = {"read": READ, "send": SEND, "receive": RECEIVE, "compute": COMPUTE}

TITAN: Final = _graph(_RSC, [("read", "send"), ("send", "receive"), ("receive", "compute"), ("read", "compute")])
PATHFINDER: Final = _graph(_RSC, [("read", "send"), ("send", "receive"), ("receive", "compute")])
MICROSCOPE: Final = _graph({"read": READ, "compute": COMPUTE, "send": SEND}, [("read", "compute"), ("compute", "send")])
"""The last from the paper's text: its figure is lost."""
