# SPDX-License-Identifier: Apache-2.0
"""Direct mode: rounds of pings and computing, by options and by the files of the paper's listings 6 and 7."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from aspen_models import MACHINE, flow_in
from durango_files import LISTING_6, LISTING_7, rounds_in

from checkpoint.errors import ModelInvalid, StorageError, ToolMissing
from probe.models.expressions import Settings
from probe.models.machine import Machine, read_machine
from probe.models.reader import read_model
from probe.simulation.configured import read_configured, read_network
from probe.simulation.direct import Pings, partners, sent, simulate_rounds, source, uncontended
from probe.simulation.networks import network_of
from probe.simulation.outcome import On, of_rounds
from probe.simulation.platform import Links

LINKS = Links(2e9, 1e-6)
FEW = Pings(requests=16)
LIMIT = 120


def socket(name: str) -> Machine:
    return read_machine(read_model(MACHINE), Settings({}), name)


@pytest.mark.parametrize("name", ["torus:4x4x2", "torus:3x3", "simple:16"])
def test_without_contention_a_round_takes_the_closed_form(name: str) -> None:
    """Every node pings the next one: no two messages share a link in one direction."""
    network = network_of(name)
    done = simulate_rounds(FEW, 2, network, LINKS, limit=LIMIT)
    assert done.seconds == pytest.approx([uncontended(FEW, network, LINKS, number) for number in range(2)], rel=0.01)
    assert done.messages == 2 * 2 * 16 * network.nodes


def test_the_closed_form_done_by_hand() -> None:
    """The last node of a row is three links from the next one: two round trips of 3 us and 512 ns each."""
    pings = Pings(requests=2, payload=1024)
    assert uncontended(pings, network_of("torus:4x4x2"), LINKS, 0) == pytest.approx(2 * 2 * (3e-6 + 512e-9))
    assert uncontended(pings, network_of("simple:8"), LINKS, 0) == pytest.approx(2 * 2 * (1e-6 + 512e-9))
    assert uncontended(pings, network_of("dragonfly:p=2"), LINKS, 0) == pytest.approx(2 * 2 * (5e-6 + 512e-9))


@pytest.mark.parametrize("name", ["dragonfly:p=2", "slimfly:q=5", "fattree:4,2"])
def test_other_networks_take_as_long_or_longer(name: str) -> None:
    network = network_of(name)
    (seconds,) = simulate_rounds(Pings(requests=4), 1, network, LINKS, limit=LIMIT).seconds
    alone = uncontended(Pings(requests=4), network, LINKS, 0)
    assert alone <= seconds < 2 * alone


def test_many_who_ask_one_wait_for_each_other() -> None:
    """Random traffic: some node has several askers, whose pings share its link."""
    network, pings = network_of("simple:24"), Pings("random", requests=16, payload=1 << 16)
    (seconds,) = simulate_rounds(pings, 1, network, LINKS, limit=LIMIT).seconds
    askers = max(Counter(partners(pings, 24, 0)).values())
    alone = uncontended(pings, network, LINKS, 0)
    assert askers > 2 and 1.5 * alone < seconds < 2 * askers * alone


def test_partners() -> None:
    assert partners(Pings(), 4, 7) == [1, 2, 3, 0]
    drawn = [partners(Pings("random", seed=seed), 50, number) for seed in (1, 2) for number in (0, 1)]
    assert all(to != node and 0 <= to < 50 for one in drawn for node, to in enumerate(one))
    assert len({tuple(one) for one in drawn}) == 4 and drawn[0] == partners(Pings("random", seed=1), 50, 0)
    assert sent(Pings(requests=3, payload=9), 3, 2) == {(a, b, 9): 6 for a in range(3) for b in range(3) if a != b}


def test_a_rounds_time_is_the_networks_and_its_models_on_its_socket(tmp_path: Path) -> None:
    """Listing 5: delta is the latest end minus the earliest start, then Aspen's run time for the round's socket."""
    flow = flow_in(tmp_path, "execute [64] { flops [3e9] }")
    on = On(network_of("torus:2x2"), LINKS, limit=LIMIT)
    found = of_rounds([(flow, socket("cpu")), (flow, socket("card"))], FEW, on, {})
    assert [one.computing for one in found.rounds] == pytest.approx([16.0, 2.0])
    assert [one.socket for one in found.rounds] == ["cpu", "card"]
    assert found.seconds == pytest.approx(18.0 + sum(one.network or 0 for one in found.rounds), abs=1e-9)
    assert found.traffic.messages == 2 * 2 * 16 * 4


def test_progress_goes_up_to_the_whole() -> None:
    seen: list[float] = []
    simulate_rounds(FEW, 2, network_of("torus:2x2"), LINKS, limit=LIMIT, report=seen.append)
    assert len(seen) == 32 and seen == sorted(seen) and seen[-1] == 1.0


def test_listings_six_and_seven(tmp_path: Path) -> None:
    """Read as printed: 4096 servers, 1.5 ns, 20000 MB/s; matmul on the processor, then on the card."""
    found = read_configured(rounds_in(tmp_path, LISTING_6, LISTING_7))
    assert (found.network.name, found.network.nodes) == ("simple:4096", 4096)
    assert (found.links.bandwidth, found.links.latency) == (20000 * 2**20, pytest.approx(1.5e-9))
    assert found.pings == Pings("random", 128, 1024) and found.debug == 1 and found.notes == ()
    assert found.machine == tmp_path / ".models/machine/BigTestRig.aspen"
    assert [one.socket for one in found.rounds] == ["amd_830", "amd_HD5770"]
    assert {one.model for one in found.rounds} == {tmp_path / ".models/matmul/matmul.aspen"}


def test_listing_four_sends_a_ping_at_the_kickoff_and_an_answer_to_each() -> None:
    text = source(Pings("random", 128, 1024), 2, 64)
    assert "REQUESTS = 128, PAYLOAD = 1024" in text and "NODES = 64" in text and "TABLES = 2" in text
    assert source(Pings(), 2, 64).count("TABLES = 1") == 1


_TORUS = (
    'LPGROUPS { G { repetitions="%d"; server="1"; modelnet_torus="1"; } }\nPARAMS { modelnet_order=( "torus" ); %s }'
)
_DRAGONFLY = """LPGROUPS { MODELNET_GRP { repetitions="36"; server="2"; } }
PARAMS { modelnet_order=( "dragonfly","dragonfly_router" ); num_routers="4"; local_bandwidth="5.25";
  global_bandwidth="4.7"; cn_bandwidth="5.25"; routing="adaptive"; }"""


def test_networks_of_codes(tmp_path: Path) -> None:
    path = tmp_path / "network.conf"
    path.write_text(_TORUS % (32, 'n_dims="3"; dim_length="4,4,2"; link_bandwidth="2.0"; router_delay="50";'))
    network, links, notes = read_network(path)
    assert network.name == "torus:4x4x2" and notes == ()
    assert (links.bandwidth, links.latency) == (2 * 2**30, pytest.approx(5e-8))
    path.write_text(_DRAGONFLY)
    network, links, notes = read_network(path)
    assert network.name == "dragonfly:p=2" and links.bandwidth == pytest.approx(4.7 * 2**30)
    assert [re.sub(":.*", "", note) for note in notes] == ["links have one bandwidth here", "no router_delay"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('num_rounds="2";', 'num_rounds="3";'), r'rounds.conf:1: aspen_app_path002="..." is wanted'),
        (('num_rounds="2";', 'num_rounds="1";'), "aspen_app_path001 means nothing here"),
        (('num_rounds="2";', 'num_rounds="0";'), "num_rounds is 1 to 1000, not 0"),
        (('num_rounds="2";', 'num_rounds="two";'), 'num_rounds="two" is no number'),
        (('num_rounds="2";', 'num_rounds="1.5";'), "a whole number is wanted"),
        (('num_rounds="2";', 'num_rounds="2"'), "'aspen_mach_path' cannot stand here; ';' is expected"),
        (('num_rounds="2";', "num_rounds=2;"), "'2' cannot stand here"),
        (('num_rounds="2";', 'num_rounds="2"; num_rounds="2";'), "num_rounds is given twice"),
        (('"random"', '"tornado"'), "network_traffic_pattern is one of nearest, random, not tornado"),
        (('debug_output="1"', 'debug_output="7"'), "debug_output is 0, 1 or 2"),
        (('num_reqs="128"', 'num_reqs="0"'), "pings: 1 or more"),
        (("ASPEN_PARAMS", "ASPEN"), "there is no section ASPEN_PARAMS"),
        (('payload_sz="1024";\n}', 'payload_sz="1024";\n'), "the file ends where"),
    ],
)
def test_files_of_rounds_that_are_wrong(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    assert change[0] in LISTING_6
    path = rounds_in(tmp_path, LISTING_6.replace(*change), LISTING_7)
    with pytest.raises(ModelInvalid, match=re.escape(words)):
        read_configured(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_TORUS % (31, 'n_dims="3"; dim_length="4,4,2"; link_bandwidth="2";'), "LPGROUPS has 31 servers"),
        (_TORUS % (32, 'n_dims="2"; dim_length="4,4,2"; link_bandwidth="2";'), "not n_dims of them"),
        (_TORUS % (32, 'n_dims="1"; dim_length="4;"; link_bandwidth="2";'), "written torus:4x4x4"),
        (_TORUS % (32, 'n_dims="1"; dim_length="32"; link_bandwidth="0";'), "bandwidth and speed are above 0"),
        (_DRAGONFLY.replace('num_routers="4"', 'num_routers="5"'), "num_routers is even"),
        (_DRAGONFLY.replace('"dragonfly",', '"loggp",'), "modelnet_order is one of"),
        ("LPGROUPS { } PARAMS { }", "one group of servers"),
        ("A { " * 30, "cannot stand here"),
    ],
)
def test_networks_of_codes_that_are_wrong(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "network.conf"
    path.write_text(text)
    with pytest.raises(ModelInvalid, match=re.escape(words)):
        read_network(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        read_network(tmp_path / "absent.conf")
    with pytest.raises(StorageError, match="no file can have this name"):
        read_network(tmp_path / "a\0b")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelInvalid, match="not text"):
        read_network(tmp_path / "bytes")
    (tmp_path / "large").write_bytes(b" " * 1_000_001)
    with pytest.raises(StorageError, match="larger than 1000000 bytes"):
        read_network(tmp_path / "large")


def test_pings_that_cannot_be() -> None:
    with pytest.raises(ModelInvalid, match="traffic is one of"):
        Pings("tornado")
    with pytest.raises(ModelInvalid, match="a network of two nodes"):
        simulate_rounds(FEW, 1, network_of("torus:1"), LINKS)
    with pytest.raises(ModelInvalid, match="fewer rounds"):
        source(Pings("random"), 100, 32768)
    with pytest.raises(ModelInvalid, match="allow more with --limit"):
        simulate_rounds(Pings(requests=100_000), 1, network_of("torus:4x4"), LINKS, limit=1)


def test_without_simgrid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="smpirun is not installed: install SimGrid"):
        simulate_rounds(FEW, 1, network_of("torus:2x2"), LINKS)
    (tmp_path / "smpirun").symlink_to("/usr/bin/smpirun")
    with pytest.raises(ToolMissing, match="smpicc is not installed: install SimGrid"):
        simulate_rounds(FEW, 1, network_of("torus:2x2"), LINKS)
