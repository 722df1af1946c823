# SPDX-License-Identifier: Apache-2.0
"""`probe rank`: nodes in order, decisions, pool files, and wrong calls."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from documentation import check_keys
from results import result

from checkpoint.errors import NoPrediction, NotInStore, ProbeError, StorageError
from probe.cli.main import cli
from probe.store.describing import describe_cluster, describe_node
from probe.store.importing import import_results
from probe.store.opening import open_store

MB = 1e6


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with four nodes: one at home, two far away, one stale. Returns a folder to be in."""
    monkeypatch.setenv("PROBE_STORE", str(tmp_path / "store.db"))
    monkeypatch.chdir(tmp_path)
    with open_store() as store:
        import_results(store, [result(10.0, node="h1")], cluster="home", made_at=1.7e9)
        far = [result(4.0, node="f1"), result(4.1, node="f2"), result(2.0, node="f3")]
        import_results(store, far, cluster="far", made_at=1.7e9)
        describe_node(store, "f3", kernel="7.0")
        describe_cluster(store, "home", home=True, local_network=100 * MB)
        describe_cluster(store, "far", local_network=100 * MB, inbound=0.5 * MB, outbound=10 * MB, latency=0.01)
    return tmp_path


def rank(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["rank", *arguments])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_nodes_in_order(stored: Path) -> None:
    said = json.loads(rank("solver", "--format", "json"))
    check_keys(said, "probe rank --format json")
    assert [(c["node"], bool(c["stale"]), c["as_fast_as_best"]) for c in said["candidates"]] == [
        ("f3", True, False),
        ("f1", False, True),
        ("f2", False, True),
        ("h1", False, False),
    ]
    assert [c["node"] for c in json.loads(rank("solver", "--format", "json", "--limit", "2"))["candidates"]] == [
        "f3",
        "f1",
    ]
    lines = rank("solver").splitlines()
    assert "stale" in lines[1] and "may be the fastest" in lines[2] and "may" not in lines[4]


def test_a_decision(stored: Path) -> None:
    words = ("solver", "--tasks", "100", "--task-size", "1M")
    said = json.loads(rank(*words, "--format", "json"))
    check_keys(said, "probe rank --tasks --format json")
    far, main = said["clusters"]
    assert (far["nodes_used"], far["limit"], main["nodes_used"]) == (2, "compute", 1)
    assert far["inbound"] == 0.5 and far["steady"] == pytest.approx(1 / 4 + 1 / 4.1)
    assert said["warnings"] == []
    table = rank(*words)
    assert "100 tasks take" in table and "f3" not in table
    explained = rank(*words, "--explain")
    assert "the node's processor or kernel has changed since" in explained and "f3" in explained
    assert [r["name"] for r in csv.DictReader(rank(*words, "--format", "csv").splitlines())] == ["f1", "f2", "h1"]


def test_a_pool_file(stored: Path) -> None:
    """Times in the file, and where there are none the store's."""
    pool = {
        "format_version": 1,
        "clusters": [{"name": "c", "home": True, "nodes": [{"name": "x", "seconds": 1, "workers": 3}]}],
    }
    (stored / "pool.json").write_text(json.dumps(pool))
    said = json.loads(rank("--pool", "pool.json", "--tasks", "30", "--format", "json"))
    assert said["seconds"] == pytest.approx(10)
    pool["clusters"][0]["nodes"].append({"name": "h1"})  # type: ignore[index]
    (stored / "pool.json").write_text(json.dumps(pool))
    said = json.loads(rank("solver", "--pool", "pool.json", "--tasks", "31", "--format", "json"))
    assert {n["name"]: n["tasks"] for n in said["nodes"]} == {"x": 30, "h1": 1}
    with pytest.raises(NotInStore, match="node h1: no time in the pool"):
        rank("--pool", "pool.json", "--tasks", "30")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", ProbeError, "not JSON"),
        ("[]", ProbeError, "not a pool"),
        ('{"format_version": 2}', ProbeError, "format_version 2"),
        ('{"format_version": 1, "clusters": [{"name": "c"}]}', ProbeError, "not a pool"),
        ('{"format_version": 1, "clusters": [{"name": "c", "inbound": -1, "nodes": []}]}', ProbeError, "no measured"),
        ('{"format_version": 1, "clusters": [{"name": "c", "nodes": []}]}', NoPrediction, "no node with a prediction"),
        (None, StorageError, "No such file"),
    ],
)
def test_other_files_are_no_pools(stored: Path, text: str | None, error: type[ProbeError], message: str) -> None:
    if text is not None:
        (stored / "pool.json").write_text(text)
    with pytest.raises(error, match=message):
        rank("--pool", "pool.json", "--tasks", "3")


def test_wrong_calls(stored: Path) -> None:
    for words in ([], ["--pool", "p.json"], ["--tasks", "3"], ["solver", "--pool", "p.json"]):
        assert CliRunner().invoke(cli, ["rank", *words]).exit_code == 2
    with pytest.raises(NotInStore, match="no probe 'other'"):
        rank("other")
