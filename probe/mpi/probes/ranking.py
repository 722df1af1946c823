# SPDX-License-Identifier: Apache-2.0
"""Rank clusters, each a kind of node and a network, by the predicted time of a whole MPI program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from checkpoint.errors import ProbeError
from probe.candidates.result import RunResult
from probe.mpi.probes.building import MpiProbe
from probe.mpi.probes.predicting import MpiPrediction, predict
from probe.mpi.simulate import Where, refuse_unusable


@dataclass(frozen=True)
class Cluster:
    """node: name of one of its nodes, which are all alike. where: its network, and the ranks on each node."""

    node: str
    where: Where


@dataclass(frozen=True)
class Ranked:
    """A cluster with its prediction, or with the reason why it has none.

    as_fast_as_best: its interval reaches that of the fastest, so that the order may be the other way round.
    """

    cluster: Cluster
    prediction: MpiPrediction | None
    error: ProbeError | None = None
    as_fast_as_best: bool = False


def rank(
    probe: MpiProbe,
    clusters: Sequence[Cluster],
    run_on: Callable[[str, Path], RunResult],
    *,
    limit: float = 3600.0,
    epochs: bool = False,
) -> list[Ranked]:
    """Predict the program on each cluster, the fastest first; those without a prediction stand behind, in their order.

    run_on: runs a probe on a named node, once for each node and probe. limit: seconds of each simulation. epochs: as
    `predict` has them. Raises ModelInvalid before any probe runs: a network that cannot have the ranks, or is none.
    """
    for one in clusters:
        refuse_unusable(probe.recording, one.where)
    results: dict[tuple[str, Path], RunResult | ProbeError] = {}

    def known(node: str, path: Path) -> RunResult:
        if (node, path) not in results:
            try:
                results[node, path] = run_on(node, path)
            except ProbeError as error:
                results[node, path] = error
        found = results[node, path]
        if isinstance(found, ProbeError):
            raise found
        return found

    found = []
    for one in clusters:
        try:
            found.append(Ranked(one, predict(probe, partial(known, one.node), one.where, limit=limit, epochs=epochs)))
        except ProbeError as error:
            found.append(Ranked(one, None, error))
    return _in_order(found)


def _in_order(found: Sequence[Ranked]) -> list[Ranked]:
    done = [(one.prediction, one.cluster) for one in found if one.prediction is not None]
    done.sort(key=lambda pair: pair[0].seconds)
    return [
        *(Ranked(cluster, told, None, told.low <= done[0][0].high) for told, cluster in done),
        *(one for one in found if one.prediction is None),
    ]
