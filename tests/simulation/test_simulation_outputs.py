# SPDX-License-Identifier: Apache-2.0
"""Files of a simulation: configuration for CODES, and the picture of the links' load."""

from __future__ import annotations

from pathlib import Path

import pytest
from aspen_models import lulesh

from checkpoint.errors import ModelInvalid
from probe.simulation.codes import UNTESTED, codes_configuration
from probe.simulation.configured import read_network
from probe.simulation.load_figure import load_figure
from probe.simulation.networks import network_of
from probe.simulation.platform import Links
from probe.simulation.traffic import Traffic, traffic, traffic_of

LINKS = Links(2.5e9, 3e-7)


@pytest.mark.parametrize(
    "name", ["torus:4x4x2", "torus:8", "dragonfly:p=2", "dragonfly:p=4", "slimfly:q=5", "simple:96"]
)
def test_an_exported_network_is_read_as_the_same(name: str, tmp_path: Path) -> None:
    """By our own reader of such files alone: CODES itself is not here, and the file says so."""
    text = codes_configuration(network_of(name), LINKS, packet=256)
    assert UNTESTED in text.splitlines()[0] and 'packet_size="256";' in text
    (tmp_path / "made.conf").write_text(text)
    network, links, notes = read_network(tmp_path / "made.conf")
    assert (network.name, notes) == (name, ())
    assert links.bandwidth == pytest.approx(LINKS.bandwidth) and links.latency == pytest.approx(LINKS.latency)


def test_a_dragonfly_has_the_layout_of_codes_own_example() -> None:
    """p = 2: 36 routers with two nodes each, four routers in a group (its tests/conf/modelnet-test-dragonfly.conf)."""
    lines = [line.strip() for line in codes_configuration(network_of("dragonfly:p=2"), LINKS).splitlines()]
    for line in (
        'repetitions="36";', 'server="2";', 'modelnet_dragonfly="2";', 'modelnet_dragonfly_router="1";',
        'num_routers="4";', 'modelnet_order=( "dragonfly","dragonfly_router" );',
    ):  # fmt: skip
        assert line in lines


def test_a_network_that_codes_builds_otherwise() -> None:
    with pytest.raises(ModelInvalid, match="CODES has no such network; it has torus"):
        codes_configuration(network_of("fattree:4,3"), LINKS)


def test_the_load_of_links_is_drawn_with_its_data() -> None:
    found = traffic(lulesh(4), (4, 4, 4), network_of("torus:4x4x4"))
    drawn = load_figure(found, "torus:4x4x4")
    assert sum(row[2] for row in drawn.rows) == found.byte_hops and len(drawn.rows) == len(found.loads)
    assert drawn.rows[0][2] == max(found.loads.values())
    assert drawn.png().startswith(b"\x89PNG") and b"<svg" in drawn.svg()
    assert drawn.figure is not None
    links, crossing = drawn.figure.axes
    assert links.lines[0].get_ydata()[0] == drawn.rows[0][2]
    assert sum(bar.get_height() for bar in crossing.patches) == pytest.approx(1.0)


def test_without_messages_nothing_is_drawn() -> None:
    drawn = load_figure(Traffic(), "torus:2")
    assert drawn.figure is None and "No message" in drawn.caption


def test_bytes_by_links_crossed() -> None:
    found = traffic_of({(0, 1, 100): 3, (0, 2, 10): 1, (5, 5, 7): 1}, network_of("torus:8"))
    assert found.crossing == {1: 300, 2: 10, 0: 7} and found.byte_hops == 320 and found.messages == 5
