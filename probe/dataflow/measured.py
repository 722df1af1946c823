# SPDX-License-Identifier: Apache-2.0
"""Machines as they were measured: disks of nodes by direct reads over there, the network by `probe net`."""

from __future__ import annotations

import shlex
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from checkpoint import strict_json
from checkpoint.errors import NodeMisbehaved, NodeUnfit
from checkpoint.foreign_file import finite
from probe.dataflow import disk_times
from probe.dataflow.machine import DiskMachine
from probe.foreign_text import printable
from probe.ssh.addresses import Address
from probe.ssh.interface import Channel, SshOptions
from probe.ssh.reach import connect
from probe.ssh.throughput import Link

LEAST_BYTES: Final = 8 * disk_times.LARGE
_PATIENCE_SECONDS = disk_times.MOST_SECONDS + 60.0
_MOST_ANSWER = 1 << 16
_NO_LIMIT = 1e12
"""Bytes a second of what cannot be told apart from what is behind it."""


@dataclass(frozen=True)
class DiskTimes:
    """Seconds of direct reads: a page behind the last one, a mebibyte behind the last one, a page anywhere in the file.
    capacity: bytes of the file system."""

    page: float
    large: float
    far: float
    capacity: float

    @property
    def rate(self) -> float:
        """Bytes a second: what a larger read takes more."""
        return (disk_times.LARGE - disk_times.PAGE) / max(self.large - self.page, 1e-9)

    @property
    def controller(self) -> float:
        """Seconds of a read beside its bytes."""
        return max(self.page - disk_times.PAGE / self.rate, 0.0)


def measure_disk(address: Address, ssh: SshOptions, folder: Path, size: int) -> DiskTimes:
    """Time reads of a file of `size` bytes that is made in the node's folder, and gone afterwards.

    The node needs python3, 3.8 or newer. Raises NodeUnreachable, NodeUnfit where it refuses, NodeMisbehaved.
    """
    program = Path(disk_times.__file__).read_bytes()
    words = f"exec python3 -I - {shlex.quote(str(folder))} {size}"
    with connect(address, ssh) as connection, connection.start(words) as channel:
        channel.send(program, _PATIENCE_SECONDS)
        channel.end_of_input()
        return _times(address.text, _answer(address.text, channel))


def _answer(name: str, channel: Channel) -> bytes:
    found, until = b"", time.monotonic() + _PATIENCE_SECONDS
    while piece := channel.receive(_MOST_ANSWER, max(0.0, until - time.monotonic())):
        found += piece
        if len(found) > _MOST_ANSWER:
            raise NodeMisbehaved(f"{name}: says more than {_MOST_ANSWER} bytes of its disk; does python3 run there?")
    if piece is None:
        raise NodeMisbehaved(
            f"{name}: reads of its disk were not over after {_PATIENCE_SECONDS:.0f} s; give a smaller --disk-bytes, or "
            "another --folder"
        )
    if channel.exit_status(_PATIENCE_SECONDS) == 127:
        raise NodeUnfit(f"{name}: no python3 on this node; install it, 3.8 or newer")
    return found


def _times(name: str, answer: bytes) -> DiskTimes:
    try:
        said = strict_json.loads(answer.decode("utf-8").splitlines()[-1])
        if "refused" in said:
            raise NodeUnfit(f"{name}: {printable(str(said['refused']), 400)}")
        values = {key: finite(said[key]) for key in ("page", "large", "far", "capacity")}
        if min(values.values()) <= 0:
            raise ValueError("times are above 0")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        shown = printable(answer.decode("utf-8", "replace"), 200)
        raise NodeMisbehaved(f"{name}: says no times of its disk, but {shown!r}; does python3 run there?") from error
    return DiskTimes(**values)


def measured_machine(name: str, links: Sequence[Link], disks: Sequence[DiskTimes]) -> DiskMachine:
    """A machine of the medians over nodes. Of a way there and one back the slower counts.

    A seek takes what one within the file took: how far that is on the disk nobody knows.
    """
    controller, rate = statistics.median(one.controller for one in disks), statistics.median(one.rate for one in disks)
    far = statistics.median(max(one.far - one.page, 0.0) for one in disks)
    return DiskMachine(
        name=name,
        nodes=None,
        disks=1,
        controller=controller,
        seek=(far, far),
        turn=0.0,
        disk_rate=rate,
        capacity=min(one.capacity for one in disks),
        buses=1,
        bus_latency=0.0,
        bus_rate=_NO_LIMIT,
        net_latency=statistics.median(link.latency for link in links),
        net_rate=statistics.median(min(link.inbound, link.outbound) for link in links),
    )


def local_machine(
    name: str, disks: int, block_bytes: float, read_seconds: float, network: tuple[float, float] | None
) -> DiskMachine:
    """A machine of which one kind of read was timed: all that it took is transfer. network: latency, bytes a second."""
    latency, rate = network or (0.0, _NO_LIMIT)
    return DiskMachine(
        name=name,
        nodes=None,
        disks=disks,
        controller=0.0,
        seek=(0.0, 0.0),
        turn=0.0,
        disk_rate=block_bytes / read_seconds,
        capacity=_NO_LIMIT,
        buses=disks,
        bus_latency=0.0,
        bus_rate=_NO_LIMIT,
        net_latency=latency,
        net_rate=rate,
    )


def machine_text(machine: DiskMachine) -> str:
    """A machine without rotation, in TOML for `probe simulate`."""
    seek = ", ".join(f"{one:.4g}" for one in machine.seek)
    return (
        f"name = {strict_json.dumps(machine.name, ensure_ascii=False)}\n\n[disk]\nper_node = {machine.disks}\n"
        f"controller = {machine.controller:.4g}\nseek = [{seek}]\nrate = {machine.disk_rate:.4g}\n"
        f"capacity = {machine.capacity:.4g}\n\n[bus]\nper_node = {machine.buses}\nlatency = {machine.bus_latency:.4g}\n"
        f"bandwidth = {machine.bus_rate:.4g}\n\n[network]\nlatency = {machine.net_latency:.4g}\n"
        f"bandwidth = {machine.net_rate:.4g}\n"
    )
