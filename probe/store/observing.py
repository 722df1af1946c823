# SPDX-License-Identifier: Apache-2.0
"""Run times that were observed, and how well predictions foretold them."""

from __future__ import annotations

import datetime
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from checkpoint.errors import ProbeError, StoreUnusable
from probe.store.opening import Store
from probe.store.records import Observed, StoredNode, StoredProbe
from probe.store.schema import FEW, nodes, observations, predictions, probes


@dataclass(frozen=True)
class Observation:
    """A run of the whole program that ended. source: names where this is known from; the same one is stored once."""

    probe: StoredProbe
    node: StoredNode
    seconds: float
    observed_at: float
    source: str


def observe(
    store: Store, probe: StoredProbe, node: StoredNode, seconds: float, *, observed_at: float | None = None
) -> Observed:
    """Store a run time entered by hand; return it with what was predicted for it.

    Raises ProbeError, StoreBusy, and StoreUnusable where the store does not hold what was written.
    """
    moment = time.time() if observed_at is None else observed_at
    source = f"hand:{time.time_ns()}:{probe.id}:{node.id}"
    observe_all(store, [Observation(probe, node, seconds, moment, source)])
    for found in observed(store, probe=probe, node=node):
        if found.source == source:
            return found
    raise StoreUnusable(f"{store.name}: is damaged: what was written is not there; use a copy of it")


def observe_all(store: Store, seen: Iterable[Observation]) -> int:
    """Store those whose source is not known yet, and return how many those were. Raises ProbeError, StoreBusy."""
    given = {item.source: item for item in seen}
    for item in given.values():
        if not (math.isfinite(item.seconds) and item.seconds > 0):
            raise ProbeError(f"{item.probe.name} on {item.node.name}: {item.seconds:g} s is no run time")
    with store.writing() as connection:
        known = _known_sources(connection, list(given))
        following = 1 + (connection.execute(sa.select(sa.func.max(observations.c.id))).scalar() or 0)
        rows: list[dict[str, Any]] = []
        for item in given.values():
            if item.source in known:
                continue
            query = (
                sa.select(predictions.c.id)
                .where(
                    predictions.c.probe == item.probe.id,
                    predictions.c.node == item.node.id,
                    predictions.c.made_at <= item.observed_at,
                )
                .order_by(predictions.c.made_at.desc(), predictions.c.id.desc())
                .limit(1)
            )
            rows.append(
                {
                    "id": following + len(rows),
                    "source": item.source,
                    "probe": item.probe.id,
                    "node": item.node.id,
                    "observed_at": item.observed_at,
                    "seconds": item.seconds,
                    "prediction": connection.execute(query).scalar(),
                }
            )
        if rows:
            connection.execute(observations.insert(), rows)
    return len(rows)


def _known_sources(connection: sa.Connection, sources: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for start in range(0, len(sources), FEW):
        part = observations.c.source.in_(sources[start : start + FEW])
        found.update(connection.execute(sa.select(observations.c.source).where(part)).scalars())
    return found


def observed(store: Store, *, probe: StoredProbe | None = None, node: StoredNode | None = None) -> list[Observed]:
    """Observed run times, the oldest first, each with what had been predicted."""
    query = (
        sa.select(
            observations.c.observed_at, observations.c.seconds, observations.c.source, observations.c.prediction,
            probes.c.name.label("probe_name"), nodes.c.name.label("node_name"),
            predictions.c.seconds.label("predicted"), predictions.c.low, predictions.c.high,
        )
        .join_from(observations, probes, observations.c.probe == probes.c.id)
        .join(nodes, observations.c.node == nodes.c.id)
        .outerjoin(predictions, observations.c.prediction == predictions.c.id)
        .order_by(observations.c.observed_at, observations.c.id)
    )  # fmt: skip
    if probe is not None:
        query = query.where(observations.c.probe == probe.id)
    if node is not None:
        query = query.where(observations.c.node == node.id)
    with store.reading() as connection:
        return [
            Observed(
                probe=row.probe_name,
                node=row.node_name,
                observed_at=row.observed_at,
                seconds=row.seconds,
                source=row.source,
                prediction=row.prediction,
                predicted=row.predicted,
                low=row.low,
                high=row.high,
            )
            for row in connection.execute(query)
        ]


@dataclass(frozen=True)
class Calibration:
    """How predictions compare with what was observed, over a stretch of time.

    period: `YYYY-MM`, or "all". count: observations that had a prediction. held: share of them inside their 95 %
    interval, None where they had none. bias: median of observed / predicted - 1. error: median of its absolute value.
    worst: the largest.
    """

    period: str
    count: int
    held: float | None
    bias: float
    error: float
    worst: float

    def to_json(self) -> dict[str, Any]:
        """As in docs/store.md."""
        return asdict(self)


def calibration(seen: Sequence[Observed]) -> list[Calibration]:
    """By month, the oldest first, and then for all time; empty where nothing that was observed had been predicted."""
    usable = [item for item in seen if item.ratio is not None]
    months: dict[str, list[Observed]] = {}
    for item in usable:
        moment = datetime.datetime.fromtimestamp(item.observed_at, tz=datetime.timezone.utc)
        months.setdefault(f"{moment:%Y-%m}", []).append(item)
    rows = [_calibrated(period, months[period]) for period in sorted(months)]
    return [*rows, _calibrated("all", usable)] if usable else []


def _calibrated(period: str, seen: Sequence[Observed]) -> Calibration:
    deviations = [item.ratio - 1 for item in seen if item.ratio is not None]
    sizes = [abs(deviation) for deviation in deviations]
    return Calibration(
        period=period,
        count=len(seen),
        held=sum(1 for item in seen if item.held) / len(seen) if seen[0].held is not None else None,
        bias=statistics.median(deviations),
        error=statistics.median(sizes),
        worst=max(sizes),
    )
