# SPDX-License-Identifier: Apache-2.0
"""Descriptions of nodes and clusters by people and other tools, beside what results bring."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from checkpoint.errors import NotInStore, ProbeError
from probe.store.opening import Store
from probe.store.records import StoredCluster, node_state
from probe.store.schema import clusters, nodes


def describe_node(
    store: Store,
    name: str,
    *,
    cluster: str | None = None,
    cpu: str | None = None,
    kernel: str | None = None,
    memory: int | None = None,
    features: Sequence[str] | None = None,
    workers: int | None = None,
    seen_at: float | None = None,
) -> bool:
    """Change what is known of a node; None leaves it. Returns whether its predictions became stale by that.

    seen_at: seconds since 1970 (default: now). Raises NotInStore, ProbeError, StoreBusy.
    """
    if workers is not None and workers < 1:
        raise ProbeError(f"node {name}: {workers} workers; a node runs one task at least")
    given = {"cluster": cluster, "cpu": cpu, "kernel": kernel, "memory": memory, "workers": workers}
    values: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    with store.writing() as connection:
        row = connection.execute(nodes.select().where(nodes.c.name == name)).first()
        if row is None:
            raise NotInStore(f"{store.name}: no node {name!r}; `probe store nodes` lists them")
        state = node_state(row.cpu if cpu is None else cpu, row.kernel if kernel is None else kernel)
        if features is not None:
            values["features"] = sorted(set(features))
        moment = max(row.last_seen, time.time() if seen_at is None else seen_at)
        connection.execute(nodes.update().where(nodes.c.id == row.id).values(**values, state=state, last_seen=moment))
    return bool(state != row.state)


def describe_cluster(
    store: Store,
    name: str,
    *,
    home: bool | None = None,
    local_network: float | None = None,
    inbound: float | None = None,
    outbound: float | None = None,
    latency: float | None = None,
) -> StoredCluster:
    """Enter or change a cluster's network: throughputs in bytes per second, latency in seconds; None leaves it.

    Zero is a cluster that cannot be reached. Raises ProbeError for what is no such number, StoreBusy.
    """
    given = {"local_network": local_network, "inbound": inbound, "outbound": outbound, "latency": latency}
    for key, value in given.items():
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ProbeError(f"cluster {name}: {key.replace('_', ' ')} {value:g} is no measured value")
    values: dict[str, float | bool] = {key: value for key, value in given.items() if value is not None}
    if home is not None:
        values["home"] = home
    with store.writing() as connection:
        if home:
            connection.execute(clusters.update().values(home=False))
        row = connection.execute(clusters.select().where(clusters.c.name == name)).first()
        if row is None:
            connection.execute(clusters.insert().values(**{"home": False, "latency": 0.0, **values, "name": name}))
        elif values:
            connection.execute(clusters.update().where(clusters.c.name == name).values(**values))
        query: sa.Select[tuple[object, ...]] = clusters.select().where(clusters.c.name == name)
        return StoredCluster(**connection.execute(query).one()._mapping)
