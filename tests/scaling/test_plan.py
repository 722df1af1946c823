# SPDX-License-Identifier: Apache-2.0
"""Plans: equal to brute force over every combination, by every objective, for every pattern."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.errors import ProbeError
from probe.applications.composition import Composed, parse_composition
from probe.scaling.plan import OBJECTIVES, Choice, plan

KERNELS = ("a", "b", "c")
TYPES = ("haswell", "skylake", "zen", "phi")
SIZES = (4, 8, 16, 32, 64, 128)


def made(
    seed: int, kernels: Sequence[str] = KERNELS, types: Sequence[str] = TYPES, sizes: Sequence[int] = SIZES
) -> dict[str, list[Choice]]:
    generator = np.random.default_rng(seed)
    found: dict[str, list[Choice]] = {}
    for kernel in kernels:
        work = generator.uniform(100, 1000)
        found[kernel] = []
        for node_type in types:
            speed, watts = generator.uniform(0.5, 2), generator.uniform(5, 20)
            for cores in sizes:
                seconds = work / speed / cores + 0.05 * cores * generator.uniform(0.5, 1.5)
                found[kernel].append(
                    Choice(kernel, node_type, cores, seconds, 0.9 * seconds, 1.2 * seconds, watts * cores * seconds)
                )
    return found


def costs(
    graph: Composed, picked: Mapping[str, Choice], values: Mapping[str, float], shared: bool
) -> tuple[float, float, float]:
    """Seconds, joules and core seconds of one combination, by the meaning of each pattern."""
    if not graph.kind:
        c = picked[graph.name]
        return c.seconds, c.joules or 0.0, c.cores * c.seconds
    if graph.kind == "farm":
        c, copies = picked[graph.parts[0].name], graph.times(values)
        turns = math.ceil(copies / c.places)
        return turns * c.seconds, copies * (c.joules or 0), turns * c.places * c.cores * c.seconds
    parts = [costs(part, picked, values, shared) for part in graph.parts]
    seconds, joules, cores = (list(column) for column in zip(*parts, strict=True))
    if graph.kind == "par":
        return max(seconds), max(joules) if shared else sum(joules), sum(cores)
    n = graph.times(values)
    return sum(seconds) * (1 if graph.kind == "replica" else n), sum(joules) * n, sum(cores) * n


GRAPHS = ["seq(a, b, c)", "par(a, b, c)", "loop(3, a, par(b, c))", "par(seq(a, b), c)", "seq(a, replica(5, b), c)",
          "loop(n, par(a, replica(n, b)), c)"]  # fmt: skip


@pytest.mark.parametrize("text", GRAPHS)
@pytest.mark.parametrize("shared", [False, True])
def test_equal_to_brute_force_on_3_kernels_4_types_6_sizes(text: str, shared: bool) -> None:
    graph, choices, values = parse_composition(text, KERNELS), made(5), {"n": 4.0}
    every = [
        costs(graph, dict(zip(KERNELS, combination, strict=True)), values, shared)
        for combination in itertools.product(*(choices[name] for name in KERNELS))
    ]
    assert len(every) == 24**3
    table = np.array(every)
    for column, objective in enumerate(OBJECTIVES):
        found = plan(graph, choices, values, objective=objective, shared=shared)
        assert found.plans == len(every)
        ours = (found.best.seconds, found.best.joules or 0.0, found.best.core_hours * 3600)
        assert ours[column] == pytest.approx(table[:, column].min(), rel=1e-12)
        picked = {choice.kernel: choice for choice in found.best.choices}
        assert ours == pytest.approx(costs(graph, picked, values, shared), rel=1e-12)
        assert found.best.low == pytest.approx(0.9 * found.best.seconds)
        assert found.best.high == pytest.approx(1.2 * found.best.seconds)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(GRAPHS), st.booleans())
def test_the_front_is_the_whole_front(seed: int, text: str, shared: bool) -> None:
    graph, choices, values = parse_composition(text, KERNELS), made(seed, types=TYPES[:2], sizes=(4, 16)), {"n": 4.0}
    table = np.unique(
        np.round(
            [
                costs(graph, dict(zip(KERNELS, combination, strict=True)), values, shared)
                for combination in itertools.product(*(choices[name] for name in KERNELS))
            ],
            6,
        ),
        axis=0,
    )
    beaten = [((table <= row).all(axis=1) & (table < row).any(axis=1)).any() for row in table]
    front = {tuple(row) for row, b in zip(table.tolist(), beaten, strict=True) if not b}
    found = plan(graph, choices, values, shared=shared).front
    ours = {(round(p.seconds, 6), round(p.joules or 0, 6), round(p.core_hours * 3600, 6)) for p in found}
    assert {tuple(np.round(row, 3)) for row in ours} == {tuple(np.round(row, 3)) for row in front}
    assert [p.seconds for p in found] == sorted(p.seconds for p in found)


def test_a_farm_runs_its_copies_by_turns() -> None:
    """Ten copies on three places are four turns; the pilot job's cores are paid for all of them."""
    graph = parse_composition("seq(a, farm(10, b))", ["a", "b"])
    a = Choice("a", "haswell", 8, 100.0, 100.0, 100.0, 10.0)
    b = [Choice("b", "haswell", 4, 30.0, 30.0, 33.0, 2.0, places=places) for places in (1, 3, 10)]
    found = plan(graph, {"a": [a], "b": b}, {})
    # One place takes longer and as many core hours; three places waste two of the twelve last ones.
    assert [p.seconds for p in found.front] == [130]
    slow = plan(graph, {"a": [a], "b": b[1:2]}, {}).best
    assert (slow.seconds, slow.high, slow.joules) == (220, 232, 30)
    assert slow.core_hours * 3600 == pytest.approx(8 * 100 + 4 * 12 * 30)


def test_waits_count() -> None:
    graph = parse_composition("a", ["a"])
    soon = Choice("a", "haswell", 8, 100.0, 90.0, 110.0)
    late = Choice("a", "zen", 8, 50.0, 45.0, 55.0, wait=80.0)
    found = plan(graph, {"a": [soon, late]}, {}).best
    assert (found.choices[0].node_type, found.seconds, found.low) == ("haswell", 100, 90)


def test_a_hundred_thousand_plans_take_less_than_a_second() -> None:
    graph, choices = parse_composition("loop(9, a, par(b, c))", KERNELS), made(1, sizes=tuple(range(4, 400, 33)))
    begun = time.perf_counter()
    found = plan(graph, choices, {})
    took = time.perf_counter() - begun
    assert found.plans == 48**3 > 100_000
    assert took < 1.0


def test_what_cannot_be_planned() -> None:
    graph = parse_composition("seq(a, b)", ["a", "b"])
    choices = made(1, ["a", "b"])
    with pytest.raises(ProbeError, match="b: there is no type and number of cores"):
        plan(graph, {"a": choices["a"]}, {})
    blind = [Choice("b", "zen", 4, 1.0, 1.0, 1.0)]
    with pytest.raises(ProbeError, match="no power is known of zen"):
        plan(graph, {**choices, "b": blind}, {}, objective="energy")
    assert plan(graph, {**choices, "b": blind}, {}).best.joules is None
