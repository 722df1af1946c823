# SPDX-License-Identifier: Apache-2.0
"""Decide which nodes and clusters to use, how many tasks each gets, and what the whole run takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from checkpoint.errors import NoPrediction, ProbeError
from probe.ranking.pool import Cluster, Node, Pool, Workload
from probe.ranking.steady import Limits, Workers, limits, shared_rate

DEFAULT_THRESHOLD: Final = 0.8
_SIZES_TRIED: Final = 100
"""Selections compared where the efficiency of all is too low; all of them in pools of no more nodes than this."""


@dataclass(frozen=True)
class NodeDecision:
    """tasks: that it gets. reason: why it is not used, "" if it is."""

    name: str
    cluster: str
    seconds: float
    workers: int
    used: bool
    tasks: int
    reason: str


@dataclass(frozen=True)
class ClusterDecision:
    """Rates in tasks per second, None where nothing limits: of the nodes used, and what each network carries.

    steady: their least (thesis, equation 4.1), named by `limit`. efficiency: steady over compute.
    """

    name: str
    home: bool
    used: bool
    nodes: int
    nodes_used: int
    tasks: int
    compute: float
    local_network: float | None
    inbound: float | None
    outbound: float | None
    shared: float | None
    steady: float
    limit: str
    efficiency: float
    reason: str


@dataclass(frozen=True)
class Decision:
    """seconds: of the whole run (T_ex); low, high: with every node at that end of its interval.

    best_seconds: T_best, if no worker of those used ever waited. efficiency: T_best / T_ex (thesis, equations 4.8 and
    4.9). met: whether that reaches `threshold`. Clusters as in the pool, nodes the fastest first.
    """

    tasks: int
    seconds: float
    low: float
    high: float
    best_seconds: float
    efficiency: float
    threshold: float
    met: bool
    clusters: tuple[ClusterDecision, ...]
    nodes: tuple[NodeDecision, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As in docs/json.md."""
        return {"format_version": 1, **asdict(self)}


def decide(pool: Pool, work: Workload, *, threshold: float = DEFAULT_THRESHOLD) -> Decision:
    """The selection with the shortest run among those whose efficiency reaches `threshold`.

    First each cluster keeps its fastest nodes, until its networks carry no more, and no more than leave its steady
    performance at `threshold` of what they compute. Then, if the whole run is still not efficient enough, the slowest
    nodes of all are left out, as many as it takes; if no selection is, the most efficient is taken (`met` is False).

    Raises NoPrediction where no node can be used, ProbeError for a threshold outside 0 to 1.
    """
    if not 0 <= threshold <= 1:
        raise ProbeError(f"a threshold of {threshold:g} is not between 0 and 1")
    states = _first_choice(pool, work, threshold)
    if not any(state.kept for state in states):
        # Nothing is efficient enough: then the most efficient of what there is, and `met` says so.
        states = _first_choice(pool, work, 0.0)
    if not any(state.kept for state in states):
        reasons = "; ".join(f"{s.cluster.name or '(no cluster)'}: {s.reason or 'no usable node'}" for s in states)
        raise NoPrediction(f"no node can be used ({reasons or 'the pool is empty'}); see `probe rank --explain`")
    ordered = sorted(
        (node.seconds, position, index)
        for position, state in enumerate(states)
        for index, node in enumerate(state.kept)
    )
    kept, met = _second_choice(states, ordered, work, threshold)
    _keep_fastest(states, ordered, kept, "slow: it would lower the efficiency below the threshold")
    seconds = _divide(states, work)
    best = work.tasks / _workers(states).rate()
    efficiency = best / seconds
    return Decision(
        tasks=work.tasks,
        seconds=seconds,
        low=_workers(states, "low").duration(work.tasks),
        high=_workers(states, "high").duration(work.tasks),
        best_seconds=best,
        efficiency=efficiency,
        threshold=threshold,
        met=met or efficiency >= threshold,
        clusters=tuple(state.decision() for state in states),
        nodes=tuple(sorted((n for s in states for n in s.node_decisions()), key=lambda n: (n.seconds, n.name))),
        warnings=tuple(_warnings(pool, work)),
    )


class _State:
    """What is decided of one cluster so far. `kept` are the nodes in use, the fastest first."""

    def __init__(self, cluster: Cluster, bounds: Limits) -> None:
        self.cluster = cluster
        self.bounds = bounds
        self.kept: list[Node] = []
        self.tasks: list[int] = []
        self.dropped: dict[str, str] = {}
        self.reason = ""

    def drop(self, nodes: Sequence[Node], reason: str) -> None:
        gone = {node.name for node in nodes}
        self.dropped.update(dict.fromkeys(gone, reason))
        if self.tasks:
            self.tasks = [t for node, t in zip(self.kept, self.tasks, strict=True) if node.name not in gone]
        self.kept = [node for node in self.kept if node.name not in gone]
        if gone and not self.kept and not self.reason:
            self.reason = reason

    def decision(self) -> ClusterDecision:
        compute = sum(node.workers / node.seconds for node in self.kept)
        bounds = self.bounds
        named = (bounds.local_network, bounds.inbound, bounds.outbound, bounds.shared)
        local, inbound, outbound, shared = (value if math.isfinite(value) else None for value in named)
        return ClusterDecision(
            name=self.cluster.name,
            home=self.cluster.home,
            used=bool(self.kept),
            nodes=len(self.cluster.nodes),
            nodes_used=len(self.kept),
            tasks=sum(self.tasks),
            compute=compute,
            local_network=local,
            inbound=inbound,
            outbound=outbound,
            shared=shared,
            steady=bounds.steady(compute),
            limit=bounds.name(compute) if self.kept else "",
            efficiency=bounds.steady(compute) / compute if compute else 0.0,
            reason=self.reason,
        )

    def node_decisions(self) -> list[NodeDecision]:
        given = dict(zip((node.name for node in self.kept), self.tasks, strict=True))
        return [
            NodeDecision(
                name=node.name,
                cluster=self.cluster.name,
                seconds=node.seconds,
                workers=node.workers,
                used=node.name in given,
                tasks=given.get(node.name, 0),
                reason=self.dropped.get(node.name, ""),
            )
            for node in self.cluster.nodes
        ]


def _first_choice(pool: Pool, work: Workload, threshold: float) -> list[_State]:
    """Per cluster: the fastest nodes that its networks can keep busy."""
    home = next((cluster for cluster in pool.clusters if cluster.home), None)
    left = shared_rate(home, work)
    states = {cluster.name: _State(cluster, limits(cluster, work)) for cluster in pool.clusters}
    # The master's connection goes to those with the fastest nodes first.
    for cluster in sorted(pool.clusters, key=lambda c: min((n.seconds for n in c.nodes), default=math.inf)):
        state = states[cluster.name]
        if not cluster.home:
            state.bounds = limits(cluster, work, left)
        _choose(state, threshold)
        if not cluster.home and state.kept:
            left = max(0.0, left - state.bounds.steady(sum(n.workers / n.seconds for n in state.kept)))
    return [states[cluster.name] for cluster in pool.clusters]


def _choose(state: _State, threshold: float) -> None:
    nodes = state.cluster.nodes
    state.kept = sorted((node for node in nodes if not node.unusable), key=lambda node: (node.seconds, node.name))
    state.dropped = {node.name: node.unusable for node in nodes if node.unusable}
    network = state.bounds.network
    if not state.kept:
        state.reason = _none_usable(nodes)
    elif network == 0:
        state.reason = f"nothing gets through: {state.bounds.name(math.inf)}"
        state.drop(state.kept, state.reason)
    elif math.isfinite(network):
        rates = np.cumsum([node.workers / node.seconds for node in state.kept])
        enough = int(np.searchsorted(rates, network * (1 - 1e-12))) + 1
        state.drop(state.kept[enough:], f"no help: faster nodes use all of the {state.bounds.name(math.inf)}")
        # Rates grow with every node, so what is wanted is everything up to a certain rate.
        busy = int(np.searchsorted(rates, network / threshold * (1 + 1e-12), side="right")) if threshold else enough
        if busy < enough:
            waiting = f"it would wait for the {state.bounds.name(math.inf)} more than the threshold allows"
            state.drop(state.kept[busy:], waiting)


_Ordered = Sequence[tuple[float, int, int]]


def _none_usable(nodes: Sequence[Node]) -> str:
    said = sorted({node.unusable for node in nodes})
    return f"no prediction can be used: {', '.join(said)}" if said else "no node with a prediction"


def _second_choice(states: Sequence[_State], ordered: _Ordered, work: Workload, threshold: float) -> tuple[int, bool]:
    """How many of the fastest nodes to keep, and whether that reaches the threshold."""
    count = len(ordered)
    first = _efficiency(states, ordered, count, work)
    if first[1] >= threshold:
        return count, True
    step = max(1, math.ceil(count / _SIZES_TRIED))
    tried = {size: _efficiency(states, ordered, size, work) for size in range(1, count, step)} | {count: first}
    good = [size for size, (_, efficiency) in tried.items() if efficiency >= threshold]
    if good:
        return min(good, key=lambda size: (tried[size][0], size)), True
    return max(tried, key=lambda size: (tried[size][1], -size)), False


def _efficiency(states: Sequence[_State], ordered: _Ordered, size: int, work: Workload) -> tuple[float, float]:
    """(T_ex, T_best / T_ex) with the `size` fastest nodes, of which those that get no task are not counted."""
    counts = [0] * len(states)
    for _, position, _ in ordered[:size]:
        counts[position] += 1
    workers = _workers(states, counts=counts)
    seconds = workers.duration(work.tasks)
    busy = workers.shares(work.tasks, seconds) > 0
    return seconds, work.tasks / float((1.0 / workers.seconds[busy]).sum()) / seconds


def _keep_fastest(states: Sequence[_State], ordered: _Ordered, size: int, reason: str) -> None:
    gone: dict[int, list[Node]] = {}
    for _, position, index in ordered[size:]:
        gone.setdefault(position, []).append(states[position].kept[index])
    for position, nodes in gone.items():
        states[position].drop(nodes, reason)


def _workers(states: Sequence[_State], end: str = "seconds", counts: Sequence[int] | None = None) -> Workers:
    """The workers of the nodes kept, or of the first `counts[i]` of cluster i; `end`: of their intervals."""
    seconds, ready, starts, network, idle = [], [], [], [], []
    at = 0
    for position, state in enumerate(states):
        nodes = state.kept if counts is None else state.kept[: counts[position]]
        if not nodes:
            continue
        times = np.repeat([getattr(node, end) for node in nodes], [node.workers for node in nodes])
        bounds = state.bounds
        seconds.append(times)
        # A second task comes when all workers have their first: a fast one waits for that.
        first = bounds.spacing * np.arange(len(times))
        ready.append(bounds.fill + bounds.drain + np.maximum(first, bounds.spacing * len(times) - times))
        starts.append(at)
        network.append(bounds.network)
        idle.append(bounds.fill + bounds.drain + times[0])
        at += len(times)
    return Workers(
        np.concatenate(seconds).astype(np.float64),
        np.concatenate(ready).astype(np.float64),
        np.array(starts, dtype=np.int64),
        np.array(network, dtype=np.float64),
        np.array(idle, dtype=np.float64),
    )


def _divide(states: Sequence[_State], work: Workload) -> float:
    """Give every node its tasks and drop those that get none; returns T_ex of those that stay."""
    while True:
        workers = _workers(states)
        seconds = workers.duration(work.tasks)
        _give_out(states, workers.shares(work.tasks, seconds))
        idle = [[node for node, tasks in zip(s.kept, s.tasks, strict=True) if not tasks] for s in states]
        if not any(idle):
            return seconds
        # They would only wait, count against the efficiency, and make others wait for their first tasks.
        for state, nodes in zip(states, idle, strict=True):
            state.drop(nodes, "slow: the others are done before it would end its first task")


def _give_out(states: Sequence[_State], shares: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """Tasks of the workers, summed up by node."""
    at = 0
    for state in states:
        state.tasks = []
        for node in state.kept:
            state.tasks.append(int(shares[at : at + node.workers].sum()))
            at += node.workers


def _warnings(pool: Pool, work: Workload) -> list[str]:
    found = []
    for cluster in pool.clusters:
        needed = {"local network": (cluster.local_network, work.task_size + work.result_size)}
        if not cluster.home:
            needed["inbound"] = cluster.inbound, work.task_size
            needed["outbound"] = cluster.outbound, work.result_size
        missing = [name for name, (value, size) in needed.items() if value is None and size]
        if missing and cluster.nodes:
            found.append(
                f"cluster {cluster.name or '(without a name)'}: {', '.join(missing)} not measured, taken as unlimited"
            )
    return found
