# SPDX-License-Identifier: Apache-2.0
"""Rounds of direct mode as Durango's two configuration files describe them: models, sockets, pings and network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from checkpoint.errors import ModelInvalid
from probe.simulation.configuration import Section, read_configuration
from probe.simulation.direct import PATTERNS, Pings
from probe.simulation.networks import Network, network_of
from probe.simulation.platform import Links

MEGABYTE, GIGABYTE = 2**20, 2**30
"""What CODES counts as such in its bandwidths."""

MOST_ROUNDS = 1000
DEBUG_LEVELS = (0, 1, 2)
_LATENCY = 1e-6


@dataclass(frozen=True)
class Round:
    """The model that computes in a round, and on which socket."""

    model: Path
    socket: str


@dataclass(frozen=True)
class Configured:
    """Everything that the files say. debug: 0 nothing, 1 the configuration too, 2 progress too. notes: what differs."""

    rounds: tuple[Round, ...]
    machine: Path
    pings: Pings
    network: Network
    links: Links
    debug: int
    notes: tuple[str, ...]


def read_configured(path: Path) -> Configured:
    """Read the primary file and the network's file that it names. Paths are from the primary file's folder.

    Raises ModelInvalid and StorageError.
    """
    whole = read_configuration(path)
    aspen = whole.section("ASPEN_PARAMS")
    pings = whole.sections.get("SERVER_PINGS", Section(f"{path}: SERVER_PINGS"))
    debug = aspen.count("debug_output", 0)
    if debug not in DEBUG_LEVELS:
        raise ModelInvalid(f"{aspen.where}: debug_output is 0, 1 or 2")
    network, links, notes = read_network(path.parent / aspen.text("network_conf_file"))
    return Configured(
        _rounds(aspen, path.parent),
        path.parent / aspen.text("aspen_mach_path"),
        Pings(_pattern(aspen), pings.count("num_reqs", 128), pings.count("payload_sz", 1024)),
        network, links, debug, notes,
    )  # fmt: skip


def _pattern(aspen: Section) -> str:
    said = aspen.text("network_traffic_pattern", PATTERNS[0])
    name = said.replace("_neighbor", "").replace("-neighbor", "")
    if name not in PATTERNS:
        raise ModelInvalid(f"{aspen.where}: network_traffic_pattern is one of {', '.join(PATTERNS)}, not {said}")
    return name


def _rounds(aspen: Section, folder: Path) -> tuple[Round, ...]:
    count = aspen.count("num_rounds", 1)
    if not 1 <= count <= MOST_ROUNDS:
        raise ModelInvalid(f"{aspen.where}: num_rounds is 1 to {MOST_ROUNDS}, not {count}")
    known = {f"{key}{number:03d}" for key in ("aspen_app_path", "socket_choice") for number in range(count)}
    known |= {"debug_output", "network_conf_file", "network_traffic_pattern", "num_rounds", "aspen_mach_path"}
    unknown = sorted({*aspen.values, *aspen.sections} - known)
    if unknown:
        raise ModelInvalid(f"{aspen.where}: {unknown[0]} means nothing here; {', '.join(sorted(known))} do")
    return tuple(
        Round(folder / aspen.text(f"aspen_app_path{number:03d}"), aspen.text(f"socket_choice{number:03d}", ""))
        for number in range(count)
    )


def read_network(path: Path) -> tuple[Network, Links, tuple[str, ...]]:
    """A network of CODES, its links, and what could not be taken as it stands. Raises ModelInvalid, StorageError."""
    whole = read_configuration(path)
    parameters = whole.section("PARAMS")
    servers = _servers(whole.section("LPGROUPS"))
    kind = parameters.values.get("modelnet_order", ("",))[0]
    readers = {"simplenet": _simplenet, "torus": _torus, "dragonfly": _dragonfly, "slimfly": _slimfly}
    if kind not in readers:
        raise ModelInvalid(
            f"{parameters.where}: modelnet_order is one of {', '.join(readers)}, not {kind or 'missing'}"
        )
    name, links, notes = readers[kind](parameters, servers)
    network = network_of(name)
    if network.nodes != servers:
        raise ModelInvalid(f"{path}: {name} has {network.nodes} nodes, and LPGROUPS has {servers} servers")
    return network, links, notes


def _servers(groups: Section) -> int:
    if len(groups.sections) != 1:
        raise ModelInvalid(f"{groups.where}: one group of servers is wanted, not {len(groups.sections)}")
    (group,) = groups.sections.values()
    return group.count("repetitions") * group.count("nw-lp" if "nw-lp" in group.values else "server")


Described = tuple[str, Links, tuple[str, ...]]


def _simplenet(parameters: Section, servers: int) -> Described:
    latency = parameters.number("net_startup_ns") * 1e-9
    return f"simple:{servers}", Links(parameters.number("net_bw_mbps") * MEGABYTE, latency), ()


def _torus(parameters: Section, _servers: int) -> Described:
    sides = parameters.text("dim_length").split(",")
    if len(sides) != parameters.count("n_dims"):
        raise ModelInvalid(f"{parameters.where}: dim_length has {len(sides)} sides, not n_dims of them")
    name = "torus:" + "x".join(side.strip() for side in sides)
    return name, *_links(parameters, ("link_bandwidth",), "router_delay")


def _dragonfly(parameters: Section, _servers: int) -> Described:
    routers = parameters.count("num_routers")
    if routers % 2:
        raise ModelInvalid(f"{parameters.where}: num_routers is even: twice the nodes of a router")
    return f"dragonfly:p={routers // 2}", *_links(parameters, _BANDWIDTHS, "router_delay")


def _slimfly(parameters: Section, _servers: int) -> Described:
    return f"slimfly:q={parameters.count('num_routers')}", *_links(parameters, _BANDWIDTHS, "router_delay")


_BANDWIDTHS = ("local_bandwidth", "global_bandwidth", "cn_bandwidth")


def _links(parameters: Section, keys: tuple[str, ...], delay: str) -> tuple[Links, tuple[str, ...]]:
    """The slowest kind of link stands for all."""
    speeds = [parameters.number(key) for key in keys]
    notes = []
    if len(set(speeds)) > 1:
        notes.append(f"links have one bandwidth here: {min(speeds):g} GiB/s, the lowest of {', '.join(keys)}")
    if delay not in parameters.values:
        notes.append(f"no {delay}: a link takes {_LATENCY * 1e9:g} ns")
    return Links(min(speeds) * GIGABYTE, parameters.number(delay, _LATENCY * 1e9) * 1e-9), tuple(notes)
