# SPDX-License-Identifier: Apache-2.0
"""Run a simulating engine on a placed application: the loose one, our own event loop in C, or the tight one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from checkpoint.compiled import built
from checkpoint.errors import ModelInvalid, NodeUnfit, ToolMissing
from probe.dataflow.work import Placed
from probe.simulation.networks import Network, network_of
from probe.simulation.platform import Links, write_platform
from probe.simulation.smpirun import library, watched

LOOSE, TIGHT, FLOW = "loose", "tight", "flow"
MODES: Final = (LOOSE, TIGHT, FLOW)

_NATIVE = Path(__file__).with_name("native")
COMMON: Final = ("blocks.h", "blocks.c", "setting.c")
"""Sources of every engine."""

LOOSE_SOURCES: Final = ("loose.c", "events.h", "events.c")
TIGHT_SOURCES: Final = ("tight.c", "simgrid_calls.h")

OPTIONS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Werror")
_PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1"><zone id="zone" routing="None"><host id="all" speed="1Gf"/></zone></platform>
"""
"""The tight engine's actors only sleep: the hardware is its own."""

_SIMGRID = ("--cfg=contexts/stack-size:64", "--cfg=contexts/guard-size:0", "--log=root.thres:error")
_AS_DESCRIBED = ("--cfg=network/model:CM02", "--cfg=network/TCP-gamma:0", "--cfg=network/crosstraffic:0")
"""Links as fast as the machine says: SimGrid's own factors are of TCP on one cluster."""

_NO_ROOM = 3
_KB, _GB = 1024, 1e9
_SHOWN = 400


@dataclass(frozen=True)
class Busy:
    """Shares of the simulated time in which the devices of a kind served, means over all of them."""

    disk: float
    bus: float
    sending: float
    receiving: float
    processor: float
    busiest_processor: float


@dataclass(frozen=True)
class Simulation:
    """What an engine found. seconds: of the application. cost_seconds: of a processor, for simulating."""

    seconds: float
    blocks: int
    messages: int
    epochs: int
    events: int
    busy: Busy
    cost_seconds: float
    memory_bytes: int


def sources(*own: str) -> list[Path]:
    """Paths of the C sources of an engine."""
    return [_NATIVE / name for name in (*own, *COMMON)]


@dataclass(frozen=True)
class Engine:
    """A compiled engine. network: of the flow engine; without one, its nodes have ways of their own to each other."""

    mode: str
    program: Path
    network: Network | None = None

    def command(self, folder: Path, placed: Placed) -> list[str]:
        """What runs it; its platform is written into the folder. Raises ModelInvalid for a small network."""
        if self.mode == LOOSE:
            return [str(self.program)]
        if self.mode == TIGHT:
            (folder / "platform.xml").write_text(_PLATFORM)
            return [str(self.program), str(folder / "platform.xml"), *_SIMGRID]
        links = Links(placed.machine.net_rate, placed.machine.net_latency)
        network = self.network or network_of(f"simple:{placed.nodes}")
        platform, _ = write_platform(network, placed.nodes, links, folder)
        return [str(self.program), str(platform), FLOW, *_SIMGRID, *_AS_DESCRIBED]


def engine_of(mode: str, network: Network | None = None) -> Engine:
    """The engine, compiled. Raises ToolMissing without a compiler or, for all but the loose one, without SimGrid."""
    if mode == LOOSE:
        return Engine(mode, built("dataflow-loose", sources(*LOOSE_SOURCES), OPTIONS, libraries=("-lm",)))
    try:
        linked = library()
    except ToolMissing as error:
        raise ToolMissing(f"{error}; `--mode loose` needs none") from error
    libraries = (str(linked), f"-Wl,-rpath,{linked.parent}", "-lm")
    return Engine(mode, built("dataflow-tight", sources(*TIGHT_SOURCES), OPTIONS, libraries=libraries), network)


def simulate(
    placed: Placed,
    compute: float,
    engine: Engine,
    *,
    limit: float,
    report: Callable[[float], None] = lambda share: None,
) -> Simulation:
    """Simulate with `compute` seconds for a block. report: called with the share of blocks that are done.

    Raises NodeUnfit where it would need more memory than there is, before it starts; ModelInvalid where no block meets
    the query, or after `limit` seconds.
    """
    free = _free_memory()
    where = f"{placed.application.path}: on {placed.nodes} nodes"
    with TemporaryDirectory(prefix="probe-dataflow-") as folder:
        (Path(folder) / "setting").write_text(placed.text(compute, free))
        heard = _Heard(placed.blocks, report)
        status, printed, late = watched(
            engine.command(Path(folder), placed), Path(folder), limit, heard, Path(folder) / "setting"
        )
    if late:
        raise ModelInvalid(f"{where}: the simulation was not over after {limit:.0f} s: allow more with --limit")
    if status == _NO_ROOM:
        raise NodeUnfit(
            f"{where}: simulating needs {heard.needs / _GB:.3g} GB of memory, {free / _GB:.3g} GB are free; simulate "
            "fewer nodes, or give a smaller epoch"
        )
    if status:
        raise ModelInvalid(f"{where}: the engine failed: {printed[-_SHOWN:].strip()}")
    found = _simulation(printed.splitlines()[-1])
    if not found.blocks:
        raise ModelInvalid(
            f"{where}: no block meets the query: every epoch is empty; ask for a larger window, or give more blocks"
        )
    return found


class _Heard:
    """What an engine says while it runs."""

    def __init__(self, blocks: int, report: Callable[[float], None]) -> None:
        self.needs = 0.0
        self._blocks, self._report = blocks, report

    def __call__(self, line: str) -> None:
        words = line.split()
        if words[:1] == ["needs"]:
            self.needs = float(words[1])
        elif words[:1] == ["at"] and self._blocks:
            self._report(int(words[1]) / self._blocks)


def _simulation(line: str) -> Simulation:
    words = line.split()
    said = dict(zip(words[1::2], map(float, words[2::2]), strict=True))
    return Simulation(
        seconds=said["seconds"],
        blocks=int(said["blocks"]),
        messages=int(said["messages"]),
        epochs=int(said["epochs"]),
        events=int(said["events"]),
        busy=Busy(said["disk"], said["bus"], said["out"], said["in"], said["cpu"], said["busiest_cpu"]),
        cost_seconds=said["cost"],
        memory_bytes=int(said["memory"]) * _KB,
    )


def _free_memory() -> float:
    """Bytes that can be had without swapping; 0 where the kernel does not say."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) * _KB
    return 0.0
