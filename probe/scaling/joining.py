# SPDX-License-Identifier: Apache-2.0
"""Scaling curves for types of nodes without parallel runs: computing time by the ratio that a probe measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from checkpoint.errors import NoPrediction
from probe.scaling.model import COMPUTING_PART, WHOLE_PART, KernelModel
from probe.store.opening import Store
from probe.store.parallel_run import ParallelRun
from probe.store.reading import candidates, find_probe
from probe.store.records import Candidate

_NORMAL_95 = 1.96
_LEAST_ERROR = 0.02
"""Of a ratio: one thread of a probe is not all cores of a node."""

_SHARED_MEMORY = 0.10
"""Standard error, as a share, of taking one thread's ratio for all cores': these share caches and memory."""


@dataclass(frozen=True)
class Ratio:
    """Time on type `b` over time on type `a` by one probe. `error`: relative standard error. Nodes that told it."""

    probe: str
    a: str
    b: str
    value: float
    error: float
    nodes_a: tuple[str, ...]
    nodes_b: tuple[str, ...]


def is_of_type(candidate: Candidate, node_type: str) -> bool:
    """Whether a node is of a type: that is a feature of it, its cluster, or its own name."""
    return node_type in candidate.features or node_type in (candidate.cluster, candidate.node)


def probe_ratio(store: Store, probe: str, a: str, b: str) -> Ratio:
    """The ratio that the newest predictions of `probe` say. Raises NotInStore, NoPrediction without nodes of a type."""
    found = [one for one in candidates(store, find_probe(store, probe)) if not one.unusable]
    of = {kind: [one for one in found if is_of_type(one, kind)] for kind in (a, b)}
    for kind, nodes in of.items():
        if not nodes:
            raise NoPrediction(
                f"{probe}: no prediction on a node of type {kind!r} (a feature, cluster or name of a node); run the "
                "probe there"
            )
    value = statistics.median(one.seconds for one in of[b]) / statistics.median(one.seconds for one in of[a])
    error = math.hypot(*(_error(nodes) for nodes in of.values()), _LEAST_ERROR)
    names = {kind: tuple(sorted(one.node for one in nodes)) for kind, nodes in of.items()}
    return Ratio(probe, a, b, value, error, names[a], names[b])


def _error(nodes: Sequence[Candidate]) -> float:
    """Relative: of the interval of the usual node, and between the nodes."""
    own = statistics.median((one.high - one.low) / (2 * _NORMAL_95 * one.seconds) for one in nodes)
    between = statistics.stdev(math.log(one.seconds) for one in nodes) if len(nodes) > 1 else 0.0
    return math.hypot(own, between)


def joined(model: KernelModel, ratio: Ratio, observed: Sequence[ParallelRun] = ()) -> KernelModel:
    """The model of type `ratio.b`: T_b(x) = rho (a/x + b) + T_mpi(x), with the network of `ratio.a`.

    observed: runs on `b`, too few for a curve of its own; they correct rho.
    """
    part = COMPUTING_PART if COMPUTING_PART in model.parts else WHOLE_PART
    error = math.hypot(ratio.error, _SHARED_MEMORY)
    warnings = [
        f"joined: {ratio.b} without a curve of its own, computing time is {ratio.value:.3f} times that of {ratio.a} by "
        f"probe {ratio.probe}; network and I/O are taken to be those of {ratio.a}"
    ]
    if part == WHOLE_PART:
        warnings.append("MPI time is in what the probe's ratio was applied to: the network is taken for a processor")
    made = replace(model, node_type=ratio.b, factors={part: (ratio.value, error)}, watts=None)
    usable = [run for run in observed if not run.shared and not run.oversubscribed]
    if usable:
        factor, error = _corrected(made, part, usable, ratio.value, error)
        warnings.append(f"corrected by {factor / ratio.value:.3f} after {len(usable)} runs on {ratio.b}")
        made = replace(made, factors={part: (factor, error)})
    return replace(made, warnings=(*model.warnings, *warnings))


def _corrected(
    made: KernelModel, part: str, runs: Sequence[ParallelRun], value: float, error: float
) -> tuple[float, float]:
    """The ratio after runs: mean of two opinions, weighted by their certainty (logarithms, normal)."""
    seen = []
    for run in runs:
        expected = made.part_seconds(part, run.cores, run.work)
        rest = sum(made.part_seconds(other, run.cores, run.work) for other in made.parts if other != part)
        took = run.computing if part == COMPUTING_PART and run.computing is not None else run.runtime - rest
        if took > 0 and expected > 0:
            seen.append(math.log(took / expected))
    if not seen:
        return value, error
    noise = made.parts[part].noise
    prior, told = 1 / error**2, len(seen) / noise**2
    shift = told * statistics.fmean(seen) / (prior + told)
    return value * math.exp(shift), math.sqrt(1 / (prior + told))
