# SPDX-License-Identifier: Apache-2.0
"""Networks of nodes: routes in a torus, a fat tree, a dragonfly, a SlimFly and SimpleNet; no simulation of time.

Dragonfly (Kim et al. 2008): a = 2p = 2h routers a group, a*h + 1 groups.
SlimFly (Besta and Hoefer 2014): the MMS graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import networkx as nx

from checkpoint.errors import ModelInvalid

MOST_NODES = 4_000_000
MOST_ROUTERS_SEARCHED = 20_000
"""Larger graphs have no table of routes here."""

Link = tuple[int, int]


@dataclass(frozen=True)
class Network:
    """nodes: how many can take ranks. route: the links from one node to another, each between two routers."""

    name: str
    nodes: int
    route: Callable[[int, int], list[Link]]


def network_of(text: str) -> Network:
    """A network from its name: `torus:4x4x4`, `fattree:4,3`, `dragonfly:p=2`, `slimfly:q=5`. Raises ModelInvalid."""
    kind, _, rest = text.partition(":")
    makers = {"torus": _torus, "fattree": _fat_tree, "dragonfly": _dragonfly, "slimfly": _slim_fly, "simple": _simple}
    if kind not in makers:
        raise ModelInvalid(f"{text}: there is no network {kind}: there are {', '.join(makers)}")
    made = makers[kind](text, rest)
    if made.nodes > MOST_NODES:
        raise ModelInvalid(f"{text}: has {made.nodes} nodes; at most {MOST_NODES} can be modelled")
    return made


def _numbers(text: str, rest: str, separator: str, form: str) -> list[int]:
    try:
        numbers = [int(part) for part in rest.split(separator)]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or len(numbers) > 8:
        raise ModelInvalid(f"{text}: this network is written {form}")
    return numbers


def _torus(text: str, rest: str) -> Network:
    sides = _numbers(text, rest, "x", "torus:4x4x4")
    nodes = 1
    for side in sides:
        nodes *= side

    def route(source: int, target: int) -> list[Link]:
        """Dimension order, the shorter way round, upward where both are as long."""
        links, at, stride = [], source, 1
        for side in sides:
            here, there = at // stride % side, target // stride % side
            ahead = (there - here) % side
            step = 1 if ahead <= side - ahead else -1
            for _ in range(min(ahead, side - ahead)):
                following = (here + step) % side
                new = at + (following - here) * stride
                links.append((at, new))
                at, here = new, following
            stride *= side
        return links

    return Network(text, nodes, route)


def _fat_tree(text: str, rest: str) -> Network:
    """Levels of switches with `arity` children each; links up and down are as wide as what is below them."""
    numbers = _numbers(text, rest, ",", "fattree:ARITY,LEVELS")
    if len(numbers) != 2 or numbers[0] < 2:
        raise ModelInvalid(f"{text}: this network is written fattree:ARITY,LEVELS")
    arity, levels = numbers
    if levels > 22:
        raise ModelInvalid(f"{text}: too many levels")

    def route(source: int, target: int) -> list[Link]:
        """Up to the lowest common switch and down again. A switch is -(number + 1), level by level."""
        up, down, first = [], [], 0
        a, b = source, target
        while a != b:
            a_up, b_up = a // arity, b // arity
            base = first
            first += arity**levels
            up.append((a if base == 0 else -(base + a + 1), -(first + a_up + 1)))
            down.append((-(first + b_up + 1), b if base == 0 else -(base + b + 1)))
            a, b = a_up, b_up
        return [*up, *reversed(down)]

    return Network(text, arity**levels, route)


def _dragonfly(text: str, rest: str) -> Network:
    p = _named_number(text, rest, "p", "dragonfly:p=2")
    a, h = 2 * p, p
    groups = a * h + 1

    def gate(group: int, to: int) -> int:
        """The router of a group that has its one link to another group."""
        return group * a + ((to - group - 1) % groups) // h

    def route(source: int, target: int) -> list[Link]:
        """Minimal: at most local, global, local."""
        at, end = source // p, target // p
        links = []
        if at // a != end // a:
            out, into = gate(at // a, end // a), gate(end // a, at // a)
            if at != out:
                links.append((at, out))
            links.append((out, into))
            at = into
        if at != end:
            links.append((at, end))
        return links

    return Network(text, groups * a * p, route)


def _slim_fly(text: str, rest: str) -> Network:
    q = _named_number(text, rest, "q", "slimfly:q=5")
    if q < 5 or q % 4 != 1 or any(q % d == 0 for d in range(2, int(q**0.5) + 1)):
        raise ModelInvalid(f"{text}: q must be a prime that leaves 1 when divided by 4, such as 5, 13, 17, 29")
    degree = (3 * q - 1) // 2
    each = -(-degree // 2)
    if 2 * q * q > MOST_ROUTERS_SEARCHED:
        raise ModelInvalid(f"{text}: has {2 * q * q} routers; at most {MOST_ROUTERS_SEARCHED} can be searched")
    graph = slim_fly_graph(q)

    @cache
    def ways(source: int) -> dict[int, list[int]]:
        found: dict[int, list[int]] = nx.single_source_shortest_path(graph, source)
        return found

    def route(source: int, target: int) -> list[Link]:
        path = ways(source // each)[target // each]
        return list(pairwise(path))

    return Network(text, 2 * q * q * each, route)


def _simple(text: str, rest: str) -> Network:
    """The testing network of CODES, SimpleNet: every node has a way of its own to every other."""
    numbers = _numbers(text, rest, ",", "simple:4096")
    if len(numbers) != 1:
        raise ModelInvalid(f"{text}: this network is written simple:4096")
    return Network(text, numbers[0], lambda source, target: [(source, target)] if source != target else [])


def slim_fly_graph(q: int) -> nx.Graph:
    """The MMS graph of a prime q = 4w + 1: 2 q^2 routers of degree (3q - 1)/2, diameter 2."""
    root = next(g for g in range(2, q) if len({pow(g, i, q) for i in range(q - 1)}) == q - 1)
    even = {pow(root, i, q) for i in range(0, q - 1, 2)}
    odd = {pow(root, i, q) for i in range(1, q - 1, 2)}
    graph: nx.Graph = nx.Graph()
    graph.add_nodes_from(range(2 * q * q))
    graph.add_edges_from(_mms_edges(q, even, odd))
    return graph


def _mms_edges(q: int, even: set[int], odd: set[int]) -> Iterator[Link]:
    for x in range(q):
        for y in range(q):
            for other in range(q):
                if (y - other) % q in even:
                    yield x * q + y, x * q + other
                if (y - other) % q in odd:
                    yield q * q + x * q + y, q * q + x * q + other
            for m in range(q):
                yield x * q + y, q * q + m * q + (y - m * x) % q


def _named_number(text: str, rest: str, name: str, form: str) -> int:
    key, _, value = rest.partition("=")
    if key != name or not value.isdigit() or not 1 <= int(value) <= 1000:
        raise ModelInvalid(f"{text}: this network is written {form}")
    return int(value)
