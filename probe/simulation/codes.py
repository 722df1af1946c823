# SPDX-License-Identifier: Apache-2.0
"""Configuration of a network for the packet simulator CODES. Untested: CODES is built from source, and not here."""

from __future__ import annotations

from checkpoint.errors import ModelInvalid
from probe.simulation.configured import GIGABYTE, MEGABYTE
from probe.simulation.networks import Network
from probe.simulation.platform import Links
from probe.simulation.traffic import PACKET

UNTESTED = "untested: CODES has not read this file"

_TOGETHER = "MODELNET_GRP"


def codes_configuration(network: Network, links: Links, *, packet: int = PACKET) -> str:
    """Text of the file, with the layout of simulated parts (LPGROUPS) and their values (PARAMS).

    Raises ModelInvalid for a fat tree, which CODES builds otherwise.
    """
    kind, _, rest = network.name.partition(":")
    makers = {"torus": _torus, "dragonfly": _dragonfly, "slimfly": _slimfly, "simple": _simple}
    if kind not in makers:
        raise ModelInvalid(f"{network.name}: CODES has no such network; it has {', '.join(makers)}")
    group, values = makers[kind](rest, network, links)
    common = {
        "packet_size": f"{packet}",
        "chunk_size": f"{packet}",
        "modelnet_scheduler": "fcfs",
        "message_size": "512",
    }
    return (
        f"# Made by probe simulate --export codes from {network.name}; {UNTESTED}.\n"
        f"LPGROUPS\n{{\n   {_TOGETHER}\n   {{\n{_lines(group, 6)}   }}\n}}\n"
        f"PARAMS\n{{\n{_lines({**common, **values}, 3)}}}\n"
    )


Values = dict[str, str]


def _lines(values: Values, indent: int) -> str:
    return "".join(
        f"{' ' * indent}{key}={value if value.startswith('(') else _quoted(value)};\n" for key, value in values.items()
    )


def _quoted(value: str) -> str:
    return f'"{value}"'


def _torus(rest: str, network: Network, links: Links) -> tuple[Values, Values]:
    sides = rest.split("x")
    return {"repetitions": f"{network.nodes}", "server": "1", "modelnet_torus": "1"}, {
        "modelnet_order": '( "torus" )', "n_dims": f"{len(sides)}", "dim_length": ",".join(sides),
        "link_bandwidth": _gigabytes(links), "router_delay": _nanoseconds(links), "buffer_size": "8192",
    }  # fmt: skip


def _dragonfly(rest: str, network: Network, links: Links) -> tuple[Values, Values]:
    nodes = int(rest.partition("=")[2])
    group = _group(network.nodes // nodes, nodes, "modelnet_dragonfly", "modelnet_dragonfly_router")
    return group, {
        "modelnet_order": '( "dragonfly","dragonfly_router" )', "num_routers": f"{2 * nodes}", **_kinds(links),
    }  # fmt: skip


def _slimfly(rest: str, network: Network, links: Links) -> tuple[Values, Values]:
    q = int(rest.partition("=")[2])
    nodes = network.nodes // (2 * q * q)
    return _group(2 * q * q, nodes, "modelnet_slimfly", "slimfly_router"), {
        "modelnet_order": '( "slimfly" )', "num_vcs": "4", "num_routers": f"{q}", "num_terminals": f"{nodes}",
        "global_channels": f"{q}", "local_channels": f"{(q - 1) // 2}", **_kinds(links),
    }  # fmt: skip


def _simple(_rest: str, network: Network, links: Links) -> tuple[Values, Values]:
    return {"repetitions": f"{network.nodes}", "server": "1", "modelnet_simplenet": "1"}, {
        "modelnet_order": '( "simplenet" )', "net_startup_ns": _nanoseconds(links),
        "net_bw_mbps": f"{links.bandwidth / MEGABYTE:.9g}",
    }  # fmt: skip


def _group(routers: int, nodes: int, terminal: str, router: str) -> Values:
    """A router and the nodes at it, so often."""
    return {"repetitions": f"{routers}", "server": f"{nodes}", terminal: f"{nodes}", router: "1"}


def _kinds(links: Links) -> Values:
    """The same for links inside of a group, between groups, and to nodes."""
    kinds = ("local", "global", "cn")
    return {
        **{f"{kind}_bandwidth": _gigabytes(links) for kind in kinds}, **{f"{kind}_vc_size": "8192" for kind in kinds},
        "router_delay": _nanoseconds(links), "routing": "minimal",
    }  # fmt: skip


def _gigabytes(links: Links) -> str:
    return f"{links.bandwidth / GIGABYTE:.9g}"


def _nanoseconds(links: Links) -> str:
    return f"{links.latency * 1e9:.9g}"
