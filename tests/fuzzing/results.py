# SPDX-License-Identifier: Apache-2.0
"""Readers of results that `probe run --json` printed: the store and the report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from made_probe import made_manifest, made_result, without_times

from checkpoint.errors import ProbeError
from fuzzing.mutation import forged_json
from fuzzing.reader import Reader
from probe.cli.store import _results
from probe.report.results import read_results
from probe.store.importing import import_results
from probe.store.opening import Store, open_store
from probe.store.reading import all_nodes, all_probes, compare, history

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


def _report(data: bytes, folder: Path) -> Any:
    (folder / "a.json").write_bytes(data)
    found, without = read_results([folder / "a.json"], _MANIFEST, "solver.probe")
    for one in found:
        assert 0 < one.low <= one.seconds <= one.high < float("inf")
        json.dumps([one.name, one.coverage, dict(one.variances)], allow_nan=False)
    return len(found) + len(without) and None


READERS = (
    Reader("store-import", _made, _import, (ProbeError,), change=forged_json, prepared=_store),
    Reader("report", _made, _report, (ProbeError,), change=forged_json),
)
