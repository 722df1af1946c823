# SPDX-License-Identifier: Apache-2.0
"""Selection of nodes and clusters: against examples computed by hand, and against simulated runs."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from master_worker import simulate

from checkpoint.errors import NoPrediction, ProbeError
from probe.ranking import Cluster, Decision, Node, Pool, Workload, decide
from probe.ranking.steady import limits

MB = 1e6


def nodes(*seconds: float, name: str = "n", width: float = 0.0) -> tuple[Node, ...]:
    return tuple(Node(f"{name}{i}", s, s * (1 - width), s * (1 + width)) for i, s in enumerate(seconds))


def home(*seconds: float, **more: float) -> Cluster:
    return Cluster("home", nodes(*seconds), home=True, **more)  # type: ignore[arg-type]


def tasks_of(decision: Decision) -> dict[str, int]:
    return {n.name: n.tasks for n in decision.nodes}


# -- by hand


def test_two_nodes_that_finish_together() -> None:
    """6 s: six tasks of 1 s here, three of 2 s there. Nobody waits: T_best is 9 / (1 + 1/2) = 6 s, efficiency 1."""
    d = decide(Pool((home(1.0, 2.0),)), Workload(9))
    assert tasks_of(d) == {"n0": 6, "n1": 3}
    assert (d.seconds, d.best_seconds, d.efficiency) == pytest.approx((6, 6, 1))


def test_the_last_task_makes_others_wait() -> None:
    """A tenth task ends at 7 s, on the fast node. T_best = 10 / 1.5 = 6.67 s, efficiency 6.67 / 7."""
    d = decide(Pool((home(1.0, 2.0),)), Workload(10))
    assert tasks_of(d) == {"n0": 7, "n1": 3}
    assert (d.seconds, d.best_seconds, d.efficiency) == pytest.approx((7, 20 / 3, 20 / 21))


def test_a_node_slower_than_the_whole_run_gets_nothing() -> None:
    """Four tasks take 4 s on the fast node; the other would need 5 s for one."""
    d = decide(Pool((home(1.0, 5.0),)), Workload(4), threshold=0)
    assert tasks_of(d) == {"n0": 4, "n1": 0}
    assert d.seconds == pytest.approx(4) and d.efficiency == pytest.approx(1)
    assert [n.reason for n in d.nodes if not n.used] == ["slow: the others are done before it would end its first task"]


def test_steady_performance_is_the_least_of_four() -> None:
    """Tasks of 2 MB, results of 1 MB. Local 30 / 3 = 10 per second, inbound 8 / 2 = 4, outbound 3 / 1 = 3."""
    cluster = Cluster("far", nodes(1.0), local_network=30 * MB, inbound=8 * MB, outbound=3 * MB)
    bounds = limits(cluster, Workload(1, 2 * MB, 1 * MB))
    assert (bounds.local_network, bounds.inbound, bounds.outbound) == pytest.approx((10, 4, 3))
    assert [bounds.steady(c) for c in (2.0, 5.0)] == pytest.approx([2, 3])
    assert [bounds.name(c) for c in (2.0, 5.0)] == ["compute", "outbound"]
    at_home = limits(
        Cluster("h", (), home=True, local_network=30 * MB, inbound=1.0, outbound=1.0), Workload(1, 1.0, 1.0)
    )
    assert at_home.network == pytest.approx(15 * MB), "at home nothing crosses the internet"


def test_nodes_beyond_what_the_network_carries_are_no_help() -> None:
    """10 MB/s carry one task and result of 5 MB each per second: two nodes of 2 s do that, the other two none."""
    d = decide(Pool((home(2.0, 2.0, 2.0, 2.0, local_network=10 * MB),)), Workload(1000, 5 * MB, 5 * MB))
    assert [n.used for n in d.nodes] == [True, True, False, False]
    assert "no help: faster nodes use all of the local network" in d.nodes[3].reason
    (cluster,) = d.clusters
    assert (cluster.steady, cluster.compute, cluster.local_network) == pytest.approx((1, 1, 1))
    # 999 s at one per second, and the first: 0.5 s in, 2 s computed, 0.5 s back.
    assert d.seconds == pytest.approx(1002)


@pytest.mark.parametrize(("threshold", "used"), [(0.8, 3), (0.84, 2), (0.95, 2)])
def test_the_threshold_decides_about_a_node_that_waits_a_part_of_its_time(threshold: float, used: int) -> None:
    """The network carries 1.25 tasks per second; three nodes of 2 s compute 1.5: they work 1.25 / 1.5 = 83 % of it."""
    cluster = home(2.0, 2.0, 2.0, 2.0, local_network=12.5 * MB)
    d = decide(Pool((cluster,)), Workload(100_000, 5 * MB, 5 * MB), threshold=threshold)
    assert d.clusters[0].nodes_used == used
    assert d.met and d.efficiency >= threshold - 1e-3
    assert d.seconds == pytest.approx(100_000 / min(1.25, used / 2), rel=1e-3)


def test_a_cluster_behind_a_thin_line_is_dropped_whole() -> None:
    """One task in ten seconds gets through; its fastest node, of 2 s, would work a fifth of the time."""
    far = Cluster("far", nodes(2.0, 4.0, name="f"), inbound=1 * MB, outbound=100 * MB)
    pool = Pool((home(3.0), far))
    d = decide(pool, Workload(100, 10 * MB, 1 * MB))
    assert [(c.name, c.used, c.tasks) for c in d.clusters] == [("home", True, 100), ("far", False, 0)]
    assert "wait for the inbound more than the threshold allows" in d.clusters[1].reason
    assert d.seconds == pytest.approx(300)
    helped = decide(pool, Workload(100, 10 * MB, 1 * MB), threshold=0.1)
    assert helped.clusters[1].nodes_used == 1 and helped.seconds < 250


def test_the_masters_connection_is_shared() -> None:
    """It carries 3 tasks per second. A cluster of two nodes of 1 s takes 2. Of what is left, 1 per second, two nodes of
    1.5 s would use 75 %, so only one of them is kept; the third cluster's fastest node would work two thirds of it.
    """
    others = tuple(
        Cluster(name, nodes(*[t] * 2, name=name), inbound=100 * MB, outbound=100 * MB)
        for name, t in (("a", 1.0), ("b", 1.5), ("c", 2.0))
    )
    main = Cluster("home", nodes(10.0), home=True, inbound=1000 * MB, outbound=3 * MB)
    d = decide(Pool((main, *others)), Workload(10_000, 1 * MB, 0))
    assert [(c.name, c.nodes_used, c.shared) for c in d.clusters] == [
        ("home", 1, None),
        ("a", 2, 3.0),
        ("b", 1, 1.0),
        ("c", 0, pytest.approx(1 / 3)),
    ]
    assert "wait for the master's connection" in d.clusters[3].reason


def test_nobody_waits_for_a_node_that_gets_no_task() -> None:
    """One task of 2 MB, its result of 0.25 MB, 2.5 MB/s: 0.8 s in, 1 s computed, 0.1 s back, on either of two nodes."""
    d = decide(Pool((home(1.0, 1.0, local_network=2.5 * MB),)), Workload(1, 2 * MB, 0.25 * MB), threshold=0)
    assert tasks_of(d) == {"n0": 1, "n1": 0}
    assert (d.seconds, d.low, d.high) == pytest.approx((1.9, 1.9, 1.9))


def test_few_tasks_on_many_nodes_are_not_efficient() -> None:
    """Ten tasks of 1 s: on nine nodes two rounds, efficiency 10 / 9 / 2 = 56 %; on five nodes two rounds, and 100 %."""
    nine = Pool((home(*[1.0] * 9),))
    assert decide(nine, Workload(10), threshold=0.5).clusters[0].nodes_used == 9
    d = decide(nine, Workload(10), threshold=0.9)
    assert (d.clusters[0].nodes_used, d.seconds, d.efficiency) == (5, pytest.approx(2), pytest.approx(1))
    assert all("slow" in n.reason for n in d.nodes if not n.used)


def test_a_threshold_that_nothing_reaches_is_said() -> None:
    """Each task needs a second to arrive and one to compute; a single one is half waiting on any selection."""
    far = Cluster("far", nodes(1.0), inbound=1 * MB)
    d = decide(Pool((far,)), Workload(1, 1 * MB), threshold=0.9)
    assert not d.met and d.efficiency == pytest.approx(0.5) and d.seconds == pytest.approx(2)
    assert decide(Pool((far,)), Workload(1, 1 * MB), threshold=0.5).met


def test_intervals_and_workers() -> None:
    """Four workers of 10 s each do 40 tasks in 100 s, 90 s at the lower ends, 110 s at the upper."""
    node = Node("big", 10.0, 9.0, 11.0, workers=4)
    d = decide(Pool((Cluster("home", (node,), home=True),)), Workload(40))
    assert (d.seconds, d.low, d.high) == pytest.approx((100, 90, 110))
    assert d.nodes[0].tasks == 40 and d.clusters[0].compute == pytest.approx(0.4)


# -- bad input


def test_what_cannot_be_used() -> None:
    stale = Node("old", 1.0, 0.9, 1.1, unusable="the kernel has changed")
    down = Cluster("down", nodes(0.1, name="d"), inbound=0.0, outbound=1 * MB)
    empty = Cluster("empty", ())
    pool = Pool((Cluster("home", (stale, Node("new", 2.0, 1.9, 2.1)), home=True), down, empty))
    d = decide(pool, Workload(10, 1.0, 1.0))
    assert tasks_of(d) == {"old": 0, "new": 10, "d0": 0}
    assert [c.reason for c in d.clusters] == ["", "nothing gets through: inbound", "no node with a prediction"]
    assert next(n for n in d.nodes if n.name == "old").reason == "the kernel has changed"
    assert decide(pool, Workload(10, 0.0, 1.0)).clusters[1].used, "without data to send, the line does not matter"
    with pytest.raises(NoPrediction, match=r"down: nothing gets through: inbound; empty: no node"):
        decide(Pool((down, empty)), Workload(10, 1.0, 1.0))
    with pytest.raises(NoPrediction, match="no prediction can be used: the kernel has changed"):
        decide(Pool((Cluster("home", (stale,)),)), Workload(10))
    with pytest.raises(NoPrediction, match="the pool is empty"):
        decide(Pool(()), Workload(10))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workload(0), "nothing to decide"),
        (lambda: Workload(1, -1.0), "no size"),
        (lambda: Workload(1, 0.0, math.nan), "no size"),
        (lambda: Pool((Cluster("c", nodes(0.0)),)), "no predicted time"),
        (lambda: Pool((Cluster("c", nodes(math.inf)),)), "no predicted time"),
        (lambda: Pool((Cluster("c", (Node("n", 1.0, 2.0, 3.0),)),)), "no predicted time"),
        (lambda: Pool((Cluster("c", (Node("n", 1.0, 1.0, 1.0, workers=0),)),)), "0 workers"),
        (lambda: Pool((Cluster("c", (), inbound=-1.0),)), "inbound -1.0 is no measured value"),
        (lambda: Pool((Cluster("c", (), latency=math.nan),)), "latency nan"),
        (lambda: Pool((Cluster("c", ()), Cluster("c", ()))), "there twice"),
        (lambda: Pool((Cluster("a", (), home=True), Cluster("b", (), home=True))), "more than one"),
        (lambda: decide(Pool((home(1.0),)), Workload(1), threshold=1.5), "threshold"),
    ],
)
def test_values_that_nobody_measures(make: object, message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        make()  # type: ignore[operator]


def test_what_was_not_measured_is_said() -> None:
    pool = Pool((home(1.0), Cluster("far", nodes(1.0, name="f"), inbound=1 * MB)))
    (first, second) = decide(pool, Workload(10, 1.0, 1.0)).warnings
    assert first == "cluster home: local network not measured, taken as unlimited"
    assert second == "cluster far: local network, outbound not measured, taken as unlimited"
    assert decide(pool, Workload(10)).warnings == ()


# -- against simulated runs


def random_pool(seed: int, clusters: int, per_cluster: int, task: float, result: float) -> Pool:
    """The lines of some clusters carry less than their nodes compute, those of others more."""
    chance = random.Random(seed)
    made = []
    for number in range(clusters):
        times = [chance.uniform(5, 60) for _ in range(per_cluster)]
        compute = sum(1 / t for t in times)
        made.append(
            Cluster(
                f"c{number}",
                nodes(*times, name=f"c{number}-"),
                home=number == 0,
                local_network=compute * (task + result) * chance.uniform(0.7, 3),
                inbound=None if number == 0 else compute * task * chance.uniform(0.5, 3),
                outbound=None if number == 0 else compute * result * chance.uniform(0.5, 3),
                latency=chance.uniform(0, 0.1),
            )
        )
    return Pool(tuple(made))


@pytest.mark.parametrize("seed", range(4))
def test_a_run_of_thousands_of_workers_takes_what_the_model_says(seed: int) -> None:
    pool = random_pool(seed, clusters=10, per_cluster=200, task=2 * MB, result=1 * MB)
    work = Workload(30_000, 2 * MB, 1 * MB)
    d = decide(pool, work)
    assert sum(n.tasks for n in d.nodes) == work.tasks
    run = simulate(pool.clusters, work, tasks_of(d))
    assert d.seconds == pytest.approx(run.seconds, rel=0.015)
    assert d.efficiency == pytest.approx(run.efficiency, rel=0.015)
    assert run.efficiency >= 0.8 * 0.97


@pytest.mark.parametrize("seed", range(4))
def test_what_is_dropped_would_not_have_helped_much(seed: int) -> None:
    """Everybody asking for work, all nodes of all clusters: hardly sooner done, and at a lower efficiency."""
    pool = random_pool(seed, clusters=6, per_cluster=100, task=2 * MB, result=1 * MB)
    work = Workload(10_000, 2 * MB, 1 * MB)
    d = decide(pool, work, threshold=0.8)
    everything = simulate(pool.clusters, work)
    assert sum(c.nodes_used for c in d.clusters) < 600
    assert d.seconds < everything.seconds * 1.1
    assert d.efficiency > everything.efficiency


@pytest.mark.parametrize("limit", ["local_network", "inbound", "outbound"])
def test_steady_performance_is_reached(limit: str) -> None:
    """Results per second in the middle of a run, where one part of the network is too thin for the nodes."""
    carried = {"local_network": 300 * MB, "inbound": 100 * MB, "outbound": 50 * MB}
    carried[limit] *= 0.1
    cluster = Cluster("far", nodes(*[4.0] * 100), **carried, latency=0.05)
    work = Workload(2000, 2 * MB, 1 * MB)
    steady = limits(cluster, work).steady(100 / 4)
    assert steady < 25
    run = simulate([cluster], work)
    middle = run.finished[500:1500]
    assert (len(middle) - 1) / (middle[-1] - middle[0]) == pytest.approx(steady, rel=0.02)


@settings(max_examples=60, deadline=None)
@given(
    times=st.lists(st.floats(0.5, 50), min_size=1, max_size=12),
    tasks=st.integers(1, 300),
    task_size=st.sampled_from([0.0, 1 * MB]),
    network=st.one_of(st.none(), st.floats(0.2 * MB, 50 * MB)),
    threshold=st.floats(0, 1),
)
# The second node gets no task; while it was counted, the first one waited for it.
@example(times=[1.0, 1.0], tasks=1, task_size=1 * MB, network=1.500001 * MB, threshold=0.0)
def test_every_decision_adds_up(
    times: list[float], tasks: int, task_size: float, network: float | None, threshold: float
) -> None:
    pool = Pool((home(*times, local_network=network),))  # type: ignore[arg-type]
    d = decide(pool, Workload(tasks, task_size, task_size / 2), threshold=threshold)
    assert sum(n.tasks for n in d.nodes) == tasks == sum(c.tasks for c in d.clusters)
    assert all((n.tasks > 0) == n.used == (not n.reason) for n in d.nodes)
    assert 0 < d.efficiency <= 1 + 1e-6 and d.met == (d.efficiency >= threshold or d.met)
    assert d.low <= d.seconds * (1 + 1e-6) and d.seconds <= d.high * (1 + 1e-6)
    assert d.seconds >= max(n.seconds for n in d.nodes if n.used) * (1 - 1e-6)


def test_an_unlimited_network_gives_the_shortest_run_there_is() -> None:
    """Against trying every division of the tasks."""
    times, tasks = (1.0, 1.7, 3.1), 11
    best = min(
        max(a * times[0], b * times[1], (tasks - a - b) * times[2])
        for a in range(tasks + 1)
        for b in range(tasks + 1 - a)
    )
    d = decide(Pool((home(*times),)), Workload(tasks), threshold=0)
    assert d.seconds == pytest.approx(best)
