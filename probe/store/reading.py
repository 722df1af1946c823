# SPDX-License-Identifier: Apache-2.0
"""Read the store: probes, nodes, clusters, predictions, and comparisons between them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from checkpoint import strict_json
from checkpoint.errors import NotInStore, ProbeError
from checkpoint.foreign_file import finite
from probe.store.opening import Store
from probe.store.records import Candidate, StoredCluster, StoredNode, StoredPrediction, StoredProbe
from probe.store.schema import PHASE_KEYS, clusters, newest, nodes, predictions, probes

_SHORTEST_KEY = 6
_LONGEST_NUMBER = len("#999999999")
STALE = "the node's processor or kernel has changed since"


def all_probes(store: Store, tag: str | None = None) -> list[StoredProbe]:
    """Every probe, by name; with `tag`, those that have it."""
    with store.reading() as connection:
        found = [_probe(row) for row in connection.execute(probes.select().order_by(probes.c.name, probes.c.id))]
    return [probe for probe in found if tag is None or tag in probe.tags]


def find_probe(store: Store, text: str) -> StoredProbe:
    """The probe of this name, or whose key begins so (six digits at least). Raises NotInStore."""
    with store.reading() as connection:
        found = [_probe(row) for row in connection.execute(probes.select().where(probes.c.name == text))]
        if not found and len(text) >= _SHORTEST_KEY:
            matching = probes.c.key.startswith(text.lower(), autoescape=True)
            found = [_probe(row) for row in connection.execute(probes.select().where(matching))]
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotInStore(f"{store.name}: no probe {text!r}; `probe store probes` lists them")
    keys = ", ".join(f"{p.key[:12]} ({' '.join(p.program)[:60]})" for p in found)
    raise NotInStore(f"{store.name}: {len(found)} probes are called {text!r}; name one by its key: {keys}")


def all_nodes(store: Store) -> list[StoredNode]:
    """Every node, by name."""
    with store.reading() as connection:
        return [_node(row) for row in connection.execute(nodes.select().order_by(nodes.c.name))]


def find_node(store: Store, name: str) -> StoredNode:
    """Raises NotInStore."""
    with store.reading() as connection:
        row = connection.execute(nodes.select().where(nodes.c.name == name)).first()
        if row is None:
            raise NotInStore(f"{store.name}: no node {name!r}; `probe store nodes` lists them")
        return _node(row)


def all_clusters(store: Store) -> list[StoredCluster]:
    """Every cluster whose network was entered, by name."""
    with store.reading() as connection:
        return [
            StoredCluster(**row._mapping) for row in connection.execute(clusters.select().order_by(clusters.c.name))
        ]


def candidates(store: Store, probe: StoredProbe, *, limit: int | None = None) -> list[Candidate]:
    """Nodes with a prediction of `probe`, soonest first, the newest prediction of each; at most `limit`.

    Those with fewer processors than its threads need come last, and say so.
    """
    query = (
        sa.select(
            nodes.c.name, nodes.c.cluster, nodes.c.features, nodes.c.cores, nodes.c.workers,
            nodes.c.state.label("now"),
            newest.c.prediction, newest.c.made_at, newest.c.seconds, newest.c.low, newest.c.high, newest.c.state,
        )
        .join_from(newest, nodes, newest.c.node == nodes.c.id)
        .where(newest.c.probe == probe.id)
        .order_by(nodes.c.cores < probe.threads, newest.c.seconds, nodes.c.name)
        .limit(limit)
    )  # fmt: skip
    with store.reading() as connection:
        return [
            Candidate(
                name, cluster, tuple(features), cores, runs_at_once(workers, cores, probe.threads), prediction,
                made_at, seconds, low, high, "" if state == now else STALE, too_few(probe.threads, cores),
            )
            for name, cluster, features, cores, workers, now, prediction, made_at, seconds, low, high, state in
            connection.execute(query)
        ]  # fmt: skip


def too_few(threads: int, processors: int) -> str:
    """Why a node with `processors` cannot run a probe of `threads`, "" where it can."""
    return f"{threads} threads share the work, and it has {processors} processors" if processors < threads else ""


def runs_at_once(workers: int, cores: int, threads: int) -> int:
    """Of the tasks that somebody wants to run at once on a node, those for whose threads it has processors."""
    return workers if threads == 1 else min(workers, max(1, cores // threads))


def history(
    store: Store, *, probe: StoredProbe | None = None, node: StoredNode | None = None, limit: int | None = None
) -> list[StoredPrediction]:
    """Predictions, the newest first; of one probe, of one node, at most `limit`."""
    query = _predictions().order_by(predictions.c.made_at.desc(), predictions.c.id.desc()).limit(limit)
    if probe is not None:
        query = query.where(predictions.c.probe == probe.id)
    if node is not None:
        query = query.where(predictions.c.node == node.id)
    with store.reading() as connection:
        return [_prediction(row) for row in connection.execute(query)]


def find_prediction(store: Store, number: int) -> StoredPrediction:
    """Raises NotInStore."""
    with store.reading() as connection:
        row = connection.execute(_predictions().where(predictions.c.id == number)).first()
        if row is None:
            raise NotInStore(f"{store.name}: no prediction {number}; `probe history` lists them")
        return _prediction(row)


@dataclass(frozen=True)
class Comparison:
    """`a` and `b` in seconds for each thing that both have (node, probe or phase); ratio is b / a."""

    what: str
    a: float
    b: float
    stale: bool

    @property
    def ratio(self) -> float:
        return self.b / self.a


def compare(store: Store, a: str, b: str) -> list[Comparison]:
    """Two nodes by every probe that ran on both, two probes by every node, or two predictions (#1 #2) by phase.

    Raises NotInStore for what is unknown or of two kinds, ProbeError where nothing is common.
    """
    if a.startswith("#") and b.startswith("#"):
        first, second = (find_prediction(store, _number(text)) for text in (a, b))
        rows = _by_phase(first, second)
    else:
        names = {node.name: node for node in all_nodes(store)}
        if a in names and b in names:
            rows = _joined(_newest_of_node(store, names[a]), _newest_of_node(store, names[b]))
        elif a in names or b in names:
            other = b if a in names else a
            raise NotInStore(
                f"{store.name}: no node {other!r}; compare two nodes, two probes or two predictions (#1 #2)"
            )
        else:
            first_probe, second_probe = find_probe(store, a), find_probe(store, b)
            rows = _joined(*(_newest_of_probe(store, probe) for probe in (first_probe, second_probe)))
    if not rows:
        raise ProbeError(f"{a} and {b} have nothing in common; run the same probe on both nodes, or both on one")
    return rows


def geometric_mean(rows: Sequence[Comparison]) -> float:
    """Of the ratios: how b compares with a altogether."""
    return statistics.geometric_mean([row.ratio for row in rows])


def _number(text: str) -> int:
    # More digits than any number has, Python does not even convert.
    if len(text) > _LONGEST_NUMBER or not (text[1:].isascii() and text[1:].isdecimal()):
        raise NotInStore(f"{text}: not the number of a prediction, such as #12; `probe history` lists them")
    return int(text[1:])


def _by_phase(a: StoredPrediction, b: StoredPrediction) -> list[Comparison]:
    times = [{str(phase["id"]): phase["t_cand"] for phase in p.phases if phase["t_cand"]} for p in (a, b)]
    stale = bool(a.stale or b.stale)
    rows = [Comparison("whole run", a.seconds, b.seconds, stale)]
    # Phases of another program, or of a probe built anew, have the same numbers and nothing else in common.
    if a.probe != b.probe or a.file != b.file:
        return rows
    return rows + [Comparison(f"phase {k}", times[0][k], times[1][k], stale) for k in times[0] if k in times[1]]


_Times = dict[str, tuple[float, bool]]


def _newest_of_node(store: Store, node: StoredNode) -> _Times:
    query = (
        sa.select(probes.c.key, probes.c.name, newest.c.seconds, newest.c.state, nodes.c.state.label("now"))
        .join_from(newest, probes, newest.c.probe == probes.c.id)
        .join(nodes, newest.c.node == nodes.c.id)
        .where(newest.c.node == node.id)
    )
    with store.reading() as connection:
        return {f"{r.name} {r.key[:8]}": (_time(r.seconds), r.state != r.now) for r in connection.execute(query)}


def _time(value: Any) -> float:
    if finite(value) <= 0:
        raise ValueError(f"a run of {value} s")
    return float(value)


def _newest_of_probe(store: Store, probe: StoredProbe) -> _Times:
    return {c.node: (c.seconds, bool(c.stale)) for c in candidates(store, probe)}


def _joined(a: _Times, b: _Times) -> list[Comparison]:
    common = sorted(a.keys() & b.keys())
    return [Comparison(name, a[name][0], b[name][0], a[name][1] or b[name][1]) for name in common]


def _predictions() -> sa.Select[Any]:
    return (
        sa.select(
            predictions, probes.c.name.label("probe_name"), nodes.c.name.label("node_name"), nodes.c.state.label("now")
        )
        .join_from(predictions, probes, predictions.c.probe == probes.c.id)
        .join(nodes, predictions.c.node == nodes.c.id)
    )


def _prediction(row: Any) -> StoredPrediction:
    return StoredPrediction(
        id=row.id,
        probe=row.probe_name,
        probe_id=row.probe,
        node=row.node_name,
        made_at=row.made_at,
        seconds=row.seconds,
        low=row.low,
        high=row.high,
        coverage=row.coverage,
        clock=row.clock,
        file=row.file,
        cpu=row.cpu,
        kernel=row.kernel,
        load=row.load,
        estimators={"combined": None, **row.estimators},
        phases=tuple(_phase(values) for values in strict_json.loads(row.phases)),
        warnings=tuple(row.warnings),
        stale="" if row.state == row.now else STALE,
    )


def _phase(values: Any) -> dict[str, Any]:
    found = dict(zip(PHASE_KEYS, values, strict=True))
    seconds = found["t_cand"]
    if type(found["id"]) is not int or not (seconds is None or finite(seconds) >= 0):
        raise ValueError(f"a phase {str(found['id'])[:40]!r} took {str(seconds)[:40]} s")
    return found


def _probe(row: Any) -> StoredProbe:
    return StoredProbe(row.id, row.key, row.name, tuple(row.program), row.inputs, tuple(row.tags))


def _node(row: Any) -> StoredNode:
    return StoredNode(
        id=row.id,
        name=row.name,
        cluster=row.cluster,
        cpu=row.cpu,
        cores=row.cores,
        memory=row.memory,
        kernel=row.kernel,
        features=tuple(row.features),
        workers=row.workers,
        last_seen=row.last_seen,
    )
