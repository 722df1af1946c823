# SPDX-License-Identifier: Apache-2.0
"""Predict a data-intensive application on numbers of nodes; intervals of probed block times are carried through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from checkpoint.errors import ModelInvalid, NotInStore
from probe.dataflow.application import DataApplication, ProbedBlocks
from probe.dataflow.engines import LOOSE, Engine, Simulation, engine_of, simulate
from probe.dataflow.machine import DiskMachine
from probe.dataflow.work import Placed, place
from probe.progress import Display, Silent
from probe.simulation.networks import Network
from probe.store.opening import open_store
from probe.store.reading import candidates, find_node, find_probe


@dataclass(frozen=True)
class BlockTime:
    """Seconds of computing a block with the ends of its 95 % interval, and where they come from."""

    seconds: float
    low: float
    high: float
    source: str


@dataclass(frozen=True)
class NodesPredicted:
    """A number of nodes: seconds with the ends that the block time's interval leads to, and the simulation."""

    nodes: int
    readers: int
    seconds: float
    low: float
    high: float
    simulation: Simulation

    def to_json(self) -> dict[str, Any]:
        said = asdict(self.simulation)
        said.pop("seconds")
        own = {"nodes": self.nodes, "readers": self.readers, "seconds": self.seconds, "low": self.low}
        return {**own, "high": self.high, **said}


@dataclass(frozen=True)
class DataPrediction:
    """Predictions by number of nodes, ascending."""

    application: DataApplication
    machine: DiskMachine
    mode: str
    block_time: BlockTime
    rows: tuple[NodesPredicted, ...]

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md says of `probe simulate --nodes`."""
        return {
            "application": self.application.name,
            "family": self.application.family,
            "machine": self.machine.name,
            "mode": self.mode,
            "block_seconds": self.block_time.seconds,
            "block_low": self.block_time.low,
            "block_high": self.block_time.high,
            "block_source": self.block_time.source,
            "rows": [row.to_json() for row in self.rows],
        }


def block_time(application: DataApplication, given: Mapping[str, float], node: str, url: str | None) -> BlockTime:
    """Seconds of a block: the description's, or its probe's over the blocks of a run.

    given: seconds of probes by name, in place of the store's prediction for `node`. Raises NotInStore for a probe or
    node that the store does not know, ModelInvalid without a node.
    """
    compute = application.compute
    if not isinstance(compute, ProbedBlocks):
        return BlockTime(compute, compute, compute, "given")
    each, name = compute.blocks_per_run, compute.probe
    if name in given:
        seconds = given[name] / each
        return BlockTime(seconds, seconds, seconds, f"probe {name}, given")
    if not node:
        raise ModelInvalid(
            f"{application.path}: a block's time comes from the probe {name}: which node's prediction? Name it with "
            f"--node, or give --probe {name}=SECONDS"
        )
    with open_store(url, create=False) as store:
        wanted = find_node(store, node)
        found = [one for one in candidates(store, find_probe(store, name)) if one.node == wanted.name]
        if not found:
            raise NotInStore(f"{store.name}: no prediction of {name} for {wanted.name}; run the probe there")
        best = found[0]
    source = f"probe {name} on {wanted.name}, prediction {best.prediction}"
    return BlockTime(best.seconds / each, best.low / each, best.high / each, source)


def predict_nodes(
    application: DataApplication,
    machine: DiskMachine,
    nodes: Sequence[int],
    *,
    time: BlockTime,
    mode: str = LOOSE,
    network: Network | None = None,
    limit: float = 3600.0,
    display: Display | None = None,
) -> DataPrediction:
    """Simulate the application on each number of nodes. All are placed before the first is simulated.

    network: of the flow engine. limit: seconds that each simulation may take. Raises ModelInvalid, NodeUnfit,
    ToolMissing.
    """
    placed = [place(application, machine, number) for number in sorted(set(nodes))]
    engine = engine_of(mode, network)
    shown = display or Silent()
    rows = [_row(one, time, engine, limit, shown) for one in placed]
    return DataPrediction(application, machine, mode, time, tuple(rows))


def _row(placed: Placed, time: BlockTime, engine: Engine, limit: float, display: Display) -> NodesPredicted:
    with display.stage(f"{placed.nodes} nodes") as report:
        found = simulate(placed, time.seconds, engine, limit=limit, report=report)
    ends = [found.seconds]
    if time.low < time.high:
        # More computing never ends sooner here but by the order of messages; the ends are simulated, not scaled.
        with display.stage(f"{placed.nodes} nodes, interval"):
            ends += [simulate(placed, end, engine, limit=limit).seconds for end in (time.low, time.high)]
    return NodesPredicted(placed.nodes, placed.readers, found.seconds, min(ends), max(ends), found)
