# SPDX-License-Identifier: Apache-2.0
"""Readers of results that `probe run --json` printed: the store and the report."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from made_probe import made_manifest, made_result, without_times

from checkpoint.errors import ProbeError
from fuzzing.mutation import damaged, forged_json
from fuzzing.reader import Reader
from probe.cli.stored_results import _results
from probe.report.results import read_results
from probe.store.describing import describe_cluster
from probe.store.importing import import_results
from probe.store.observing import calibration, observe, observed
from probe.store.opening import Store, open_store
from probe.store.reading import all_clusters, all_nodes, all_probes, candidates, compare, geometric_mean, history

_MANIFEST, _ = made_manifest(3, 40)
_open: list[Store] = []


def _made(folder: Path) -> Sequence[bytes]:
    one = made_result(_MANIFEST, "node1", estimators={"calibrated": 2.0, "direct": 2.1, "strube": None})
    two = without_times(made_result(_MANIFEST, "node2", 1.5, warnings=["slow"]), [1], "killed")
    many = {"format_version": 1, "candidates": [
        {"name": "node1", "status": "ok", "reason": "", "result": one},
        {"name": "node3", "status": "failed", "reason": "gone", "result": None},
    ]}  # fmt: skip
    return [json.dumps(value).encode() for value in (one, two, many, [one, two])]


@contextmanager
def _store(folder: Path) -> Iterator[None]:
    with open_store(str(folder / "store")) as opened:
        _open.append(opened)
        try:
            yield
        finally:
            _open.clear()


def _import(data: bytes, folder: Path) -> Any:
    (folder / "a.json").write_bytes(data)
    results, written = _results(folder / "a.json")
    done = import_results(_open[0], results, made_at=written)
    found = history(_open[0], limit=3)
    json.dumps([p.to_json() for p in found], allow_nan=False)
    all_nodes(_open[0])
    all_probes(_open[0])
    if done.stored:
        with suppress(ProbeError):
            compare(_open[0], f"#{done.stored[0]}", f"#{done.stored[-1]}")
    return None


def _stores(folder: Path) -> Sequence[bytes]:
    """A store with everything in it, as a whole file."""
    path = folder / "store"
    with open_store(path) as made:
        for name, factor in (("node1", 1.0), ("node2", 1.5)):
            import_results(made, [made_result(_MANIFEST, name, factor)], made_at=1e9)
        observe(made, all_probes(made)[0], all_nodes(made)[0], 2.5, observed_at=1.1e9)
        describe_cluster(made, "local", home=True)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    return [path.read_bytes()]


_CELLS: tuple[Any, ...] = (
    None, 0, -1, 1 << 62, 1e308, float("inf"), 5e-324, "", "x", "[]", "{}", "[1", '["a"]', '[[1,2]]', "null", b"\xff",
    "\x1b[2J", '{"a": "b"}', "[" * 2000, 1e12, "1",
)  # fmt: skip


def _other_store(choose: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Bytes changed, or a cell of a table: SQLite keeps any value in any column."""
    if choose.random() < 0.4:
        return damaged(choose, data, others)
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(data)
        connection.execute("PRAGMA ignore_check_constraints = 1")
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = choose.choice(sorted(tables))
        column = choose.choice([row[1] for row in connection.execute(f"PRAGMA table_info('{table}')")])
        with suppress(sqlite3.Error):
            connection.execute(f'UPDATE "{table}" SET "{column}" = ?', (choose.choice(_CELLS),))
            connection.commit()
        return connection.serialize()
    except (sqlite3.Error, IndexError):
        return damaged(choose, data, others)
    finally:
        connection.close()


def _use_store(data: bytes, folder: Path) -> Any:
    (folder / "store").write_bytes(data)
    with open_store(folder / "store", create=False) as opened:
        return _all_of(opened)


def _all_of(opened: Store) -> None:
    """What commands print of a store, and an import and an observation into it."""
    actions: list[Callable[[], Any]] = [
        lambda: [p.to_json() for p in history(opened)], lambda: [vars(node) for node in all_nodes(opened)],
        lambda: [[vars(one) for one in candidates(opened, probe)] for probe in all_probes(opened)],
        lambda: [vars(cluster) for cluster in all_clusters(opened)],
        lambda: [row.ratio for row in compare(opened, "#1", "#2")],
        lambda: [geometric_mean(compare(opened, "node1", "node2"))],
        lambda: [one.to_json() for one in observed(opened)], lambda: [vars(c) for c in calibration(observed(opened))],
        lambda: import_results(opened, [made_result(_MANIFEST, "node3", 2.0)], made_at=2e9).stored,
        lambda: [observe(opened, p, n, 2.5).to_json() for p in all_probes(opened)[:1] for n in all_nodes(opened)[:1]],
    ]  # fmt: skip
    refused: list[ProbeError] = []
    for action in actions:
        try:
            json.dumps(action(), allow_nan=False)
        except ProbeError as error:
            refused.append(error)
    if refused:
        raise refused[0]


def _report(data: bytes, folder: Path) -> Any:
    (folder / "a.json").write_bytes(data)
    found, without = read_results([folder / "a.json"], _MANIFEST, "solver.probe")
    for one in found:
        assert 0 < one.low <= one.seconds <= one.high < float("inf")
        json.dumps([one.name, one.coverage, dict(one.variances)], allow_nan=False)
    return len(found) + len(without) and None


READERS = (
    Reader("store-import", _made, _import, (ProbeError,), change=forged_json, prepared=_store),
    Reader("store", _stores, _use_store, (ProbeError,), change=_other_store),
    Reader("report", _made, _report, (ProbeError,), change=forged_json),
)
