# SPDX-License-Identifier: Apache-2.0
"""Import the JSON of `probe run --json` into the store."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from checkpoint import strict_json
from checkpoint.errors import ProbeError
from checkpoint.foreign_file import finite
from probe.formats.manifest import Manifest
from probe.formats.result import RESULT_VERSION
from probe.store.opening import Store
from probe.store.records import MOST_THREADS, digest, node_state, probe_key
from probe.store.schema import FEW, PHASE_KEYS, newest, nodes, predictions, probes
from reducer.unpack import open_probe

_MOST_CORES, _MOST_MEMORY, _MOST_TEXT = (1 << 31) - 1, (1 << 63) - 1, 1 << 20
_NODE_COLUMNS = ("name", "cluster", "cpu", "cores", "memory", "kernel", "features", "workers", "state")


@dataclass(frozen=True)
class Imported:
    """What an import did: ids of the predictions it stored, and how many results were there already."""

    stored: tuple[int, ...]
    known: int


@dataclass(frozen=True)
class _Result:
    """One checked result, on the way in."""

    digest: str
    probe_key: str
    probe: dict[str, Any]
    node: dict[str, Any]
    row: dict[str, Any]


def import_results(
    store: Store,
    results: Iterable[Mapping[str, Any]],
    *,
    made_at: float | None = None,
    name: str | None = None,
    node: str | None = None,
    cluster: str | None = None,
    inputs: str = "",
    tags: Sequence[str] = (),
) -> Imported:
    """Store results of `probe run --json`, all or none. What is stored already is left as it is.

    made_at: seconds since 1970 when they were measured (default: now). name: of the probe (default: its file's name).
    node, cluster: in place of what the results say. inputs: `input_checksum` of the probe file, "" if it is unknown;
    tags: added to the probe's. Raises ProbeError for what is no such result, StoreBusy, StoreUnusable.
    """
    moment = time.time() if made_at is None else made_at
    checked = [_check(result, moment, name, node, cluster, inputs) for result in results]
    with store.writing() as connection:
        known = known_digests(connection, predictions.c.digest, [result.digest for result in checked])
        fresh = {result.digest: result for result in checked if result.digest not in known}
        if not fresh:
            return Imported((), len(checked))
        probe_ids = _store_probes(connection, fresh.values(), tags)
        node_ids = store_nodes(connection, [(result.node, result.row["made_at"]) for result in fresh.values()])
        first = 1 + (connection.execute(sa.select(sa.func.max(predictions.c.id))).scalar() or 0)
        rows = [
            {
                **result.row,
                "id": first + position,
                "probe": probe_ids[result.probe_key],
                "node": node_ids[result.node["name"]],
            }
            for position, result in enumerate(fresh.values())
        ]
        connection.execute(predictions.insert(), rows)
        _keep_newest(connection, rows)
    return Imported(tuple(row["id"] for row in rows), len(checked) - len(fresh))


def input_checksum(path: Path) -> str:
    """SHA-256 of the files that a probe carries or asks for, without the program: the identity of its input.

    Raises ProbeFileDamaged, StorageError.
    """
    with open_probe(path) as archive:
        manifest = Manifest.from_json(archive.manifest)
        held = [(f.path, f.sha256) for f in archive.files if f.purpose == "input"]
    listed = sorted({*held, *((f.path, f.sha256) for f in manifest.files.external)})
    return hashlib.sha256("".join(f"{path}\0{digest}\0" for path, digest in listed).encode()).hexdigest()


def _check(
    result: Mapping[str, Any], made_at: float, name: str | None, node: str | None, cluster: str | None, inputs: str
) -> _Result:
    if not isinstance(result, Mapping) or result.get("format_version") != RESULT_VERSION:
        version = result.get("format_version") if isinstance(result, Mapping) else None
        raise ProbeError(
            f"not a result of `probe run --json`, version {RESULT_VERSION} (format_version: {version!r}); give the "
            "file that it printed"
        )
    try:
        said, here = result["prediction"], result["node"]
        seconds, low, high = (finite(said[key]) for key in ("seconds", "low", "high"))
        program = [checked_text(word) for word in result["program"]]
        identity = {
            "name": name or Path(checked_text(result["probe"])).name.removesuffix(".probe"),
            "program": program,
            "inputs": inputs,
        }
        kept_node = checked_node(here, node, cluster)
        key = probe_key(tuple(program), inputs, checked_count(result.get("threads", 1), MOST_THREADS, "threads", 1))
        phases = strict_json.dumps(
            [[phase.get(key) for key in PHASE_KEYS] for phase in result["phases"]], separators=(",", ":")
        )
        row: dict[str, Any] = {
            "digest": digest(
                "\0".join((kept_node["name"], key, repr((seconds, low, high)), str(result["clock"]), phases))
            ),
            "made_at": made_at,
            "seconds": seconds,
            "low": low,
            "high": high,
            "coverage": finite(said["coverage"]),
            "clock": checked_text(result["clock"]),
            "file": checked_text(result["probe"]),
            "cpu": kept_node["cpu"],
            "kernel": kept_node["kernel"],
            "load": finite(here["load"]),
            "state": kept_node["state"],
            "estimators": dict(result["estimators"]),
            "phases": phases,
            "warnings": [checked_text(warning) for warning in result["warnings"]],
        }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ProbeError(f"not a whole result of `probe run --json`: {error!r}; run the probe again") from error
    if not (0 < low <= seconds <= high and math.isfinite(high)):
        raise ProbeError(
            f"a prediction of {seconds:g} s with the interval {low:g} to {high:g} s on {kept_node['name']} is none; "
            "run the probe again"
        )
    return _Result(row["digest"], key, identity, kept_node, row)


def checked_node(said: Mapping[str, Any], node: str | None, cluster: str | None) -> dict[str, Any]:
    """Columns of a node, of what a result says of it; `node`, `cluster`: in place of what it says.

    Raises KeyError, TypeError, ValueError.
    """
    kept: dict[str, Any] = {
        "name": node or checked_text(said["name"]),
        "cluster": cluster,
        "cpu": checked_text(said["cpu"]),
        "cores": checked_count(said["cores"], _MOST_CORES, "cores"),
        "memory": checked_count(said["memory"], _MOST_MEMORY, "bytes") if said.get("memory") is not None else None,
        "kernel": checked_text(said["kernel"]),
        "features": sorted(map(checked_text, said.get("features", ()))),
    }
    return {**kept, "state": node_state(kept["cpu"], kept["kernel"])}


def checked_text(value: Any) -> str:
    """Text that every database takes: no halves of characters, no NUL."""
    text = str(value)
    if "\0" in text or len(text.encode()) > _MOST_TEXT:
        raise ValueError(f"{text[:40]!r} is no text for a store")
    return text


def checked_count(value: Any, most: int, of: str, least: int = 0) -> int:
    """A whole number of those. Raises ValueError for texts and halves, too."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{str(value)[:40]} is no number of {of}")
    return value


def known_digests(connection: sa.Connection, column: sa.Column[Any], digests: Sequence[str]) -> set[str]:
    """Those that a table has already in this column."""
    found: set[str] = set()
    for start in range(0, len(digests), FEW):
        found.update(connection.execute(sa.select(column).where(column.in_(digests[start : start + FEW]))).scalars())
    return found


def _store_probes(connection: sa.Connection, results: Iterable[_Result], tags: Sequence[str]) -> dict[str, int]:
    """Id of every probe by its key; new ones are stored, tags added."""
    wanted = {result.probe_key: result.probe for result in results}
    there: dict[str, Any] = {}
    keys = list(wanted)
    for start in range(0, len(keys), FEW):
        for row in connection.execute(probes.select().where(probes.c.key.in_(keys[start : start + FEW]))):
            there[row.key] = row
    following = 1 + (connection.execute(sa.select(sa.func.max(probes.c.id))).scalar() or 0)
    ids = {}
    for key, probe in wanted.items():
        if key in there:
            ids[key] = there[key].id
            if more := set(tags) - set(there[key].tags):
                joined = sorted(more | set(there[key].tags))
                connection.execute(probes.update().where(probes.c.id == ids[key]).values(tags=joined))
        else:
            ids[key] = following
            connection.execute(probes.insert().values(id=following, key=key, tags=sorted(set(tags)), **probe))
            following += 1
    return ids


def store_nodes(connection: sa.Connection, given: Iterable[tuple[dict[str, Any], float]]) -> dict[str, int]:
    """Id of every node by its name, of `checked_node` and when. What is newer replaces what was known of a node."""
    seen: dict[str, tuple[float, dict[str, Any]]] = {}
    for one, moment in given:
        name = one["name"]
        if name not in seen or moment >= seen[name][0]:
            seen[name] = moment, one
    there: dict[str, Any] = {}
    names = list(seen)
    for start in range(0, len(names), FEW):
        for row in connection.execute(nodes.select().where(nodes.c.name.in_(names[start : start + FEW]))):
            there[row.name] = row
    following = 1 + (connection.execute(sa.select(sa.func.max(nodes.c.id))).scalar() or 0)
    ids: dict[str, int] = {}
    added, changed = [], []
    for name, (moment, node) in seen.items():
        said = {key: value for key, value in node.items() if value is not None and value != []}
        if name not in there:
            ids[name] = following
            blank: dict[str, Any] = {"cluster": "", "memory": None, "features": [], "workers": 1}
            added.append({**blank, **said, "id": following, "last_seen": moment})
            following += 1
            continue
        ids[name] = there[name].id
        if moment >= there[name].last_seen:
            kept = {key: getattr(there[name], key) for key in _NODE_COLUMNS}
            changed.append({**kept, **said, "last_seen": moment, "wanted": ids[name]})
    if added:
        connection.execute(nodes.insert(), added)
    if changed:
        # All in one statement: an UPDATE of its own for each node would be most of the time of an import.
        values: dict[str, Any] = {key: sa.bindparam(key) for key in (*_NODE_COLUMNS, "last_seen")}
        connection.execute(nodes.update().where(nodes.c.id == sa.bindparam("wanted")).values(values), changed)
    return ids


def _keep_newest(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Bring the table of the newest prediction per probe and node up to date."""
    best: dict[tuple[int, int], Mapping[str, Any]] = {}
    for row in rows:
        pair = row["probe"], row["node"]
        if pair not in best or row["made_at"] >= best[pair]["made_at"]:
            best[pair] = row
    there: dict[tuple[int, int], float] = {}
    by_probe: dict[int, list[int]] = {}
    for probe, node in best:
        by_probe.setdefault(probe, []).append(node)
    for probe, ids in by_probe.items():
        for start in range(0, len(ids), FEW):
            query = sa.select(newest.c.node, newest.c.made_at).where(
                newest.c.probe == probe, newest.c.node.in_(ids[start : start + FEW])
            )
            there.update({(probe, row.node): row.made_at for row in connection.execute(query)})
    added, changed = [], []
    for pair, row in best.items():
        values = {key: row[key] for key in ("probe", "node", "made_at", "seconds", "low", "high", "state")}
        values["prediction"] = row["id"]
        if pair not in there:
            added.append(values)
        elif row["made_at"] >= there[pair]:
            changed.append({f"new_{key}": value for key, value in values.items()})
    if added:
        connection.execute(newest.insert(), added)
    if changed:
        statement = (
            newest.update()
            .where(newest.c.probe == sa.bindparam("new_probe"), newest.c.node == sa.bindparam("new_node"))
            .values(
                {
                    key: sa.bindparam(f"new_{key}")
                    for key in ("prediction", "made_at", "seconds", "low", "high", "state")
                }
            )
        )
        connection.execute(statement, changed)
