# SPDX-License-Identifier: Apache-2.0
"""Input of the model: clusters of nodes with predicted times and measured networks, and the work."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from checkpoint.errors import NotInStore, ProbeError
from checkpoint.foreign_file import read_foreign_json
from probe.store.opening import Store
from probe.store.reading import all_clusters, candidates, runs_at_once
from probe.store.records import Candidate, StoredProbe

POOL_VERSION: Final = 1


@dataclass(frozen=True)
class Node:
    """seconds, low, high: one task on one of its workers, with the 95 % interval.

    workers: tasks it runs at once. unusable: why it must not be used (a stale prediction, too few processors), "" if it
    may be.
    """

    name: str
    seconds: float
    low: float
    high: float
    workers: int = 1
    unusable: str = ""


@dataclass(frozen=True)
class Cluster:
    """Throughputs in bytes per second, latency in seconds one way; None is not measured and taken as unlimited.

    home: the master is in it, so that its tasks and results do not cross the internet. Its `outbound` and `inbound`,
    where measured, are the master's connection, which all other clusters share.
    """

    name: str
    nodes: tuple[Node, ...]
    home: bool = False
    local_network: float | None = None
    inbound: float | None = None
    outbound: float | None = None
    latency: float = 0.0


@dataclass(frozen=True)
class Pool:
    """Everything that could be used. Raises ProbeError for values that no measurement gives."""

    clusters: tuple[Cluster, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for cluster in self.clusters:
            where = f"cluster {cluster.name or '(without a name)'}"
            if cluster.name in seen:
                raise ProbeError(f"{where} is there twice; join its nodes into one")
            seen.add(cluster.name)
            for key in ("local_network", "inbound", "outbound", "latency"):
                value = getattr(cluster, key)
                if value is not None and not (value >= 0 and math.isfinite(value)):
                    raise ProbeError(f"{where}: {key} {value!r} is no measured value; leave out what is not known")
            for node in cluster.nodes:
                if not (0 < node.low <= node.seconds <= node.high and math.isfinite(node.high)):
                    raise ProbeError(
                        f"{where}, node {node.name}: {node.seconds!r} s ({node.low!r} to {node.high!r} s) is no "
                        "predicted time"
                    )
                if node.workers < 1:
                    raise ProbeError(f"{where}, node {node.name}: {node.workers} workers; a node has one at least")
        if sum(cluster.home for cluster in self.clusters) > 1:
            raise ProbeError("more than one cluster is home; the master is in one of them")


@dataclass(frozen=True)
class Workload:
    """`tasks` equal tasks, each sent with `task_size` bytes and returning `result_size` bytes. Raises ProbeError."""

    tasks: int
    task_size: float = 0.0
    result_size: float = 0.0

    def __post_init__(self) -> None:
        if self.tasks < 1:
            raise ProbeError(f"{self.tasks} tasks: there is nothing to decide")
        for size in (self.task_size, self.result_size):
            if not (size >= 0 and math.isfinite(size)):
                raise ProbeError(f"{size!r} bytes is no size of a task or result")


def pool_from_store(store: Store, probe: StoredProbe) -> Pool:
    """Every node with a prediction of `probe`, in the clusters of the store. Raises NotInStore without any."""
    found = candidates(store, probe)
    if not found:
        raise NotInStore(f"{store.name}: no prediction of {probe.name}; run it on some nodes and import the results")
    networks = {cluster.name: cluster for cluster in all_clusters(store)}
    grouped: dict[str, list[Node]] = {name: [] for name in networks}
    for candidate in found:
        grouped.setdefault(candidate.cluster, []).append(_node(candidate))
    clusters = []
    for name, nodes in grouped.items():
        known = networks.get(name)
        if known is None:
            clusters.append(Cluster(name, tuple(nodes)))
        else:
            clusters.append(
                Cluster(
                    name,
                    tuple(nodes),
                    home=known.home,
                    local_network=known.local_network,
                    inbound=known.inbound,
                    outbound=known.outbound,
                    latency=known.latency,
                )
            )
    return Pool(tuple(clusters))


def pool_from_file(path: Path, predicted: Sequence[Candidate] = (), *, threads: int = 1) -> Pool:
    """The pool in a JSON file (docs/ranking.md); nodes without `seconds` take theirs from `predicted`, and run no more
    tasks of `threads` at once than their processors hold.

    Raises ProbeError for what is no such file, StorageError, NotInStore for a node of which nothing was predicted.
    """
    value = read_foreign_json(path, "docs/ranking.md says what a pool looks like")
    by_name = {candidate.node: candidate for candidate in predicted}
    try:
        if value["format_version"] != POOL_VERSION:
            raise ProbeError(f"{path}: format_version {value['format_version']!r}; this program reads {POOL_VERSION}")
        clusters = tuple(_cluster(entry, by_name, threads) for entry in value["clusters"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProbeError(f"{path}: not a pool ({error!r}); docs/ranking.md says what one looks like") from error
    return Pool(clusters)


def _cluster(entry: Mapping[str, Any], predicted: Mapping[str, Candidate], threads: int) -> Cluster:
    networks = {
        key: float(entry[key]) for key in ("local_network", "inbound", "outbound") if entry.get(key) is not None
    }
    nodes = []
    for node in entry["nodes"]:
        name = str(node["name"])
        if node.get("seconds") is None:
            if name not in predicted:
                raise NotInStore(f"node {name}: no time in the pool, no prediction in the store; run the probe there")
            known = predicted[name]
            given = int(node.get("workers") or known.workers)
            nodes.append(_node(known, runs_at_once(given, known.cores, threads)))
        else:
            seconds = float(node["seconds"])
            low, high = (float(node.get(key) or seconds) for key in ("low", "high"))
            nodes.append(Node(name, seconds, low, high, int(node.get("workers") or 1)))
    return Cluster(
        str(entry["name"]),
        tuple(nodes),
        home=bool(entry.get("home", False)),
        latency=float(entry.get("latency") or 0.0),
        **networks,
    )


def _node(candidate: Candidate, workers: int | None = None) -> Node:
    return Node(
        candidate.node,
        candidate.seconds,
        candidate.low,
        candidate.high,
        workers or candidate.workers,
        candidate.unusable,
    )
