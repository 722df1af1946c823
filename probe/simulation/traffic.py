# SPDX-License-Identifier: Apache-2.0
"""Traffic of a model's exchanges on a network: messages, bytes, packets and hops as exact sums over the routes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from checkpoint.errors import ModelInvalid
from probe.models import syntax as s
from probe.models.communication import Collective, Exchange, Grid, communicates, communication, sends, size_of
from probe.models.expressions import Environment
from probe.models.walk import Flow, Walker
from probe.simulation.networks import Link, Network

PACKET = 512
"""Bytes of a packet, as in the paper."""

Sent = tuple[int, int, int]
"""Sender, receiver, bytes of a message."""


@dataclass(frozen=True)
class Traffic:
    """Of all ranks over the whole run. hops: packets times links crossed; weighted: bytes times links crossed.

    collectives: calls by kind, which have no messages of their own here. loads: bytes over each link. crossing: bytes
    by how many links they cross.
    """

    messages: int = 0
    bytes: int = 0
    packets: int = 0
    packet_hops: int = 0
    byte_hops: int = 0
    collectives: Counter[str] = field(default_factory=Counter)
    loads: Counter[Link] = field(default_factory=Counter)
    crossing: Counter[int] = field(default_factory=Counter)

    @property
    def hops_per_packet(self) -> float:
        """Mean links that a packet crosses; 0 where nothing is sent."""
        return self.packet_hops / self.packets if self.packets else 0.0

    @property
    def hops_per_byte(self) -> float:
        """Mean links that a byte crosses."""
        return self.byte_hops / self.bytes if self.bytes else 0.0


def traffic(flow: Flow, grid: Grid, network: Network, *, packet: int = PACKET) -> Traffic:
    """Traffic of the application with a rank on each of the network's first nodes, in order.

    Raises ModelInvalid: a network smaller than the ranks, and whatever the model's own faults are.
    """
    refuse_small(network, size_of(grid))
    return Walker(flow).walk(_Summing(grid, network, packet))


def refuse_small(network: Network, ranks: int) -> None:
    """Raises ModelInvalid: a network smaller than the ranks."""
    if network.nodes < ranks:
        raise ModelInvalid(f"{network.name} has {network.nodes} nodes, too few for {ranks} ranks")


def traffic_of(sent: Mapping[Sent, int], network: Network, *, packet: int = PACKET) -> Traffic:
    """Traffic of messages: how often each is sent."""
    messages = total = packets = packet_hops = byte_hops = 0
    loads: Counter[Link] = Counter()
    crossing: Counter[int] = Counter()
    for (sender, receiver, size), often in sent.items():
        route = network.route(sender, receiver)
        in_packets = often * max(1, -(-size // packet))
        messages, total, packets = messages + often, total + often * size, packets + in_packets
        packet_hops += in_packets * len(route)
        byte_hops += often * size * len(route)
        crossing[len(route)] += often * size
        for link in route:
            loads[link] += often * size
    return Traffic(messages, total, packets, packet_hops, byte_hops, Counter(), loads, crossing)


class _Summing:
    """Visitor that sums."""

    def __init__(self, grid: Grid, network: Network, packet: int) -> None:
        self._grid, self._network, self._packet = grid, network, packet

    def execute(self, block: s.Execute, known: Environment, beside: int) -> Traffic:
        parts = [self._one(communication(use, known)) for use in block.uses if communicates(use)]
        return _times(self.sequence(parts), beside)

    def _one(self, found: Collective | Exchange) -> Traffic:
        if isinstance(found, Collective):
            return Traffic(collectives=Counter({found.kind: 1}))
        sent: Counter[Sent] = Counter()
        for rank in range(size_of(self._grid)):
            for receiver, elements, _ in sends(found, rank, self._grid):
                sent[(rank, receiver, elements * found.size)] += 1
        return traffic_of(sent, self._network, packet=self._packet)

    def sequence(self, parts: list[Traffic]) -> Traffic:
        found = Traffic()
        for part in parts:
            found = _sum(found, part)
        return found

    beside = sequence

    def repeat(self, body: Traffic, count: int) -> Traffic:
        return _times(body, count)

    def weighted(self, parts: list[tuple[float, Traffic]]) -> Traffic:
        if any(part.messages or part.collectives for _, part in parts):
            raise ModelInvalid("messages sent by chance have no exact sum: simulate the model instead")
        return Traffic()

    def kernel(self, name: str, body: Traffic) -> Traffic:
        return body


def _sum(a: Traffic, b: Traffic) -> Traffic:
    return Traffic(
        a.messages + b.messages, a.bytes + b.bytes, a.packets + b.packets, a.packet_hops + b.packet_hops,
        a.byte_hops + b.byte_hops, a.collectives + b.collectives, a.loads + b.loads,
        a.crossing + b.crossing,
    )  # fmt: skip


def _times(a: Traffic, count: int) -> Traffic:
    return Traffic(
        a.messages * count, a.bytes * count, a.packets * count, a.packet_hops * count, a.byte_hops * count,
        _often(a.collectives, count), _often(a.loads, count), _often(a.crossing, count),
    )  # fmt: skip


Key = TypeVar("Key")


def _often(counts: Counter[Key], factor: int) -> Counter[Key]:
    return Counter({key: value * factor for key, value in counts.items()})
