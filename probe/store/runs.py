# SPDX-License-Identifier: Apache-2.0
"""Runs of parallel kernels in the store, and the power that types of nodes draw."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import sqlalchemy as sa

from checkpoint.errors import NotInStore, ProbeError
from probe.store.opening import Store
from probe.store.parallel_run import ENERGY_SOURCES, ParallelRun
from probe.store.schema import FEW, power, runs

_COLUMNS = tuple(one.name for one in fields(ParallelRun))


def store_runs(store: Store, given: Iterable[ParallelRun]) -> int:
    """Store the runs whose source is not known yet, all or none; how many those were. Raises StoreBusy."""
    wanted = {run.source: run for run in given}
    with store.writing() as connection:
        known = _known(connection, list(wanted))
        fresh = [run for source, run in wanted.items() if source not in known]
        first = 1 + (connection.execute(sa.select(sa.func.max(runs.c.id))).scalar() or 0)
        rows = [{**asdict(run), "id": first + position} for position, run in enumerate(fresh)]
        if rows:
            connection.execute(runs.insert(), rows)
    return len(rows)


def _known(connection: sa.Connection, sources: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for start in range(0, len(sources), FEW):
        part = runs.c.source.in_(sources[start : start + FEW])
        found.update(connection.execute(sa.select(runs.c.source).where(part)).scalars())
    return found


def stored_runs(
    store: Store, *, app: str | None = None, kernel: str | None = None, node_type: str | None = None
) -> list[ParallelRun]:
    """Runs, the oldest first; of an application, of a kernel, of a type of nodes."""
    query = runs.select().order_by(runs.c.ended_at, runs.c.id)
    for column, value in ((runs.c.app, app), (runs.c.kernel, kernel), (runs.c.node_type, node_type)):
        if value is not None:
            query = query.where(column == value)
    with store.reading() as connection:
        found = connection.execute(query).all()
    return [ParallelRun(**{name: getattr(row, name) for name in _COLUMNS}) for row in found]


@dataclass(frozen=True)
class NodePower:
    """Watts that a node of a type draws: `points` are (busy share of its cores, watts), by rising share from 0 to 1.

    cores: of one node. source: one of ENERGY_SOURCES. set_at: seconds since 1970.
    """

    node_type: str
    cores: int
    points: tuple[tuple[float, float], ...]
    source: str
    set_at: float

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md says of `probe energy show`."""
        points = [{"load": load, "watts": watts} for load, watts in self.points]
        return {**asdict(self), "points": points}


def set_power(
    store: Store, node_type: str, cores: int, points: Sequence[tuple[float, float]], source: str
) -> NodePower:
    """Enter a type's power, in place of what the same source said before. Raises ProbeError, StoreBusy."""
    ordered = tuple(sorted((float(load), float(watts)) for load, watts in points))
    loads = [load for load, _ in ordered]
    if len(set(loads)) != len(loads) or not loads or loads[0] != 0 or loads[-1] != 1:
        raise ProbeError(f"{node_type}: power is needed idle (load 0) and full (load 1), each load once")
    if not all(math.isfinite(watts) and watts > 0 for _, watts in ordered):
        raise ProbeError(f"{node_type}: watts must be above 0")
    if source not in ENERGY_SOURCES or cores < 1:
        raise ProbeError(f"{node_type}: a source of {', '.join(ENERGY_SOURCES)} and a number of cores are needed")
    made = NodePower(node_type, cores, ordered, source, time.time())
    values = {**asdict(made), "points": [list(point) for point in ordered]}
    with store.writing() as connection:
        same = (power.c.node_type == node_type) & (power.c.source == source)
        connection.execute(power.delete().where(same))
        connection.execute(power.insert().values(**values))
    return made


def stored_power(store: Store, node_type: str | None = None) -> list[NodePower]:
    """By type and then the most trusted source first; of one type, of which there must be one. Raises NotInStore."""
    query = power.select() if node_type is None else power.select().where(power.c.node_type == node_type)
    with store.reading() as connection:
        rows = connection.execute(query).all()
    found = [
        NodePower(row.node_type, row.cores, tuple((a, b) for a, b in row.points), row.source, row.set_at)
        for row in rows
    ]
    if node_type is not None and not found:
        raise NotInStore(f"{store.name}: no power of {node_type!r}; enter it with `probe energy set`")
    return sorted(found, key=lambda one: (one.node_type, ENERGY_SOURCES.index(one.source)))
