# SPDX-License-Identifier: Apache-2.0
"""Predict a whole MPI program: probes give the computing of each rank, SimGrid the time of its messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from probe.candidates.result import RunResult
from probe.mpi.probes.building import MpiProbe
from probe.mpi.probes.clusters import Cluster
from probe.mpi.probes.pooling import Estimate, drawn_together
from probe.mpi.simulate import Simulated, Where, prepared, simulate

_LEAST_WEIGHT = 1e-9


@dataclass(frozen=True)
class Ratio:
    """Computing time on the candidate over that on the reference node, of one cluster, with its 95 % interval.

    alone: the ratio as its own probe has it, before ratios are drawn together (None: a cluster without a probe).
    """

    cluster: Cluster
    ratio: float
    low: float
    high: float
    alone: float | None = None


@dataclass(frozen=True)
class MpiPrediction:
    """Seconds of the whole program with their 95 % interval; the simulation behind them, and the clusters' ratios.

    warnings: of the probes' runs.
    """

    seconds: float
    low: float
    high: float
    simulated: Simulated
    ratios: tuple[Ratio, ...]
    warnings: tuple[str, ...]


def predict(
    probe: MpiProbe,
    run: Callable[[Path], RunResult],
    where: Where,
    *,
    limit: float = 3600.0,
    epochs: bool = False,
) -> MpiPrediction:
    """Run the probe of each cluster by `run`, and simulate the program on the network with its computing scaled.

    Ratios are drawn together as far as their errors explain that they differ. Ranks without a probe are scaled as
    the others: by their mean ratio, within the lowest and the highest end. The interval is that of two more
    simulations, with all clusters at their low and high ends. epochs: some stand for all, and the interval is wider by
    their error. Raises what `run` and `simulate` raise.
    """
    estimates: dict[Cluster, Estimate] = {}
    warnings = list(probe.recording.warnings)
    for cluster in probe.clusters:
        if not cluster.probed:
            continue
        result = run(probe.probe_of(cluster))
        estimates[cluster] = _estimate(result)
        warnings += [f"rank {cluster.representative}: {warning}" for warning in result.warnings]
    ratios = [
        Ratio(cluster, drawn.ratio, drawn.low, drawn.high, alone.ratio)
        for (cluster, alone), drawn in zip(estimates.items(), drawn_together([*estimates.values()]), strict=True)
    ]
    ratios += [_as_the_others(cluster, ratios) for cluster in probe.clusters if not cluster.probed]
    with prepared(probe.recording, epochs=epochs) as plays:
        middle, low, high = (
            simulate(probe.recording, where, scales=_scales(ratios, end), limit=limit, plays=plays)
            for end in ("ratio", "low", "high")
        )
    ends = low.seconds - low.error, high.seconds + high.error
    return MpiPrediction(middle.seconds, *ends, middle, tuple(ratios), tuple(warnings))


def _estimate(result: RunResult) -> Estimate:
    """Of the ratio, as one probe alone has it."""
    told, reference = result.prediction, result.manifest.reference.seconds
    error = math.sqrt(math.fsum(told.variances.values()))
    return Estimate(told.seconds / reference, told.low / reference, told.high / reference, error)


def _as_the_others(cluster: Cluster, ratios: Sequence[Ratio]) -> Ratio:
    weights = [max(one.cluster.computing, _LEAST_WEIGHT) * len(one.cluster.ranks) for one in ratios]
    mean = sum(one.ratio * weight for one, weight in zip(ratios, weights, strict=True)) / sum(weights)
    return Ratio(cluster, mean, min(one.low for one in ratios), max(one.high for one in ratios))


def _scales(ratios: list[Ratio], end: str) -> dict[int, float]:
    """Of each rank: how many times its recorded computing time its computing takes."""
    return {rank: float(getattr(one, end)) for one in ratios for rank in one.cluster.ranks}
