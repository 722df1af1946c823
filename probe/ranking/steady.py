# SPDX-License-Identifier: Apache-2.0
"""Steady performance of a cluster, and how long a hierarchical master/worker run takes.

The master hands out equal tasks. A cluster where the master is not has a submaster, reached over the internet; in each
cluster tasks and results share the local network. A worker is sent its next task while it computes the last one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from probe.formats.arrays import FloatArray, IntArray
from probe.ranking.pool import Cluster, Workload

Integers = IntArray

COMPUTE, LOCAL, INBOUND, OUTBOUND, SHARED = "compute", "local network", "inbound", "outbound", "master's connection"
_SLACK: Final = 1e-9
"""Relative: what ends this little after the end of the run ends with it."""
_MOST: Final = float(1 << 50)
"""Tasks: more than there are, so that sums of many still fit into 64 bits."""


@dataclass(frozen=True)
class Limits:
    """What each part of a cluster carries, in tasks per second; infinity where nothing limits it.

    fill, drain: seconds that the first task needs to reach a worker, and the last result to reach the master.
    spacing: seconds between the first tasks of two workers, since they come through one network.
    """

    local_network: float
    inbound: float
    outbound: float
    shared: float
    fill: float
    drain: float
    spacing: float

    @property
    def network(self) -> float:
        """The least of them."""
        return min(self.local_network, self.inbound, self.outbound, self.shared)

    def steady(self, compute: float) -> float:
        """Steady performance (thesis, equation 4.1): tasks per second, the least of computing and the networks."""
        return min(compute, self.network)

    def name(self, compute: float) -> str:
        """What limits the steady performance."""
        named = {
            COMPUTE: compute,
            LOCAL: self.local_network,
            INBOUND: self.inbound,
            OUTBOUND: self.outbound,
            SHARED: self.shared,
        }
        return min(named, key=lambda key: named[key])


def limits(cluster: Cluster, work: Workload, shared: float = math.inf) -> Limits:
    """Of one cluster. `shared`: tasks per second that are left of the master's connection."""
    inside = work.task_size + work.result_size
    local = _rate(cluster.local_network, inside)
    task_in, result_in = (_seconds(cluster.local_network, s) for s in (work.task_size, work.result_size))
    if cluster.home:
        return Limits(
            local, math.inf, math.inf, math.inf, task_in + cluster.latency, result_in + cluster.latency, task_in
        )
    far_in, far_out = _seconds(cluster.inbound, work.task_size), _seconds(cluster.outbound, work.result_size)
    return Limits(
        local_network=local,
        inbound=_rate(cluster.inbound, work.task_size),
        outbound=_rate(cluster.outbound, work.result_size),
        shared=shared,
        fill=far_in + task_in + cluster.latency,
        drain=far_out + result_in + cluster.latency,
        spacing=max(far_in, task_in),
    )


def _rate(throughput: float | None, size: float) -> float:
    """Tasks per second through a connection; None is unlimited."""
    if throughput is None or size == 0:
        return math.inf
    return throughput / size


def _seconds(throughput: float | None, size: float) -> float:
    rate = _rate(throughput, size)
    return math.inf if rate == 0 else 1.0 / rate


def shared_rate(home: Cluster | None, work: Workload) -> float:
    """Tasks per second that the master's connection carries to all other clusters together."""
    if home is None:
        return math.inf
    return min(_rate(home.outbound, work.task_size), _rate(home.inbound, work.result_size))


@dataclass(frozen=True)
class Workers:
    """All workers of a selection, cluster by cluster, in each the fastest first.

    seconds: of a task on each. ready: when each can begin, plus what its last result takes to return.
    starts: index of each cluster's first worker. network, idle: of each cluster, tasks per second, and the seconds
    until its first result is with the master.
    """

    seconds: FloatArray
    ready: FloatArray
    starts: Integers
    network: FloatArray
    idle: FloatArray

    def rate(self) -> float:
        """Tasks per second if no worker ever waited."""
        return float((1.0 / self.seconds).sum())

    def done(self, end: float) -> tuple[Integers, Integers]:
        """Tasks that each worker could have done by `end`, and that each cluster's network could have let through."""
        each = np.floor((end - self.ready) / self.seconds * (1 + _SLACK) + _SLACK)
        carried = np.minimum(self.network, _MOST)
        room = np.floor((end - self.idle) * carried * (1 + _SLACK) + _SLACK) + 1
        room = np.where(np.isinf(self.network), _MOST, room)
        return np.clip(each, 0, _MOST).astype(np.int64), np.clip(room, 0, _MOST).astype(np.int64)

    def total(self, end: float) -> int:
        """Tasks that are done by `end`."""
        each, room = self.done(end)
        return int(np.minimum(np.add.reduceat(each, self.starts), room).sum())

    def duration(self, tasks: int) -> float:
        """Seconds until `tasks` tasks are done and their results are with the master (T_ex)."""
        upper = float((self.ready + self.seconds).min())
        lower = 0.0
        while self.total(upper) < tasks:
            lower, upper = upper, 2 * upper
        while upper - lower > _SLACK / 8 * upper:
            middle = (lower + upper) / 2
            if self.total(middle) >= tasks:
                upper = middle
            else:
                lower = middle
        return upper

    def shares(self, tasks: int, end: float) -> Integers:
        """How many of `tasks` tasks each worker gets in a run that takes `end` seconds; they add up to `tasks`."""
        each, room = self.done(end)
        ends = np.append(self.starts[1:], len(each))
        for number, (first, last) in enumerate(zip(self.starts, ends, strict=True)):
            if each[first:last].sum() > room[number]:
                possible = np.maximum(end - self.ready[first:last], 0.0) / self.seconds[first:last]
                each[first:last] = _divided(possible, each[first:last], int(room[number]))
        # What is too much ended last: at the same moment as the last task that is needed.
        surplus = int(each.sum()) - tasks
        while surplus > 0:
            finish = np.where(each > 0, self.ready + each * self.seconds, -np.inf)
            latest = np.argsort(-finish, kind="stable")[:surplus]
            latest = latest[each[latest] > 0]
            each[latest] -= 1
            surplus -= len(latest)
        return each


def _divided(possible: FloatArray, most: Integers, tasks: int) -> Integers:
    """`tasks` divided as `possible` is, nobody more than `most`; rounded down, then up where most is missing."""
    exact = np.minimum(possible * (tasks / possible.sum()), most)
    share: Integers = np.floor(exact).astype(np.int64)
    while (rest := tasks - int(share.sum())) > 0:
        gets = np.argsort(np.where(share < most, share - exact, np.inf), kind="stable")[:rest]
        share[gets[share[gets] < most[gets]]] += 1
    return share
