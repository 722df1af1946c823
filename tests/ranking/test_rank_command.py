# SPDX-License-Identifier: Apache-2.0
"""`probe rank`: nodes in order, decisions, pool files, and wrong calls."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from documentation import check_keys
from made_runs import made_runs
from results import result
from small_probe import ROOT

from checkpoint.errors import NoPrediction, NotInStore, ProbeError, StorageError
from probe.cli.main import cli
from probe.store.describing import describe_cluster, describe_node
from probe.store.importing import import_results
from probe.store.opening import open_store
from probe.store.runs import set_power, store_runs

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


def test_nodes_with_fewer_processors_than_threads_come_last(stored: Path) -> None:
    """They say why, also where they would be the fastest; the others run as many tasks as their processors hold."""
    with open_store() as store:
        given = [
            result(5.0, probe="team", threads=3, node="h1"),
            result(1.0, probe="team", threads=3, node="x", cores=2),
        ]
        import_results(store, given, made_at=1.7e9)
        describe_node(store, "h1", workers=8)
    why = "3 threads share the work, and it has 2 processors"
    said = json.loads(rank("team", "--format", "json"))["candidates"]
    assert [(c["node"], c["unfit"], c["as_fast_as_best"]) for c in said] == [("h1", "", True), ("x", why, False)]
    assert [(c["cores"], c["workers"]) for c in said] == [(8, 2), (2, 1)]
    assert [c["node"] for c in json.loads(rank("team", "--format", "json", "--limit", "1"))["candidates"]] == ["h1"]
    assert rank("team").splitlines()[-1].endswith(why)
    decided = json.loads(rank("team", "--tasks", "100", "--explain", "--format", "json"))["nodes"]
    assert {n["name"]: (n["used"], n["reason"]) for n in decided} == {"h1": (True, ""), "x": (False, why)}
    with open_store() as store:
        import_results(store, [result(1.0, node="h1", cores=2)], made_at=1.8e9)
    with pytest.raises(NoPrediction, match="no prediction can be used: 3 threads share the work"):
        rank("team", "--tasks", "100")


def test_joules_are_those_of_all_threads(stored: Path) -> None:
    with open_store() as store:
        import_results(store, [result(10.0, probe="team", threads=2, node="h1")], made_at=1.7e9)
        set_power(store, "h1", 8, [(0.0, 8.0), (1.0, 88.0)], "hand")
    one, two = (
        json.loads(rank(name, "--by", "energy", "--format", "json"))["candidates"] for name in ("solver", "team")
    )
    joules = {c["node"]: c["joules"] for c in one}
    assert two[0]["joules"] == pytest.approx(2 * joules["h1"])


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


def test_a_pool_file_gives_no_more_workers_than_processors_hold(stored: Path) -> None:
    """Tasks of three threads on eight processors: two at once, whatever the file or the store says."""
    with open_store() as store:
        import_results(store, [result(10.0, probe="team", threads=3, node="h1")], made_at=1.7e9)
    for workers, seconds in ((8, 150.0), (1, 300.0), (None, 300.0)):
        nodes = [{"name": "h1", "workers": workers}]
        (stored / "pool.json").write_text(
            json.dumps({"format_version": 1, "clusters": [{"name": "c", "home": True, "nodes": nodes}]})
        )
        said = json.loads(rank("team", "--pool", "pool.json", "--tasks", "30", "--format", "json"))
        assert said["seconds"] == pytest.approx(seconds), workers


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


def test_nodes_by_energy(stored: Path) -> None:
    """A slow node that draws little comes first; intervals are carried, and idle power is divided among the cores."""
    with open_store() as store:
        set_power(store, "home", 4, [(0.0, 8.0), (1.0, 12.0)], "hand")
        set_power(store, "f1", 2, [(0.0, 40.0), (1.0, 120.0)], "published")
        set_power(store, "far", 2, [(0.0, 80.0), (1.0, 200.0)], "hand")
    said = json.loads(rank("solver", "--by", "energy", "--json"))
    check_keys(said, "probe rank --format json")
    rows = {c["node"]: c for c in said["candidates"]}
    assert [c["node"] for c in said["candidates"]] == ["h1", "f3", "f1", "f2"]
    assert rows["h1"]["joules"] == pytest.approx(10 * (8 / 4 + (9 - 8)))
    assert rows["f1"]["joules"] == pytest.approx(4 * (40 / 2 + 40)), "its own name goes before its cluster's"
    assert rows["f1"]["joules_high"] / rows["f1"]["joules"] == pytest.approx(rows["f1"]["high"] / rows["f1"]["seconds"])
    assert (rows["f1"]["energy_source"], rows["f2"]["energy_source"]) == ("published", "hand")
    assert rows["h1"]["as_fast_as_best"] and not rows["f1"]["as_fast_as_best"]
    assert "may need the least" in rank("solver", "--by", "energy")
    assert [
        c["node"] for c in json.loads(rank("solver", "--by", "energy", "--limit", "1", "--json"))["candidates"]
    ] == ["h1"]


def test_nodes_by_end(stored: Path) -> None:
    """Wait and run: stored runs' median, or what is given; nodes without a wait come last."""
    with open_store() as store:
        waits = [
            replace(run, wait=float(w))
            for run, w in zip(made_runs((1, 2, 4), node_type="far"), (2, 9, 70), strict=True)
        ]
        store_runs(store, waits)
    said = json.loads(rank("solver", "--by", "end", "--json"))["candidates"]
    assert [(c["node"], c["wait"], c["end"]) for c in said] == [
        ("f3", 9.0, 11.0), ("f1", 9.0, 13.0), ("f2", 9.0, pytest.approx(13.1)), ("h1", None, None),
    ]  # fmt: skip
    given = json.loads(rank("solver", "--by", "end", "--wait", "home=1s", "--wait", "far=2h", "--json"))["candidates"]
    assert [(c["node"], c["end"]) for c in given][:2] == [("h1", 11.0), ("f3", 7202.0)]
    assert given[0]["end_low"] == pytest.approx(1 + given[0]["low"])
    assert "unknown" in rank("solver", "--by", "end") and "ends after" in rank("solver", "--by", "end")


def test_a_wait_is_of_a_type_that_there_is(stored: Path) -> None:
    """As docs/cli.md has it, and with a slip of the pen, which would be no wait at all."""
    documented = next(line for line in (ROOT / "docs" / "cli.md").read_text().splitlines() if "--by end --wait" in line)
    words = documented.replace("north", "far").split()[2:]
    shown = [line.split() for line in rank(*words).splitlines()]
    assert shown[0][-4:] == ["waits", "ends", "after", "#"]
    assert [line[0] for line in shown[1:]] == ["f3", "f1", "f2", "h1"]
    with pytest.raises(NotInStore, match="--wait fra: no node of this probe has that name, cluster or feature; there"):
        rank("solver", "--by", "end", "--wait", "far=2h", "--wait", "fra=2h")


def test_orders_that_nothing_is_known_of(stored: Path) -> None:
    with pytest.raises(NoPrediction, match="no power is known of any node's name, cluster or feature"):
        rank("solver", "--by", "energy")
    with pytest.raises(NoPrediction, match="no wait is known"):
        rank("solver", "--by", "end")
    for words in (("--by", "energy", "--tasks", "5"), ("--wait", "far=2h")):
        assert CliRunner().invoke(cli, ["rank", "solver", *words]).exit_code == 2
