# SPDX-License-Identifier: Apache-2.0
"""Replay of traces by SimGrid: the simulated time of an application on a network."""

from __future__ import annotations

import re
import resource
import tempfile
from dataclasses import dataclass
from pathlib import Path

from checkpoint.errors import ModelInvalid
from probe.models.communication import Grid, size_of
from probe.simulation.networks import Network
from probe.simulation.plan import Step
from probe.simulation.platform import Links, write_platform
from probe.simulation.smpirun import COMMAND, installed, simulated
from probe.simulation.trace import Trace, write_replayable, write_trace

_OTHER_FILES = 64
"""That SimGrid opens beside the traces."""

_SHOWN = 400


@dataclass(frozen=True)
class Replayed:
    """Simulated seconds of the whole application, and what simulating took: seconds, and events a second."""

    seconds: float
    wall: float
    events: int

    @property
    def events_per_second(self) -> float:
        """Lines of the trace replayed each second."""
        return self.events / self.wall if self.wall > 0 else 0.0


def replay(steps: tuple[Step, ...], grid: Grid, network: Network, links: Links, *, limit: float = 3600.0) -> Replayed:
    """Simulate the plan on the network, in a folder of its own that is removed.

    Raises ToolMissing without SimGrid, ModelInvalid where the replay fails or takes longer than `limit` seconds.
    """
    installed(COMMAND)
    _allow_files(size_of(grid))
    with tempfile.TemporaryDirectory(prefix="probe-simulate-") as made:
        trace = write_trace(steps, grid, Path(made) / "trace", flops_per_second=links.speed)
        return _replayed(trace, size_of(grid), network, links, limit)


def replay_trace(trace: Trace, ranks: int, network: Network, links: Links, *, limit: float = 3600.0) -> Replayed:
    """Simulate a trace that is on disk, whoever wrote it. Raises what `replay` raises."""
    installed(COMMAND)
    _allow_files(ranks)
    with tempfile.TemporaryDirectory(prefix="probe-simulate-") as made:
        index = write_replayable(trace.index, Path(made))
        return _replayed(Trace(index, trace.lines), ranks, network, links, limit)


def _replayed(trace: Trace, ranks: int, network: Network, links: Links, limit: float) -> Replayed:
    """A trace of which SimGrid can replay every line."""
    with tempfile.TemporaryDirectory(prefix="probe-simulate-") as made:
        folder = Path(made)
        platform = write_platform(network, ranks, links, folder)
        done = simulated(ranks, platform, ["-replay", str(trace.index)], folder, limit)
    found = re.findall(r"Simulation time ([0-9.eE+-]+)", done.printed)
    if not found:
        raise ModelInvalid(f"{COMMAND} named no simulated time: {done.printed[-_SHOWN:].strip()}")
    return Replayed(float(found[-1]), done.wall, trace.lines)


def _allow_files(ranks: int) -> None:
    """Raise the limit of open files, which SimGrid inherits: it keeps the file of every rank open."""
    wanted = ranks + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise ModelInvalid(
            f"{ranks} ranks need as many open files, and this machine allows {hard}: raise the limit (ulimit -n)"
        )
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
