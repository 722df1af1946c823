# SPDX-License-Identifier: Apache-2.0
"""SimGrid platforms of networks: files that `smpirun` reads, of any version from 3.25 on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from checkpoint.errors import ModelInvalid, StorageError
from probe.simulation.networks import Network

MOST_ROUTES = 4_000_000
"""Full routes written out for networks that SimGrid does not know by itself."""

HOST = "node"

OWN_BANDWIDTH, OWN_LATENCY = 5e9, 3e-7
"""Within a node, through its memory: bytes a second, seconds."""


@dataclass(frozen=True)
class Links:
    """Of every link: bytes a second, seconds of latency. speed: operations a second of a node."""

    bandwidth: float
    latency: float
    speed: float = 1e9

    def __post_init__(self) -> None:
        if not (self.bandwidth > 0 and self.latency >= 0 and self.speed > 0):
            raise ModelInvalid("bandwidth and speed are above 0, latency is 0 or more")


def write_platform(network: Network, ranks: int, links: Links, folder: Path, *, cores: int = 1) -> tuple[Path, Path]:
    """Write platform.xml and hosts.txt with a rank on each of the first nodes. cores: of a node. Returns both.

    Raises ModelInvalid: a network smaller than the ranks, or too many routes. Raises StorageError.
    """
    if network.nodes < ranks:
        raise ModelInvalid(f"{network.name} has {network.nodes} nodes, too few for {ranks} ranks")
    platform, hosts = folder / "platform.xml", folder / "hosts.txt"
    try:
        with platform.open("w") as file:
            file.write("<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n")
            file.write('<platform version="4.1">\n')
            file.writelines(f"{line}\n" for line in _body(network, ranks, links, cores))
            file.write("</platform>\n")
        hosts.write_text("".join(f"{HOST}{rank}\n" for rank in range(ranks)))
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written ({error.strerror})") from error
    return platform, hosts


def _body(network: Network, ranks: int, links: Links, cores: int) -> Iterator[str]:
    kind, _, rest = network.name.partition(":")
    common = f'speed="{links.speed!r}f" bw="{links.bandwidth!r}Bps" lat="{links.latency!r}s" core="{cores}"'
    own = f'loopback_bw="{OWN_BANDWIDTH!r}Bps" loopback_lat="{OWN_LATENCY!r}s"'
    if kind == "torus":
        sides = rest.replace("x", ",")
        # Version 4 of SimGrid wants a zone around a cluster that is no star.
        yield (
            '<zone id="world" routing="Full">'
            f'<cluster id="all" prefix="{HOST}" suffix="" radical="0-{network.nodes - 1}" {common} '
            f'sharing_policy="SPLITDUPLEX" {own} topology="TORUS" topo_parameters="{sides}"/></zone>'
        )
        return
    if kind == "simple":
        # A cable up and a cable down: half of the latency each.
        common = common.replace(f'lat="{links.latency!r}s"', f'lat="{links.latency / 2!r}s"')
        yield (
            f'<cluster id="all" prefix="{HOST}" suffix="" radical="0-{network.nodes - 1}" {common} '
            f'sharing_policy="SPLITDUPLEX" {own}/>'
        )
        return
    yield from _routes(network, ranks, links, cores)


def seconds_between(network: Network, links: Links, source: int, target: int, size: int) -> float:
    """Time of a message of so many bytes that has the network to itself, on the platform that is written here."""
    own = 0 if network.name.partition(":")[0] in ("torus", "simple") else 2
    return (len(network.route(source, target)) + own) * links.latency + size / links.bandwidth


def _routes(network: Network, ranks: int, links: Links, cores: int) -> Iterator[str]:
    """A zone with all routes between the ranks written out: each node has a link of its own to its router."""
    if ranks * ranks > MOST_ROUTES:
        raise ModelInvalid(f"{network.name}: {ranks} ranks have too many routes to write; at most 2000 ranks")
    yield '<zone id="all" routing="Full">'
    paths = {(a, b): network.route(a, b) for a in range(ranks) for b in range(ranks) if a != b}
    used = dict.fromkeys(link for path in paths.values() for link in path)
    for rank in range(ranks):
        yield f'<host id="{HOST}{rank}" speed="{links.speed!r}f" core="{cores}"/>'
    quoted = f'bandwidth="{links.bandwidth!r}Bps" latency="{links.latency!r}s"'
    for rank in range(ranks):
        yield f'<link id="up{rank}" {quoted}/><link id="down{rank}" {quoted}/>'
    for number, _ in enumerate(used):
        yield f'<link id="link{number}" {quoted}/>'
    yield f'<link id="own" bandwidth="{OWN_BANDWIDTH!r}Bps" latency="{OWN_LATENCY!r}s" sharing_policy="FATPIPE"/>'
    numbers = {link: number for number, link in enumerate(used)}
    for (a, b), path in paths.items():
        inner = "".join(f'<link_ctn id="link{numbers[link]}"/>' for link in path)
        yield (
            f'<route src="{HOST}{a}" dst="{HOST}{b}" symmetrical="NO"><link_ctn id="up{a}"/>{inner}'
            f'<link_ctn id="down{b}"/></route>'
        )
    for rank in range(ranks):
        yield f'<route src="{HOST}{rank}" dst="{HOST}{rank}"><link_ctn id="own"/></route>'
    yield "</zone>"
