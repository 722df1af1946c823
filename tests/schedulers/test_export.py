# SPDX-License-Identifier: Apache-2.0
"""Predictions for schedulers, read by HTCondor's own library and held against the types that Kubernetes publishes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import classad2
import pytest
from click.testing import CliRunner
from documentation import check_keys
from results import result

from checkpoint.errors import NotInStore, ProbeError, StorageError
from probe.cli.main import cli
from probe.schedulers.usable import write_whole
from probe.store.describing import describe_node
from probe.store.importing import import_results
from probe.store.opening import open_store


@pytest.fixture(autouse=True)
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`solver` on n1 (10 s), n2 (20 s), n3 (stale); `other-one` on n2 (5 s)."""
    monkeypatch.setenv("PROBE_STORE", str(tmp_path / "store.db"))
    monkeypatch.chdir(tmp_path)
    given = [result(10.0), result(20.0, node="n2"), result(1.0, node="n3"), result(5.0, probe="other-one", node="n2")]
    with open_store() as store:
        import_results(store, given, made_at=1.7e9)
        describe_node(store, "n3", kernel="7.0")
    return tmp_path


def export(*arguments: str, given: str | None = None) -> str:
    done = CliRunner().invoke(cli, ["export", *arguments], input=given)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_lists(stored: Path) -> None:
    said = json.loads(export())
    check_keys(said, "probe export --format json")
    pairs = [(p["probe"], p["node"], p["seconds"]) for p in said["predictions"]]
    assert pairs == [("other-one", "n2", 5.0), ("solver", "n1", 10.0), ("solver", "n2", 20.0)]
    rows = list(csv.DictReader(export("solver", "--format", "csv").splitlines()))
    assert [(r["node"], float(r["seconds"])) for r in rows] == [("n1", 10.0), ("n2", 20.0)]
    assert rows[0].keys() == said["predictions"][0].keys()
    export("-o", "out.json")
    assert json.loads((stored / "out.json").read_text()) == said
    assert sorted(p.name for p in stored.iterdir() if "out" in p.name) == ["out.json"], "nothing else is left"
    done = CliRunner().invoke(cli, ["export", "--format", "condor"])
    assert "1 stale predictions left out" in done.stderr


def test_threads_need_processors(stored: Path) -> None:
    """n5 has one, and what was predicted there for two threads is not passed on."""
    with open_store() as store:
        given = [result(7.0, probe="team", threads=2), result(3.0, probe="team", threads=2, node="n5", cores=1)]
        import_results(store, given, made_at=1.7e9)
    rows = json.loads(export("team"))["predictions"]
    assert [(row["node"], row["threads"]) for row in rows] == [("n1", 2)]
    assert {row["threads"] for row in json.loads(export("solver"))["predictions"]} == {1}
    (ad,) = classad2.parseAds(export("team", "--format", "condor"), classad2.ParserType.Old)
    assert ad["ProbeCpus_team"] == 2
    done = CliRunner().invoke(cli, ["export", "team"])
    assert "1 predictions left out: the nodes have too few processors for the threads" in done.stderr
    assert "stale" not in done.stderr
    (stored / "request.json").write_text(json.dumps({"NodeNames": ["n5", "n1"]}))
    said = json.loads(export("team", "--format", "k8s", "--arguments", "request.json"))
    assert said == [{"Host": "n5", "Score": 0}, {"Host": "n1", "Score": 10}]


def test_machine_ads_are_what_htcondor_reads(stored: Path) -> None:
    ads = list(classad2.parseAds(export("--format", "condor"), classad2.ParserType.Old))
    assert [ad["Machine"] for ad in ads] == ["n1", "n2"]
    assert ads[0]["ProbeSeconds_solver"] == 10.0 and ads[0]["ProbeSpeed_solver"] == 360.0
    assert ads[1]["ProbeSecondsHigh_other_one"] == 5.5
    (stored / "ads").mkdir()
    export("--format", "condor", "-o", "ads")
    assert sorted(p.name for p in (stored / "ads").iterdir()) == ["n1.ad", "n2.ad"]
    assert dict(classad2.parseOne((stored / "ads" / "n2.ad").read_text())) == dict(ads[1])


def test_the_rank_of_the_documentation_prefers_the_fastest_and_unknown_machines_last() -> None:
    text = (Path(__file__).parents[2] / "docs" / "schedulers.md").read_text()
    (rank,) = [line.split("=", 1)[1].strip() for line in text.splitlines() if line.startswith("rank = ")]
    ads = list(classad2.parseAds(export("--format", "condor"), classad2.ParserType.Old))
    ads.append(classad2.ClassAd({"Machine": "unknown"}))
    ranks = {}
    for ad in ads:
        ad["Rank"] = classad2.ExprTree(rank)
        value = ad.eval("Rank")
        ranks[ad["Machine"]] = 0.0 if value is classad2.Value.Undefined else value
    assert sorted(ranks, key=lambda name: -ranks[name]) == ["n1", "n2", "unknown"]


def test_probes_of_one_name_get_attributes_of_their_own() -> None:
    with open_store() as store:
        import_results(store, [result(7.0, arguments=["--other"]), result(8.0, probe="SOLVER", node="n9")])
    for ad in classad2.parseAds(export("--format", "condor"), classad2.ParserType.Old):
        solvers = [name for name in ad if name.lower().startswith("probespeed_solver")]
        assert all(len(name) == len("ProbeSpeed_solver_12345678") for name in solvers)


def pod(label: str | None = "solver") -> dict[str, Any]:
    labels = {"labels": {"probe": label}} if label else {}
    return {"metadata": {"name": "p", **labels}, "spec": {"containers": []}}


def prioritized(request: dict[str, Any], *names: str) -> dict[str, int]:
    """What the scheduler reads: a list of HostPriority, each with Host and an integer Score from 0 to 10."""
    listed = json.loads(export(*names, "--format", "k8s", "--arguments", "-", given=json.dumps(request)))
    assert all(entry.keys() == {"Host", "Score"} for entry in listed)
    assert all(isinstance(e["Host"], str) and type(e["Score"]) is int and 0 <= e["Score"] <= 10 for e in listed)
    assert [e["Host"] for e in listed] == asked(request)
    return {entry["Host"]: entry["Score"] for entry in listed}


def asked(request: dict[str, Any]) -> list[str]:
    lower = {key.lower(): value for key, value in request.items()}
    if lower.get("nodenames") is not None:
        return list(lower["nodenames"])
    return [node["metadata"]["name"] for node in lower["nodes"]["items"]]


def test_an_extender_scores_the_nodes_it_was_asked_for() -> None:
    names = ["n2", "n3", "n1", "n4"]
    scores = {"n1": 10, "n2": 5, "n3": 0, "n4": 0}
    assert prioritized({"Pod": pod(), "NodeNames": names, "Nodes": None}) == scores
    listed = {"items": [{"metadata": {"name": name}} for name in names]}
    assert prioritized({"Pod": pod(), "Nodes": listed, "NodeNames": None}) == scores
    assert prioritized({"pod": pod(), "nodes": listed}) == scores, "older schedulers name the fields in small letters"
    assert prioritized({"Pod": pod(), "NodeNames": ["n2", "n4"]}) == {"n2": 10, "n4": 0}
    assert prioritized({"Pod": pod(None), "NodeNames": names}) == dict.fromkeys(names, 0), "not one of ours"
    assert prioritized({"Pod": pod(None), "NodeNames": ["n2"]}, "other-one") == {"n2": 10}
    assert prioritized({"Pod": pod(), "NodeNames": []}) == {}
    assert json.loads(export("solver", "--format", "k8s")) == [{"Host": "n1", "Score": 10}, {"Host": "n2", "Score": 5}]


def test_wrong_calls(stored: Path) -> None:
    for words in (["--format", "k8s"], ["a", "b", "--format", "k8s"], ["--arguments", "x"], ["--format", "xml"]):
        assert CliRunner().invoke(cli, ["export", *words]).exit_code == 2
    for text in ("[1]", "{}", '{"Pod": 3, "NodeNames": []}', '{"Nodes": {"items": [{}]}}', "nonsense"):
        with pytest.raises(ProbeError, match=r"ExtenderArgs|not JSON"):
            export("--format", "k8s", "--arguments", "-", given=text)
    with pytest.raises(NotInStore):
        export("nobody")
    with pytest.raises(NotInStore):
        prioritized({"Pod": pod("nobody"), "NodeNames": ["n1"]})
    with pytest.raises(StorageError, match="still there"):
        export("-o", "missing/out.json")
    with open_store() as store:
        import_results(store, [result(1.0, node="../evil")])
    with pytest.raises(ProbeError, match="not a name for a file"):
        export("--format", "condor", "-o", str(stored))


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    (target / "kept").touch()
    with pytest.raises(StorageError):
        write_whole(target, "text")
    assert [p.name for p in target.parent.iterdir() if p.name.startswith(".folder")] == []
