# SPDX-License-Identifier: Apache-2.0
"""Machines with disks: coarse models of disks, buses, the ends of the network (Uysal et al., section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.dataflow.toml_file import count, number, pair, positive, read_toml, refuse_unknown, table_of, text

_MOST_DEVICES = 1024


@dataclass(frozen=True)
class DiskMachine:
    """Nodes of a machine, all alike. Seconds, bytes, bytes a second.

    nodes: that there are, None where that is left open. disks, buses: of a node; disk d is on bus d mod buses. seek: to
    the next track, and across the whole disk; linear in between. turn: of the platter, 0 for a disk without one.
    """

    name: str
    nodes: int | None
    disks: int
    controller: float
    seek: tuple[float, float]
    turn: float
    disk_rate: float
    capacity: float
    buses: int
    bus_latency: float
    bus_rate: float
    net_latency: float
    net_rate: float

    def settings(self) -> dict[str, float]:
        """Of the engines (setting.c)."""
        return {
            "disks": self.disks,
            "buses": self.buses,
            "controller": self.controller,
            "seek_least": self.seek[0],
            "seek_most": self.seek[1],
            "turn": self.turn,
            "disk_rate": self.disk_rate,
            "capacity": self.capacity,
            "bus_latency": self.bus_latency,
            "bus_rate": self.bus_rate,
            "net_latency": self.net_latency,
            "net_rate": self.net_rate,
        }


def read_disk_machine(path: Path) -> DiskMachine:
    """Read a machine in TOML. Raises ModelInvalid with the file and the key, StorageError."""
    return read_toml(path, lambda said: _machine(said, path.stem))


def _machine(said: Mapping[str, Any], name: str) -> DiskMachine:
    refuse_unknown(said, ("name", "nodes", "disk", "bus", "network"), "the machine")
    if "disk" not in said:
        raise ValueError("a machine without disks: there is no table [disk]")
    disk, bus, network = (table_of(said, key) for key in ("disk", "bus", "network"))
    refuse_unknown(disk, ("per_node", "controller", "seek", "rpm", "rate", "capacity"), "[disk]")
    refuse_unknown(bus, ("per_node", "latency", "bandwidth"), "[bus]")
    refuse_unknown(network, ("latency", "bandwidth"), "[network]")
    if disk.get("per_node") == 0:
        raise ValueError("a machine without disks: [disk] per_node = 0")
    least, most = pair(disk, "seek")
    if not 0 <= least <= most:
        raise ValueError(f"seek = [{least:g}, {most:g}] are no seconds to the next track and across the disk")
    turns = number(disk, "rpm", 0.0)
    return DiskMachine(
        name=text(said, "name", name),
        nodes=count(said, "nodes", most=1 << 30) if "nodes" in said else None,
        disks=count(disk, "per_node", most=_MOST_DEVICES),
        controller=number(disk, "controller", 0.0),
        seek=(least, most),
        turn=60 / turns if turns else 0.0,
        disk_rate=positive(disk, "rate"),
        capacity=positive(disk, "capacity"),
        buses=count(bus, "per_node", 1, _MOST_DEVICES),
        bus_latency=number(bus, "latency", 0.0),
        bus_rate=positive(bus, "bandwidth"),
        net_latency=number(network, "latency", 0.0),
        net_rate=positive(network, "bandwidth"),
    )
