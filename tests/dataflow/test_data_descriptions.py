# SPDX-License-Identifier: Apache-2.0
"""Descriptions of data-intensive applications and machines: what is read, and each mistake by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from data_applications import MICROSCOPE, TITAN, described, machine
from documentation import check_keys
from results import result
from small_probe import ROOT

from checkpoint.errors import ModelInvalid, NotInStore, StorageError
from probe.cli.main import cli
from probe.dataflow.application import read_data_application
from probe.dataflow.machine import read_disk_machine
from probe.dataflow.work import place
from probe.store.importing import import_results
from probe.store.opening import open_store

GRAPH = {
    "operations": {"r": "read", "s": "send", "g": "receive", "c": "compute"},
    "edges": ["r -> s", "s -> g", "g -> c"],
}


def graph(**changed: Any) -> dict[str, Any]:
    return {"family": "graph", "graph": {**GRAPH, **changed}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"family": "atlas"}, "family = 'atlas' is none of titan, pathfinder, microscope, graph"),
        ({"family": None}, "family is missing"),
        ({"blocs": 3}, "family titan: unknown key 'blocs'; there are name"),
        ({"blocks": -3}, "blocks = -3 is no whole number from 1"),
        ({"blocks": None}, "give one of blocks, blocks_per_node and data_bytes"),
        ({"data_bytes": 1e9}, "give one of blocks, blocks_per_node and data_bytes"),
        ({"blocks": None, "data_bytes": 1e5}, r"block_bytes = 1e\+06 is larger than the data, data_bytes = 100000"),
        ({"block_bytes": -1.0}, "block_bytes = -1 must be above 0"),
        ({"block_bytes": float("nan")}, "'nan' is no number"),
        ({"extent": [0, 2]}, r"extent = \[0, 2\] are no degrees of width and height"),
        ({"extent": 2}, "extent = 2 is no list of two numbers"),
        ({"block_bytes": 1e25}, r"block_bytes = 1e\+25 is no quantity of this world"),
        ({"polar": 1.5}, "polar = 1.5 is no share of the blocks"),
        ({"polar": -0.1}, "polar = -0.1 is below 0"),
        ({"query": "mars"}, "query = 'mars' is none of world"),
        ({"query": [10, 0, 0, 10]}, r"query = \[10, 0, 0, 10\] is no window"),
        ({"query": [1, 2]}, r"query is a name or \[west, east, south, north\]"),
        ({"grid": [0, 3]}, r"grid = \[0, 3\] are no two whole numbers above 0"),
        ({"compute": -1}, "compute = -1 is below 0"),
        ({"compute": None}, "compute is missing"),
        ({"compute": {"probe": "solver"}}, "blocks_per_run is missing"),
        ({"compute": {"probe": "solver", "blocks_per_run": 0}}, "blocks_per_run = 0 is no whole number"),
        ({"epoch": 0}, "epoch = 0 is no whole number from 1"),
        ({"compute_per_io": 3}, "compute_per_io: all nodes of Titan read and compute"),
        ({"graph": GRAPH}, "a table .graph. goes with family = 'graph', and only with that"),
        ({"family": "graph"}, "a table .graph. goes with family = 'graph'"),
        (graph(edges=["r -> s", "s -> g", "g -> s"]), "has a cycle: "),
        (graph(edges=["r -> s", "g -> c"]), "g: a receive without a send"),
        (graph(edges=["r -> g", "r -> s", "g -> c"]), "g: a receive without a send: read r goes before it"),
        (graph(edges=["r -> s", "s -> c", "s -> g"]), "s -> c: a send is followed by receive alone"),
        (graph(edges=["r -> s", "s -> g"]), "c: nothing leads to it"),
        (graph(edges=["r => s"]), "edge 'r => s' is not written NAME -> NAME"),
        (graph(edges=["r -> x"]), "edge 'r -> x': there is no operation 'x'"),
        (graph(operations={"r": "reed"}, edges=[]), "r = 'reed' is none of read, send, receive, compute"),
        (graph(operations={"a": "read", "b": "read"}, edges=["a -> b"]), "has 2 reads; a block is read once"),
        (graph(operations={}, edges=[]), "has 0 operations; 1 to 16"),
        (graph(edges=None), "needs operations = "),
        (
            graph(operations={**GRAPH["operations"], "h": "receive"}, edges=[*GRAPH["edges"], "s -> h"]),  # type: ignore[dict-item, misc]
            "s: 2 receives of one send",
        ),
    ],
)
def test_wrong_descriptions(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    if "graph" in changed:
        changed["graph"] = {key: value for key, value in changed["graph"].items() if value is not None}
    with pytest.raises(ModelInvalid, match=message):
        read_data_application(described(tmp_path, TITAN, **changed))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query": [30, 4]}, r"query = \[30, 4\] blocks is larger than a slide of \[20, 30\]"),
        ({"slides": None}, "give one of slides and slides_per_node"),
        ({"slide": [4096, 4096]}, r"slide = \[4096, 4096\] has more than 1048576 blocks"),
        ({"queries_per_node": 3}, "give one of queries and queries_per_node"),
        ({"result_bytes": -1}, "result_bytes = -1 is below 0"),
        ({"epoch": 3}, "family microscope: unknown key 'epoch'"),
    ],
)
def test_wrong_slides(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelInvalid, match=message):
        read_data_application(described(tmp_path, MICROSCOPE, **changed))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("[disk]", "[disc]")], "the machine: unknown key 'disc'"),
        ([("per_node = 1", "per_node = 0")], "a machine without disks: .disk. per_node = 0"),
        ([("rate = 1e6\n", "")], "rate is missing"),
        ([("rate = 1e6\n", "rate = -1e6\n")], r"rate = -1e\+06 must be above 0"),
        ([("controller = 0.001", "controller = -1")], "controller = -1 is below 0"),
        ([("[0.0, 0.0]", "[0.2, 0.1]")], r"seek = \[0.2, 0.1\] are no seconds"),
        ([("[network]", "[network]\njitter = 1")], ".network.: unknown key 'jitter'"),
        ([("[bus]\nlatency = 0.0001\nbandwidth = 1e7\n", "")], "there is no table .bus."),
        ([('name = "plain"', "name = ")], "not TOML"),
    ],
)
def test_wrong_machines(tmp_path: Path, changes: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(ModelInvalid, match=message):
        read_disk_machine(machine(tmp_path, *changes))


def test_a_machine_without_disks(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text("[network]\nbandwidth = 1e6\n")
    with pytest.raises(ModelInvalid, match=r"a machine without disks: there is no table .disk."):
        read_disk_machine(tmp_path / "m.toml")
    with pytest.raises(StorageError):
        read_disk_machine(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("changed", "nodes", "message"),
    [
        ({"grid": [2, 2]}, 5, "on 5 nodes: a grid of 2 x 2 is not the 5 that compute"),
        ({"family": "pathfinder"}, 6, "on 6 nodes: no multiple of 4"),
        ({"family": "pathfinder", "grid": [2, 1]}, 4, "a grid of 2 x 1 is not the 3 that compute"),
        ({"blocks": 5000}, 4, r"each disk of plain would hold 1.25e\+09 bytes and has 1e\+09"),
        ({}, 17, "on 17 nodes: plain has 16"),
        ({"blocks": None, "blocks_per_node": 1 << 40, "block_bytes": 1e-9}, 4096, "at most 1125899906842624 can be"),
        ({}, 20_000_000, "1 to 10000000 can be simulated"),
    ],
)
def test_numbers_of_nodes_that_do_not_fit(tmp_path: Path, changed: dict[str, Any], nodes: int, message: str) -> None:
    described_machine = read_disk_machine(
        machine(tmp_path, ("[disk]", f"nodes = {max(nodes, 4) if nodes in (4096,) else 16}\n[disk]"))
    )
    with pytest.raises(ModelInvalid, match=message):
        place(read_data_application(described(tmp_path, TITAN, **changed)), described_machine, nodes)


def test_slides_with_fewer_blocks_than_nodes(tmp_path: Path) -> None:
    application = read_data_application(described(tmp_path, MICROSCOPE, slides=1, planes=1))
    with pytest.raises(ModelInvalid, match="600 blocks; some nodes would have none, and empty epochs without end"):
        place(application, read_disk_machine(machine(tmp_path)), 601)


def command(*words: str) -> str:
    return CliRunner().invoke(cli, ["simulate", *words], catch_exceptions=False).stdout


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    return str(described(tmp_path, TITAN, blocks=40, polar=0.2)), str(machine(tmp_path))


def test_a_table_over_numbers_of_nodes(files: tuple[str, str]) -> None:
    data, on = files
    said = json.loads(command(data, "--machine", on, "-P", "2..8,3", "-q", "--json"))
    check_keys(said, "probe simulate -P --json")
    assert [row["nodes"] for row in said["rows"]] == [2, 3, 4, 8]
    assert all(row["low"] == row["seconds"] == row["high"] and row["blocks"] == 40 for row in said["rows"])
    table = command(data, "--machine", on, "-P", "2..8", "-q").splitlines()
    assert "loose simulation; a block takes 0.5 s (given)" in table[0] and len(table) == 5


def test_a_picture_of_the_table(files: tuple[str, str], tmp_path: Path) -> None:
    data, on = files
    for name in ("over.png", "over.svg"):
        assert f"wrote {tmp_path / name}" in command(
            data, "--machine", on, "-P", "2..16", "-q", "--picture", str(tmp_path / name)
        )
        assert (tmp_path / name).stat().st_size > 5000


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PROBE_STORE", str(tmp_path / "store.db"))
    with open_store() as store:
        import_results(store, [result(10.0, node="n1")], made_at=1.7e9)
    yield tmp_path


def test_block_times_of_a_probe_carry_their_interval(stored: Path) -> None:
    data = str(described(stored, TITAN, blocks=40, compute={"probe": "solver", "blocks_per_run": 20}))
    words = (data, "--machine", str(machine(stored)), "-P", "2", "-q")
    said = json.loads(command(*words, "--node", "n1", "--json"))
    assert said["block_seconds"] == pytest.approx(0.5)
    assert said["block_low"] < 0.5 < said["block_high"] and "probe solver on n1" in said["block_source"]
    (row,) = said["rows"]
    assert row["low"] < row["seconds"] < row["high"]
    # Two nodes compute nearly all the time: the ends are nearly in proportion.
    assert row["high"] / row["seconds"] == pytest.approx(said["block_high"] / 0.5, rel=0.1)
    given = json.loads(command(*words, "--probe", "solver=20", "--json"))
    assert given["block_seconds"] == 1.0 and given["rows"][0]["low"] == given["rows"][0]["high"]
    with pytest.raises(ModelInvalid, match="a block's time comes from the probe solver: which node's prediction"):
        command(*words)
    with pytest.raises(NotInStore, match="n2"):
        command(*words, "--node", "n2")
    other = str(described(stored, TITAN, compute={"probe": "other", "blocks_per_run": 20}))
    with pytest.raises(NotInStore, match="no probe 'other'"):
        command(other, *words[1:], "--node", "n1")


def test_wrong_calls(files: tuple[str, str], tmp_path: Path) -> None:
    data, on = files
    for words, message in (
        ([data, "-P", "4"], "Missing option '--machine'"),
        ([data, "--machine", on], "Missing option '-P'"),
        ([data, "--machine", on, "-P", "4", "--network", "torus:4"], "--network is of the flow engine"),
        ([data, "--machine", on, "-P", "4", "--set", "a=1"], "--set is not of an application of blocks"),
        ([data, "--machine", on, "-P", "8..4"], "8..4 is no number of nodes, or ends before it begins"),
        ([data, "--machine", on, "-P", "0"], "0 is no number of nodes"),
        ([data, "--machine", on, "-P", "4", "--picture", "a.gif"], ".png or .svg is wanted"),
        (["model.aspen", "--network", "torus:4", "-P", "4"], "-P and --mode are of an application of blocks"),
    ):
        done = CliRunner().invoke(cli, ["simulate", *words])
        assert done.exit_code == 2 and message in " ".join(done.output.split()), (words, done.output)


@pytest.mark.parametrize("name", ["titan", "pathfinder", "microscope"])
def test_the_examples_are_simulated(name: str) -> None:
    folder, numbers = ROOT / "examples" / "dataflow", "256..512" if name == "microscope" else "64..128"
    said = json.loads(
        command(str(folder / f"{name}.toml"), "--machine", str(folder / "sp2.toml"), "-P", numbers, "-q", "--json")
    )
    first, second = (row["seconds"] for row in said["rows"])
    if name == "microscope":
        assert second / first == pytest.approx(1, abs=0.1)
    else:
        assert 1.6 < second / first < 2.05
