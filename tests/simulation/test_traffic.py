# SPDX-License-Identifier: Apache-2.0
"""Messages and routes: the paper's LULESH on a torus, and networks against graphs searched by another library."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import networkx as nx
import pytest
from aspen_models import flow_in, lulesh

from checkpoint.errors import ModelInvalid
from probe.models.communication import Exchange, communication, grid_of, receives, sends, size_of
from probe.models.inventory import executions
from probe.simulation.networks import Network, network_of, slim_fly_graph
from probe.simulation.traffic import traffic

CUBE = (4, 4, 4)
FACES, EDGES, CORNERS = 288, 432, 216


def exchange(folder: Path, traits: str, count: int = 2) -> Exchange:
    flow = flow_in(folder, f"execute {{ comm [{count}] of size [8] as {traits} }}")
    found = communication(next(executions(flow.application)).uses[0], flow.known)
    assert isinstance(found, Exchange)
    return found


@pytest.mark.parametrize(
    ("phase", "messages", "sent", "per_byte"),
    [
        (2, FACES, 3_656_448, 1.0),
        (4, FACES + EDGES + CORNERS, 4_235_328, 1.0612),
        (8, (FACES + EDGES + CORNERS) // 2, 4_235_328, 1.0612),
    ],
)
def test_lulesh_on_a_torus(phase: int, messages: int, sent: int, per_byte: float) -> None:
    found = traffic(lulesh(phase), CUBE, network_of("torus:4x4x4"))
    assert (found.messages, found.bytes) == (messages, sent)
    assert found.hops_per_byte == pytest.approx(per_byte, abs=5e-5)
    assert sum(found.loads.values()) == found.byte_hops


def test_packets_of_512_bytes() -> None:
    assert traffic(lulesh(4), CUBE, network_of("torus:4x4x4")).hops_per_packet == pytest.approx(1.146, abs=5e-4)


@pytest.mark.parametrize(("part", "messages"), [("face", FACES), ("edge", EDGES), ("corner", CORNERS)])
def test_messages_by_part(part: str, messages: int, tmp_path: Path) -> None:
    found = exchange(tmp_path, f"nn3d, {part}")
    assert sum(1 for rank in range(64) for _ in sends(found, rank, CUBE)) == messages


@pytest.mark.parametrize(
    "traits", ["nn3d", "nn3d, up", "nn3d, periodic", "offset(1, 0, 0)", "offset(0, 2, 1), periodic"]
)
@pytest.mark.parametrize("grid", [(4, 4, 4), (2, 3, 1), (1, 1, 5), (2, 2, 2)])
def test_what_one_sends_another_receives(traits: str, grid: tuple[int, int, int], tmp_path: Path) -> None:
    found = exchange(tmp_path, traits)
    ranks = range(size_of(grid))
    sent = sorted((rank, to, n, offset) for rank in ranks for to, n, offset in sends(found, rank, grid))
    came = sorted((frm, rank, n, offset) for rank in ranks for frm, n, offset in receives(found, rank, grid))
    assert sent == came
    assert all(frm != to and (to > frm or "up" not in traits) for frm, to, _, _ in sent)


def test_loops_and_ranks_multiply(tmp_path: Path) -> None:
    once = "execute { comm [1] of size [8] as offset(1, 0, 0) }"
    many = f"iterate [3] {{ {once} map [2] {{ {once} }} execute {{ comm [1] as barrier }} }}"
    found = traffic(flow_in(tmp_path, many), (5, 1, 1), network_of("torus:8"))
    assert (found.messages, found.bytes, found.packets, found.collectives["barrier"]) == (36, 288, 36, 3)


def test_several_offsets_are_one_exchange(tmp_path: Path) -> None:
    found = exchange(tmp_path, "offset(1, 0, 0), offset(-1, 0, 0)", count=5)
    assert found.elements == {(1, 0, 0): 5, (-1, 0, 0): 5}


def searched(network: Network) -> nx.Graph:
    """A graph of all links that any route uses."""
    graph: nx.Graph = nx.Graph()
    for a in range(network.nodes):
        for b in range(network.nodes):
            graph.add_edges_from(network.route(a, b))
    return graph


@pytest.mark.parametrize("sides", [(4, 4, 4), (5, 3), (7,), (2, 2, 2, 2)])
def test_a_torus_takes_shortest_ways(sides: tuple[int, ...]) -> None:
    network = network_of("torus:" + "x".join(map(str, sides)))
    # The first coordinate goes fastest, the last of `product` does.
    places = [tuple(reversed(place)) for place in product(*(range(side) for side in reversed(sides)))]
    numbers = {place: number for number, place in enumerate(places)}
    graph: nx.Graph = nx.Graph()
    for place, number in numbers.items():
        for axis, side in enumerate(sides):
            following = (*place[:axis], (place[axis] + 1) % side, *place[axis + 1 :])
            graph.add_edge(number, numbers[following])
    lengths = dict(nx.all_pairs_shortest_path_length(graph))
    for a in range(network.nodes):
        for b in range(0, network.nodes, 3):
            links = network.route(a, b)
            _is_a_way(links, a, b)
            assert len(links) == lengths[a][b] and all(graph.has_edge(*link) for link in links)


def _is_a_way(links: list[tuple[int, int]], a: int, b: int) -> None:
    ends = [a, *(end for _, end in links)]
    assert [start for start, _ in links] == ends[:-1] and ends[-1] == b


@pytest.mark.parametrize(("p", "nodes"), [(2, 72), (4, 1056), (24, 1_328_256)])
def test_dragonflies_have_their_size(p: int, nodes: int) -> None:
    assert network_of(f"dragonfly:p={p}").nodes == nodes == 4 * p**4 + 2 * p**2


def test_a_dragonfly_is_what_it_should_be() -> None:
    """Groups are complete, every two groups have one link, every router p of them; routes are minimal."""
    network = network_of("dragonfly:p=2")
    graph = searched(network)
    between = [(x // 4, y // 4) for x, y in graph.edges if x // 4 != y // 4]
    assert len({tuple(sorted(pair)) for pair in between}) == len(between) == 9 * 8 // 2
    assert all(graph.degree(router) == 3 + 2 for router in graph)
    for a in range(0, 72, 5):
        for b in range(72):
            assert len(network.route(a, b)) <= 3
            ends = [a // 2, *(end for _, end in network.route(a, b))]
            assert ends[-1] == b // 2


@pytest.mark.parametrize(("q", "routers", "degree"), [(5, 50, 7), (13, 338, 19)])
def test_a_slim_fly_has_diameter_two(q: int, routers: int, degree: int) -> None:
    graph = slim_fly_graph(q)
    assert len(graph) == routers and {d for _, d in graph.degree} == {degree} and nx.diameter(graph) == 2


def test_a_fat_tree_goes_up_and_down() -> None:
    network = network_of("fattree:4,3")
    assert [len(network.route(0, b)) for b in (0, 1, 4, 16, 63)] == [0, 2, 4, 6, 6]
    for b in (1, 4, 16, 63):
        _is_a_way(network.route(0, b), 0, b)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ring:4", "there is no network ring"),
        ("torus:4x", "written torus:4x4x4"),
        ("torus:0x4", "written torus:4x4x4"),
        ("torus:4000x4000", "at most 4000000"),
        ("fattree:4", "written fattree:ARITY,LEVELS"),
        ("dragonfly:4", "written dragonfly:p=2"),
        ("slimfly:q=7", "q must be a prime"),
        ("slimfly:q=9", "q must be a prime"),
        ("slimfly:q=109", "routers; at most"),
    ],
)
def test_networks_that_are_none(name: str, words: str) -> None:
    with pytest.raises(ModelInvalid, match=words):
        network_of(name)


@pytest.mark.parametrize("text", ["", "0x4", "4x4x4x4", "a", "-1", "4000x4000"])
def test_grids_that_are_none(text: str) -> None:
    with pytest.raises(ModelInvalid, match="a grid of ranks is written 4x4x4"):
        grid_of(text)


def test_a_network_smaller_than_the_ranks() -> None:
    with pytest.raises(ModelInvalid, match="torus:3x3x3 has 27 nodes, too few for 64 ranks"):
        traffic(lulesh(), CUBE, network_of("torus:3x3x3"))


def test_messages_by_chance_have_no_sum(tmp_path: Path) -> None:
    flow = flow_in(tmp_path, "probability [0.5] { execute { comm [1] as barrier } }")
    with pytest.raises(ModelInvalid, match="sent by chance"):
        traffic(flow, CUBE, network_of("torus:4x4x4"))
