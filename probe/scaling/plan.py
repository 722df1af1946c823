# SPDX-License-Identifier: Apache-2.0
"""Plans: a type of nodes and a number of cores for each kernel, all of them, by time, energy or core hours.

Sums and maxima never fall when a part grows. So what is worse in every respect inside a part of the graph is worse in
the whole, and is left out at once: what remains has every best plan and the whole Pareto front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from checkpoint.errors import ProbeError
from probe.applications.composition import FARM, PARALLEL, REPLICA, Composed
from probe.formats.arrays import FloatArray, IntArray

TIME, ENERGY, CORE_HOURS = "time", "energy", "core-hours"
OBJECTIVES: Final = (TIME, ENERGY, CORE_HOURS)
_MOST_ROWS = 4_000_000
_SECONDS_OF_HOUR = 3600.0


@dataclass(frozen=True)
class Choice:
    """A kernel on `cores` cores of a type. joules: None where no power is known. places: copies at once, in a farm.

    wait: seconds in the queue before it begins. energy_source: where its watts come from, or empty.
    """

    kernel: str
    node_type: str
    cores: int
    seconds: float
    low: float
    high: float
    joules: float | None = None
    wait: float = 0.0
    places: int = 1
    energy_source: str = ""

    @property
    def taken(self) -> int:
        """Cores of all its places."""
        return self.cores * self.places

    def to_json(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel, "node_type": self.node_type, "cores": self.cores, "places": self.places,
            "seconds": self.seconds, "low": self.low, "high": self.high, "joules": self.joules,
            "energy_source": self.energy_source, "wait": self.wait,
        }  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Choices for all kernels, and what comes of them. low, high: with every kernel at that end of its interval."""

    seconds: float
    low: float
    high: float
    joules: float | None
    core_hours: float
    choices: tuple[Choice, ...]

    @property
    def energy_source(self) -> str:
        """Where the watts come from; empty where some power is not known."""
        return "" if self.joules is None else ", ".join(sorted({choice.energy_source for choice in self.choices}))

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md says of `probe plan`."""
        return {
            "seconds": self.seconds, "low": self.low, "high": self.high, "joules": self.joules,
            "energy_source": self.energy_source,
            "core_hours": self.core_hours, "choices": [choice.to_json() for choice in self.choices],
        }  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """How many plans there are, the best one, and those that none other beats in every respect, the fastest first."""

    plans: int
    best: Plan
    front: tuple[Plan, ...]


_TIME, _JOULES, _CORES = 0, 1, 2
"""Columns of costs: seconds, joules, core seconds."""


@dataclass(frozen=True)
class _Part:
    """Ways through a part of the graph. costs: shape (n, 3). picked: shape (n, kernels), positions of choices."""

    kernels: tuple[str, ...]
    costs: FloatArray
    picked: IntArray


def plan(
    graph: Composed,
    choices: Mapping[str, Sequence[Choice]],
    values: Mapping[str, float],
    *,
    objective: str = TIME,
    shared: bool = False,
) -> Planned:
    """The best plan by `objective`, and the front. values: parameters that counts of the graph are.

    shared: parallel kernels run on the same nodes, whose energy is then the largest, not the sum. Raises ProbeError for
    a kernel without a choice, and for ENERGY where some power is not known.
    """
    names = list(graph.kernels())
    for name in names:
        if not choices.get(name):
            raise ProbeError(f"{name}: there is no type and number of cores that can be predicted")
    known = all(choice.joules is not None for name in names for choice in choices[name])
    if objective == ENERGY and not known:
        lacking = sorted({c.node_type for name in names for c in choices[name] if c.joules is None})
        raise ProbeError(f"no power is known of {', '.join(lacking)}; enter it with `probe energy set`")
    whole = _ways(graph, choices, values, shared, known)
    order = np.argsort(whole.costs[:, _TIME], kind="stable")
    made = [_plan(graph, whole, int(row), choices, values, known) for row in order]
    column = OBJECTIVES.index(objective)
    # Of equal ones the faster, then the cheaper one.
    best = min(order, key=lambda row: (whole.costs[row, column], *whole.costs[row]))
    count = 1
    for name in names:
        count *= len(choices[name])
    return Planned(count, _plan(graph, whole, int(best), choices, values, known), tuple(made))


def _ways(
    graph: Composed, choices: Mapping[str, Sequence[Choice]], values: Mapping[str, float], shared: bool, known: bool
) -> _Part:
    if not graph.kind:
        return _front(_kernel(graph.name, choices[graph.name], 1, 1, known))
    if graph.kind in (REPLICA, FARM) and not graph.parts[0].kind:
        name, times = graph.parts[0].name, graph.times(values)
        return _front(_kernel(name, choices[name], times, times if graph.kind == FARM else 1, known))
    found: _Part | None = None
    for part in graph.parts:
        ways = _ways(part, choices, values, shared, known)
        found = ways if found is None else _front(_both(found, ways, graph.kind == PARALLEL, shared))
    assert found is not None
    if graph.kind == REPLICA:
        return _Part(found.kernels, found.costs * [1.0, *2 * [float(graph.times(values))]], found.picked)
    times = graph.times(values)
    return _Part(found.kernels, found.costs * float(times), found.picked)


def _kernel(name: str, choices: Sequence[Choice], copies: int, by_turns: int, known: bool) -> _Part:
    """by_turns: copies that share the places of a farm; 1 where all run at once."""
    rows = []
    for choice in choices:
        turns = -(-by_turns // choice.places)
        seconds = choice.wait + turns * choice.seconds
        busy = turns * choice.taken * choice.seconds if by_turns > 1 else copies * choice.cores * choice.seconds
        rows.append((seconds, copies * (choice.joules or 0.0) if known else 0.0, busy))
    return _Part((name,), np.array(rows), np.arange(len(choices), dtype=np.int64)[:, None])


def _both(a: _Part, b: _Part, parallel: bool, shared: bool) -> _Part:
    rows = len(a.costs) * len(b.costs)
    if rows > _MOST_ROWS:
        raise ProbeError(f"{rows} plans that none beats are too many; give fewer types, or fewer numbers of cores")
    left, right = np.repeat(a.costs, len(b.costs), axis=0), np.tile(b.costs, (len(a.costs), 1))
    costs = left + right
    if parallel:
        costs[:, _TIME] = np.maximum(left[:, _TIME], right[:, _TIME])
        if shared:
            costs[:, _JOULES] = np.maximum(left[:, _JOULES], right[:, _JOULES])
    picked = np.hstack([np.repeat(a.picked, len(b.costs), axis=0), np.tile(b.picked, (len(a.costs), 1))])
    return _Part((*a.kernels, *b.kernels), costs, picked)


def _front(part: _Part) -> _Part:
    """Rows that none other beats; of equal ones the first."""
    rows = np.lexsort((part.costs[:, _CORES], part.costs[:, _JOULES], part.costs[:, _TIME]))
    kept = []
    while len(rows):
        first = rows[0]
        kept.append(first)
        rest = part.costs[rows]
        rows = rows[(rest < part.costs[first]).any(axis=1)]
    chosen = np.array(kept)
    return _Part(part.kernels, part.costs[chosen], part.picked[chosen])


def _plan(
    graph: Composed, whole: _Part, row: int, choices: Mapping[str, Sequence[Choice]], values: Mapping[str, float],
    known: bool,
) -> Plan:  # fmt: skip
    seconds, joules, core_seconds = (float(value) for value in whole.costs[row])
    picked = {name: choices[name][position] for name, position in zip(whole.kernels, whole.picked[row], strict=True)}
    low, high = (
        _time(graph, {n: getattr(c, end) for n, c in picked.items()}, picked, values) for end in ("low", "high")
    )
    named = tuple(picked[name] for name in graph.kernels())
    return Plan(seconds, low, high, joules if known else None, core_seconds / _SECONDS_OF_HOUR, named)


def _time(
    graph: Composed, seconds: Mapping[str, float], picked: Mapping[str, Choice], values: Mapping[str, float]
) -> float:
    if not graph.kind:
        return picked[graph.name].wait + seconds[graph.name]
    if graph.kind == FARM and not graph.parts[0].kind:
        choice = picked[graph.parts[0].name]
        return choice.wait + -(-graph.times(values) // choice.places) * seconds[choice.kernel]
    parts = [_time(part, seconds, picked, values) for part in graph.parts]
    if graph.kind == PARALLEL:
        return max(parts)
    return sum(parts) * (1 if graph.kind == REPLICA else graph.times(values))
