# SPDX-License-Identifier: Apache-2.0
"""Simulations from end to end: a model, a trace or rounds of direct mode put on a network, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from probe.models.communication import Grid, size_of
from probe.models.cost import price
from probe.models.machine import Machine
from probe.models.walk import Flow
from probe.progress import Display, Silent
from probe.simulation.direct import Pings, sent, simulate_rounds, uncontended
from probe.simulation.foreign_trace import read_trace
from probe.simulation.networks import Network
from probe.simulation.plan import plan
from probe.simulation.platform import Links
from probe.simulation.replay import Replayed, replay, replay_trace
from probe.simulation.traffic import PACKET, Traffic, refuse_small, traffic, traffic_of


@dataclass(frozen=True)
class On:
    """Where it is simulated, and how: `routes_only` sums messages and simulates no time; `limit` seconds at most."""

    network: Network
    links: Links
    packet: int = PACKET
    limit: float = 3600.0
    routes_only: bool = False
    display: Display = field(default_factory=Silent)


@dataclass(frozen=True)
class Round:
    """Seconds of one round of direct mode. uncontended: on the network, if no two messages met."""

    model: str
    socket: str
    network: float | None
    uncontended: float
    computing: float


@dataclass(frozen=True)
class Outcome:
    """seconds: simulated; None where only routes were summed. simulated: what simulating took."""

    name: str
    ranks: int
    traffic: Traffic
    seconds: float | None = None
    simulated: Replayed | None = None
    rounds: tuple[Round, ...] = ()

    def to_json(self, network: str) -> dict[str, Any]:
        """The object of docs/json.md without its version."""
        said, took = self.traffic, self.simulated
        return {
            "model": self.name, "network": network, "ranks": self.ranks, "messages": said.messages,
            "bytes": said.bytes, "packets": said.packets, "hops_per_packet": said.hops_per_packet,
            "hops_per_byte": said.hops_per_byte, "collectives": said.collectives.total(),
            "busiest_link_bytes": max(said.loads.values(), default=0), "seconds": self.seconds,
            "rounds": [
                {"model": one.model, "socket": one.socket, "network_seconds": one.network,
                 "uncontended_seconds": one.uncontended, "computing_seconds": one.computing}
                for one in self.rounds
            ],
            "simulation": None if took is None else
            {"seconds": took.wall, "events": took.events, "events_per_second": took.events_per_second},
        }  # fmt: skip


def of_model(flow: Flow, grid: Grid, machine: Machine | None, on: On, probes: Mapping[str, float]) -> Outcome:
    """A model with a rank on each of the first nodes. Raises ModelInvalid, ToolMissing, StorageError."""
    with on.display.stage("routes") as report:
        found = Outcome(flow.application.name, size_of(grid), traffic(flow, grid, on.network, packet=on.packet))
        report(1.0)
    if on.routes_only:
        return found
    steps = plan(flow, machine, probes=probes)
    with on.display.stage("replay") as report:
        took = replay(steps, grid, on.network, on.links, limit=on.limit)
        report(1.0)
    return replace(found, seconds=took.seconds, simulated=took)


def of_trace(path: Path, on: On) -> Outcome:
    """A trace that others may have written. Raises what `read_trace` and `replay_trace` raise."""
    with on.display.stage("check") as report:
        read = read_trace(path)
        report(1.0)
    refuse_small(on.network, read.ranks)
    summed = replace(traffic_of(read.sent, on.network, packet=on.packet), collectives=read.collectives)
    found = Outcome(path.name, read.ranks, summed)
    if on.routes_only:
        return found
    with on.display.stage("replay") as report:
        took = replay_trace(read.trace, read.ranks, on.network, on.links, limit=on.limit)
        report(1.0)
    return replace(found, seconds=took.seconds, simulated=took)


def of_rounds(
    rounds: Sequence[tuple[Flow, Machine | None]], pings: Pings, on: On, probes: Mapping[str, float]
) -> Outcome:
    """Direct mode: a round for each model, its computing priced on the machine's socket; none without a machine.

    Raises ModelInvalid and ToolMissing.
    """
    nodes = on.network.nodes
    computing = [
        0.0 if machine is None else price(flow, machine, ranks=nodes, probes=probes).seconds for flow, machine in rounds
    ]
    with on.display.stage("routes") as report:
        summed = traffic_of(sent(pings, nodes, len(rounds)), on.network, packet=on.packet)
        alone = [uncontended(pings, on.network, on.links, number) for number in range(len(rounds))]
        report(1.0)
    network: list[float | None] = [None] * len(rounds)
    seconds, took = None, None
    if not on.routes_only:
        with on.display.stage("rounds") as report:
            done = simulate_rounds(pings, len(rounds), on.network, on.links, limit=on.limit, report=report)
        network = list(done.seconds)
        seconds = sum(done.seconds) + sum(computing)
        took = Replayed(seconds, done.wall, done.messages)
    told = tuple(
        Round(flow.application.name, machine.socket if machine else "", on_network, without_others, computed)
        for (flow, machine), on_network, without_others, computed in zip(rounds, network, alone, computing, strict=True)
    )
    names = ", ".join(dict.fromkeys(one.model for one in told))
    return Outcome(names, nodes, summed, seconds, took, told)
