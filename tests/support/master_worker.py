# SPDX-License-Identifier: Apache-2.0
"""A hierarchical master/worker run, event by event: what the model of probe/ranking is held against.

Every line carries one message at a time. The master sends to a cluster through its own and the cluster's inbound line;
from there the task goes through the local network. Results go back through the local network and the outbound lines. A
worker asks for its next task as soon as it begins one. Where messages queue, results go first, then the task of whoever
will be without work first; or all in the order in which they came. Each worker has a quota, or takes what comes.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from probe.ranking import Cluster, Workload

RESULTS = -1.0


@dataclass
class Worker:
    cluster: int
    seconds: float
    quota: int
    computing: bool = False
    waiting: int = 0
    done: int = 0


class Clock:
    """Runs what was planned, in order of time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), what))

    def run(self) -> None:
        while self._events:
            self.now, _, what = heapq.heappop(self._events)
            what()


class Line:
    """Carries one message at a time, the most urgent first; `throughput` None takes no time."""

    def __init__(self, clock: Clock, throughput: float | None, in_order: bool) -> None:
        self._clock, self._throughput, self._in_order = clock, throughput, in_order
        self._queue: list[tuple[float, int, float, Callable[[], None]]] = []
        self._order = itertools.count()
        self._busy = False

    def send(self, size: float, urgency: float, arrived: Callable[[], None]) -> None:
        """Call `arrived` when a message of `size` bytes has passed; lower urgency goes first."""
        heapq.heappush(self._queue, (0.0 if self._in_order else urgency, next(self._order), size, arrived))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._queue)
        if self._queue:
            _, _, size, arrived = heapq.heappop(self._queue)
            took = 0.0 if self._throughput is None or size == 0 else size / self._throughput

            def passed() -> None:
                arrived()
                self._next()

            self._clock.after(took, passed)


@dataclass
class Run:
    """seconds: until the last result was with the master. finished: when each result was, in order."""

    seconds: float = 0.0
    workers: list[Worker] = field(default_factory=list)
    finished: list[float] = field(default_factory=list)

    @property
    def efficiency(self) -> float:
        """Share of the time in which workers computed, each counting by its speed."""
        possible = sum(self.seconds / w.seconds for w in self.workers)
        return sum(w.done for w in self.workers) / possible


class _Master:
    """The state of one simulated run."""

    def __init__(self, clusters: Sequence[Cluster], work: Workload, in_order: bool) -> None:
        self.clusters, self.work, self.left = clusters, work, work.tasks
        self.clock, self.run = Clock(), Run()
        home = next((c for c in clusters if c.home), None)
        self.local = [Line(self.clock, c.local_network, in_order) for c in clusters]
        self.inbound = [Line(self.clock, None if c.home else c.inbound, in_order) for c in clusters]
        self.outbound = [Line(self.clock, None if c.home else c.outbound, in_order) for c in clusters]
        self.own_out = Line(self.clock, home.outbound if home else None, in_order)
        self.own_in = Line(self.clock, home.inbound if home else None, in_order)

    def ask(self, worker: Worker) -> None:
        if not self.left or not worker.quota:
            return
        self.left, worker.quota = self.left - 1, worker.quota - 1
        urgency = self.clock.now + worker.seconds * worker.computing
        size, cluster, number = self.work.task_size, self.clusters[worker.cluster], worker.cluster

        def inside() -> None:
            self.local[number].send(size, urgency, lambda: self.task(worker))

        def entered() -> None:
            self.inbound[number].send(size, urgency, lambda: self.clock.after(cluster.latency, inside))

        if cluster.home:
            self.clock.after(cluster.latency, inside)
        else:
            self.own_out.send(size, urgency, entered)

    def task(self, worker: Worker) -> None:
        worker.waiting += 1
        self.begin(worker)

    def begin(self, worker: Worker) -> None:
        if worker.waiting and not worker.computing:
            worker.waiting, worker.computing = worker.waiting - 1, True
            self.clock.after(worker.seconds, lambda: self.end(worker))
            self.ask(worker)

    def end(self, worker: Worker) -> None:
        worker.computing, worker.done = False, worker.done + 1
        size, cluster, number = self.work.result_size, self.clusters[worker.cluster], worker.cluster

        def home() -> None:
            self.run.finished.append(self.clock.now)

        def left() -> None:
            self.own_in.send(size, RESULTS, home)

        def gathered() -> None:
            if cluster.home:
                self.clock.after(cluster.latency, home)
            else:
                self.outbound[number].send(size, RESULTS, lambda: self.clock.after(cluster.latency, left))

        self.local[number].send(size, RESULTS, gathered)
        self.begin(worker)


def simulate(
    clusters: Sequence[Cluster], work: Workload, quotas: dict[str, int] | None = None, *, in_order: bool = False
) -> Run:
    """Run `work` on all nodes of `clusters`. quotas: tasks of each node (one worker each); None: who asks gets.

    in_order: no message overtakes another.
    """
    master = _Master(clusters, work, in_order)
    for position, cluster in enumerate(clusters):
        for node in sorted(cluster.nodes, key=lambda n: n.seconds):
            for _ in range(node.workers):
                quota = work.tasks if quotas is None else quotas.get(node.name, 0)
                if quota:
                    master.run.workers.append(Worker(position, node.seconds, quota))
    for worker in master.run.workers:
        master.ask(worker)
    master.clock.run()
    master.run.finished.sort()
    master.run.seconds = master.run.finished[-1]
    return master.run
