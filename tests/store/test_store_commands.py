# SPDX-License-Identifier: Apache-2.0
"""`probe store`, `probe history` and `probe compare` from the command line."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from documentation import check_keys
from results import result
from small_probe import command, small_probe

from checkpoint.errors import NodeUnfit, NotInStore, ProbeError, StorageError, StoreUnusable
from probe.candidates.remote import CandidateResult
from probe.cli.main import cli
from probe.cli.node_table import candidates_json
from probe.store.opening import open_store
from probe.store.reading import all_probes, history


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROBE_STORE", str(tmp_path / "sub" / "store.db"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "sub" / "store.db"


def run(*arguments: str, given: str | None = None) -> str:
    done = CliRunner().invoke(cli, list(arguments), input=given)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def rows(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--format", "json"))


def stored(*results: dict[str, Any], at: str = "2026-11-01T00:00:00Z", more: tuple[str, ...] = ()) -> None:
    Path("given.json").write_text(json.dumps(list(results)))
    run("store", "import", "given.json", "--at", at, *more)


def test_import_says_what_it_did(own_store: Path) -> None:
    Path("one.json").write_text(json.dumps(result(1.0)))
    os.utime("one.json", (1_700_000_000, 1_700_000_000))
    assert run("store", "import", "one.json") == f"{own_store}: 1 predictions stored, 0 were there already\n"
    two = json.dumps([result(1.0), result(2.0)])
    assert "1 predictions stored, 1 were there already" in run("store", "import", "-", given=two)
    oldest = rows("history")["predictions"][-1]
    assert oldest["made_at"] == "2023-11-14T22:13:20Z", "the file's time is when it was measured"


def test_import_refuses_other_files() -> None:
    Path("text.json").write_text("once upon a time")
    Path("other.json").write_text('{"format_version": 7}')
    with pytest.raises(ProbeError, match=r"text\.json: not JSON"):
        run("store", "import", "text.json")
    with pytest.raises(ProbeError, match=r"other\.json: not a result of `probe run --json`"):
        run("store", "import", "other.json")
    with pytest.raises(StorageError, match=r"missing\.json"):
        run("store", "import", "missing.json")


def test_lists_in_all_forms() -> None:
    stored(result(10.0, node="n1"), result(20.0, node="n2"), more=("--tag", "nightly", "--cluster", "north"))
    run("store", "cluster", "north", "--home", "--local-network", "110M", "--latency", "1ms")
    run("store", "node", "n2", "--feature", "fast", "--workers", "4", "--memory", "64G")
    run("store", "observe", "solver", "n1", "10.5", "--at", "2026-11-02T00:00:00Z")
    for words in (
        ("store", "probes"),
        ("store", "nodes"),
        ("store", "clusters"),
        ("store", "calibration"),
        ("store", "calibration", "--runs"),
        ("history",),
        ("compare", "n1", "n2"),
    ):
        printed = rows(*words)
        check_keys(printed, f"probe {' '.join(w for w in words if w not in ('n1', 'n2'))} --format json")
        (listed,) = (value for value in printed.values() if isinstance(value, list))
        table = run(*words)
        assert listed and len(table.splitlines()) >= len(listed) + 1
        read = list(csv.DictReader(io.StringIO(run(*words, "--format", "csv"))))
        assert [set(r) for r in read] == [set(r) for r in listed]
        for text, value in zip(read, listed, strict=True):
            for key, inner in value.items():
                kept = json.dumps(inner) if isinstance(inner, (list, dict)) else "" if inner is None else str(inner)
                assert text[key] == kept, (words, key)
    nodes = {n["name"]: n for n in rows("store", "nodes")["nodes"]}
    assert (nodes["n2"]["features"], nodes["n2"]["workers"], nodes["n2"]["memory"]) == (["fast"], 4, 64 * 10**9)
    assert rows("store", "probes", "--tag", "weekly")["probes"] == []


def test_observe_says_how_good_the_prediction_was() -> None:
    stored(result(10.0))
    assert run("store", "observe", "solver", "n1", "12") == (
        "solver on n1: 12.000 s, predicted 10.000 s (+20.0 %), outside the interval 9.000 s to 11.000 s\n"
    )
    said = run("store", "observe", "solver", "n1", "10", "--at", "2020-01-01T00:00:00Z")
    assert "nothing had been predicted before" in said
    summary = run("store", "calibration")
    assert "0 % of 95 %" in summary and "+20.0 %" in summary


def test_stale_predictions_are_marked() -> None:
    stored(result(10.0))
    assert "stale" not in run("history")
    assert run("store", "node", "n1", "--kernel", "6.1.0") == ""
    assert "stale now" in run("store", "node", "n1", "--kernel", "6.18.0")
    assert "stale: the node's processor or kernel has changed" in run("history")


def test_unknown_names_and_places() -> None:
    with pytest.raises(StoreUnusable, match="there is no store"):
        run("history")
    stored(result(1.0))
    for words in (("history", "--probe", "who"), ("store", "observe", "solver", "n7", "3"), ("compare", "n1", "n7")):
        with pytest.raises(NotInStore):
            run(*words)


def test_exit_codes_and_messages(tmp_path: Path) -> None:
    done = command("history", "--store", tmp_path / "none.db", status=StoreUnusable.exit_code)
    assert done.stderr.startswith("probe: ") and "there is no store" in done.stderr
    (tmp_path / "r.json").write_text(json.dumps(result(1.0)))
    command("store", "import", "--store", tmp_path / "s.db", tmp_path / "r.json")
    command("history", "--store", tmp_path / "s.db", "--node", "n7", status=NotInStore.exit_code)


@pytest.mark.slow
def test_a_real_result(builds: Path, tmp_path: Path, own_store: Path) -> None:
    """What `probe run` prints today is what the import reads, and the input makes the difference between probes."""
    made = small_probe(builds)
    printed = command("run", "-q", "--json", "--repeat", "3", made.path).stdout
    given = json.loads(printed)
    assert result().keys() == given.keys() and result()["node"].keys() <= given["node"].keys()
    assert result()["phases"][0].keys() == given["phases"][0].keys()
    (tmp_path / "real.json").write_text(printed)
    run("store", "import", "real.json", "--probe", str(made.path))
    run("store", "import", "real.json", "--node", "another")
    with open_store(own_store) as store:
        probes, found = all_probes(store), history(store)
    assert sorted(bool(p.inputs) for p in probes) == [False, True]
    assert {p.node for p in found} == {given["node"]["name"], "another"}
    assert {p.seconds for p in found} == {given["prediction"]["seconds"]}


def test_candidates_that_have_a_prediction_are_stored(tmp_path: Path) -> None:
    """As `probe run --on --json` prints them; those without one say nothing of their node."""

    class Made:
        def __init__(self, node: str) -> None:
            self._node = node
            self.manifest = self.prediction = None

        def to_json(self) -> dict[str, Any]:
            return result(12.0, node=self._node)

    class Candidate(CandidateResult):
        relative_speed = 1.0

    done = [Candidate(name, Made(name), None) for name in ("n1", "n2")]  # type: ignore[arg-type]
    failed = CandidateResult("n3", None, NodeUnfit("n3: no python3 on this node"))
    path = tmp_path / "candidates.json"
    path.write_text(json.dumps(candidates_json("solver.probe", [done[0], failed, done[1]])))
    assert "2 predictions stored" in run("store", "import", str(path))
    assert sorted(row["name"] for row in rows("store", "nodes")["nodes"]) == ["n1", "n2"]
