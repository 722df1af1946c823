# SPDX-License-Identifier: Apache-2.0
"""Energy of runs: watts per core as runs drew them, or the power of busy and idle nodes over time.

E = integral of P_idle + (P_full - P_idle) u dt over the nodes, where u is the busy share of a node's cores; with more
points than two, P is straight between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probe.applications.composition import PARALLEL, Composed
from probe.store.runs import NodePower


@dataclass(frozen=True)
class Joules:
    """Energy of a run. `whole`: of all its nodes. `share`: of its cores, idle power divided among a node's cores.

    source: where the watts come from; how: formula in words.
    """

    whole: float
    share: float
    source: str
    how: str


def watts(power: NodePower, load: float) -> float:
    """Of one node with this busy share of its cores."""
    loads, values = zip(*power.points, strict=True)
    return float(np.interp(load, loads, values))


def integral(power: NodePower, times: Sequence[float], loads: Sequence[float]) -> float:
    """Joules of one node whose load was `loads` at `times` (seconds), straight in between."""
    values = np.array([watts(power, load) for load in loads])
    return float(np.sum((values[1:] + values[:-1]) / 2 * np.diff(np.asarray(times, dtype=np.float64))))


def of_power(power: NodePower, cores: int, seconds: float) -> Joules:
    """Energy of `seconds` on `cores` cores, which fill one node after the other."""
    full, rest = divmod(cores, power.cores)
    loads = [1.0] * full + ([rest / power.cores] if rest else [])
    idle = watts(power, 0.0)
    whole = sum(integral(power, (0.0, seconds), (load, load)) for load in loads)
    share = sum(idle * load + watts(power, load) - idle for load in loads) * seconds
    return Joules(whole, share, power.source, f"{len(loads)} nodes of {power.cores} cores")


def of_cores(watts_per_core: float, source: str, cores: int, seconds: float, node_cores: int | None = None) -> Joules:
    """Energy by watts per core, the formula of ComPat D4.3: watts x cores x seconds.

    node_cores: of one node, where that is known: `whole` then has the cores that the run left idle, too.
    """
    share = watts_per_core * cores * seconds
    filled = cores if node_cores is None else node_cores * math.ceil(cores / node_cores)
    return Joules(watts_per_core * filled * seconds, share, source, f"{watts_per_core:.4g} W per core of earlier runs")


def composed_joules(
    graph: Composed, parts: Mapping[str, Joules], values: Mapping[str, float], shared: bool
) -> tuple[float, float]:
    """Joules of whole nodes, and of the run's cores, of kernels put together: each repetition and copy counts.

    shared: parallel kernels run on the same nodes, whose meters have counted all of them: the largest counts.
    """
    if not graph.kind:
        return parts[graph.name].whole, parts[graph.name].share
    found = [composed_joules(part, parts, values, shared) for part in graph.parts]
    put = max if shared and graph.kind == PARALLEL else sum
    times = 1 if graph.kind == PARALLEL else graph.times(values)
    whole, share = (times * put(column) for column in zip(*found, strict=True))
    return whole, share


def errors(predicted: float, actual: float) -> tuple[float, float]:
    """Relative error by both conventions: divided by what was measured, and by what was predicted, as D4.3 divides."""
    return abs(actual - predicted) / actual, abs(actual - predicted) / predicted
