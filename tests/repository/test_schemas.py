# SPDX-License-Identifier: Apache-2.0
"""The published JSON Schemas: made from docs/json.md, valid themselves, and true of what the commands print."""

from __future__ import annotations

import copy
import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from documentation import named
from jsonschema import Draft202012Validator
from programs import build
from published import FOLDER, schema_errors
from results import result as made_result
from small_probe import SmallProbe, command, small_probe

from probe.cli.main import cli
from probe.doctor.diagnosis import Repair, examine, report_json

ROOT = Path(__file__).parents[2]
MADE = runpy.run_path(str(ROOT / "scripts" / "schemas"))["schemas"]((ROOT / "docs" / "json.md").read_text())


def test_schemas_are_those_of_the_page() -> None:
    assert {p.name for p in FOLDER.iterdir()} == MADE.keys(), "run scripts/schemas"
    assert {p.name: json.loads(p.read_text()) for p in FOLDER.iterdir()} == MADE, "run scripts/schemas"


@pytest.mark.parametrize("name", sorted(MADE))
def test_schemas_are_schemas(name: str) -> None:
    Draft202012Validator.check_schema(MADE[name])
    assert MADE[name]["properties"]["format_version"] and MADE[name]["required"]


def leaves(of: click.Group = cli, name: str = "probe") -> Iterator[tuple[str, click.Command]]:
    for word, inner in named(of):
        if isinstance(inner, click.Group):
            yield from leaves(inner, f"{name} {word}")
        else:
            yield f"{name} {word}", inner


WITHOUT_JSON = {"probe completion": "prints a script", "probe scale export": "prints the format of another program"}


@pytest.mark.parametrize(("name", "of"), list(leaves()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_prints_json(name: str, of: click.Command) -> None:
    named = {option for parameter in of.params for option in parameter.opts}
    assert ("--json" in named) != (name in WITHOUT_JSON)
    shown_elsewhere = name in ("probe build", "probe profile")
    assert shown_elsewhere or name in WITHOUT_JSON or f"{name.replace(' ', '-')}.json" in MADE


# -- real output


@pytest.fixture(scope="module")
def sorter(builds: Path) -> SmallProbe:
    return small_probe(builds)


def printed(*arguments: str | Path) -> Any:
    return json.loads(command(*arguments).stdout)


def answer(*arguments: str | Path) -> Any:
    """The same in this process: of a store, another interpreter would find nothing else."""
    done = CliRunner().invoke(cli, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.slow
def test_of_a_probe(sorter: SmallProbe, tmp_path: Path) -> None:
    shown = printed("show", "--json", sorter.path)
    assert schema_errors("probe-show", shown) == []
    assert schema_errors("probe-show-tradeoff", printed("show", "--tradeoff", "--json", sorter.path)) == []
    assert schema_errors("probe-explain", printed("explain", "--json", sorter.path)) == []
    trimmed = printed("trim", "--json", "--phases", "1", "-o", tmp_path / "one.probe", sorter.path)
    assert schema_errors("probe-trim", trimmed) == []
    assert trimmed["size_bytes"] == (tmp_path / "one.probe").stat().st_size and len(trimmed["phases"]) == 1
    result = printed("run", "-q", "--repeat", "2", "--json", sorter.path)
    assert schema_errors("probe-run", result) == []
    (tmp_path / "here.json").write_text(json.dumps(result))
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    reported = printed("report", "-q", "--json", sorter.path, tmp_path / "here.json", "-o", page, "--figures", figures)
    assert schema_errors("probe-report", reported) == []
    assert reported["page"] == str(page) and {Path(name) for name in reported["files"]} == set(figures.iterdir())
    assert reported["nodes"] == 1 and reported["without_prediction"] == 0
    # The schema says no where something is wrong.
    for path, wrong in ((("clock",), 1), (("phases", 0, "weight"), -1), (("prediction", "low"), None)):
        changed = copy.deepcopy(result)
        place = changed
        for key in path[:-1]:
            place = place[key]  # type: ignore[index]
        place[path[-1]] = wrong
        assert len(schema_errors("probe-run", changed)) == 1
        del place[path[-1]]
        assert len(schema_errors("probe-run", changed)) == 1


@pytest.mark.slow
def test_of_a_profile(builds: Path, tmp_path: Path) -> None:
    profile = tmp_path / "sorter.profile"
    traced = printed("trace", "-q", "--json", "--interval", "10ms", "-o", profile, "--", build("nbody", builds), "150")
    assert schema_errors("probe-trace", traced) == []
    assert traced["profile"] == str(profile) and traced["intervals"] > 3
    points = printed("export", "--json", "--simpoint", "-o", tmp_path / "points", profile)
    assert schema_errors("probe-export-simpoint", points) == []
    assert all(Path(name).exists() for name in points["files"]) and points["intervals"] == traced["intervals"]


def test_of_doctor() -> None:
    assert schema_errors("probe-doctor", report_json(examine(), [Repair("criu", True, "done")])) == []


def test_of_the_store(tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "store.db"))
    for node, seconds in (("n1", 10.0), ("n2", 20.0)):
        (tmp_path / node).write_text(json.dumps(made_result(seconds, node=node)))
        assert schema_errors("probe-store-import", answer("store", "import", "--json", tmp_path / node, *store)) == []
    assert schema_errors("probe-store-node", answer("store", "node", "n1", "--workers", "2", "--json", *store)) == []
    home = answer("store", "cluster", "c1", "--home", "--local-network", "1G", "--json", *store)
    assert schema_errors("probe-store-cluster", home) == []
    for node in ("n1", "n2"):
        answer("store", "node", node, "--cluster", "c1", "--json", *store)
    name = answer("store", "probes", "--json", *store)["probes"][0]["name"]
    observed = answer("store", "observe", name, "n1", "11", "--json", *store)
    assert schema_errors("probe-store-observe", observed) == [] and observed["run"]["seconds"] == 11
    for words in ("store probes", "store nodes", "store clusters", "store calibration", "history", "rank", "export"):
        arguments = [*words.split(), *([name] if words == "rank" else [])]
        short = answer(*arguments, "--json", *store)
        assert short == answer(*arguments, "--format", "json", *store)
        assert schema_errors(f"probe-{words.replace(' ', '-')}", short) == []
    runs = answer("store", "calibration", "--runs", "--json", *store)
    assert schema_errors("probe-store-calibration-runs", runs) == []
    assert schema_errors("probe-compare", answer("compare", "n1", "n2", "--json", *store)) == []
    assert schema_errors("probe-rank-tasks", answer("rank", name, "--tasks", "10", "--json", *store)) == []
