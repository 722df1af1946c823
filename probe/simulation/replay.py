# SPDX-License-Identifier: Apache-2.0
"""Replay of traces by SimGrid's `smpirun`: the simulated time of an application on a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from checkpoint.errors import ModelInvalid, ToolMissing
from checkpoint.run_command import run_group
from probe.models.communication import Grid, size_of
from probe.simulation.networks import Network
from probe.simulation.plan import Step
from probe.simulation.platform import Links, write_platform
from probe.simulation.trace import write_trace

COMMAND = "smpirun"
STACK_KB = 64
"""Of a simulated rank, which replays a file; SimGrid's 8 MB would need 256 GB for 32,768 ranks."""

_AS_DESCRIBED = ("--cfg=smpi/bw-factor:0:1", "--cfg=smpi/lat-factor:0:1", "--cfg=network/TCP-gamma:0")
"""Links as the user described them: SimGrid's own factors are of a cluster with Ethernet that was measured once."""

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
    command = shutil.which(COMMAND)
    if command is None:
        raise ToolMissing(f"{COMMAND} is not installed: install SimGrid (Debian's package libsimgrid-dev)")
    with tempfile.TemporaryDirectory(prefix="probe-simulate-") as made:
        folder = Path(made)
        trace = write_trace(steps, grid, folder / "trace", flops_per_second=links.speed)
        platform, hosts = write_platform(network, size_of(grid), links, folder)
        begun = time.monotonic()
        said = _run(
            [command, "-np", str(size_of(grid)), "-platform", str(platform), "-hostfile", str(hosts),
             f"--cfg=contexts/stack-size:{STACK_KB}", *_AS_DESCRIBED, "-replay", str(trace.index)], folder, limit,
        )  # fmt: skip
        wall = time.monotonic() - begun
    found = re.findall(r"Simulation time ([0-9.eE+-]+)", said)
    if not found:
        raise ModelInvalid(f"{COMMAND} named no simulated time: {said[-_SHOWN:].strip()}")
    return Replayed(float(found[-1]), wall, trace.lines)


def _run(command: list[str], folder: Path, limit: float) -> str:
    try:
        status, said = run_group(command, limit, environment={**os.environ, "TMPDIR": str(folder)})
    except subprocess.TimeoutExpired as error:
        raise ModelInvalid(f"the replay was not over after {limit:.0f} s: allow more with --limit") from error
    if status:
        raise ModelInvalid(f"{COMMAND} failed: {said[-_SHOWN:].strip()}")
    return said
