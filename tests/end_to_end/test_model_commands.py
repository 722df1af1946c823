# SPDX-License-Identifier: Apache-2.0
"""`probe model` and `probe simulate`, as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aspen_models import LULESH, MACHINE, written
from command import Command


def test_the_commands(command: Command, tmp_path: Path) -> None:
    said = json.loads(command("model", "check", "--json", LULESH).stdout)
    assert said["models"][0]["kernels"] == ["faces", "all", "upward", "main"]
    path = written(tmp_path, "model m { param n = 3 kernel main { execute { flops [n * 1e9] probe [2] as s } } }")
    priced = command("model", "cost", "--json", "--machine", MACHINE, "--set", "n=6", "--probe", "s=0.5", path).stdout
    assert json.loads(priced)["seconds"] == pytest.approx(4.0 + 1.0)
    asked = json.loads(command("model", "query", "--json", path, "flops", "--over", "n=1..3").stdout)
    assert asked["formula"] == "1000000000*n" and [p["amount"] for p in asked["points"]] == [1e9, 2e9, 3e9]
    found = json.loads(
        command("simulate", "--json", LULESH, "--network", "torus:4x4x4", "--grid", "4x4x4", "--set", "phase=2").stdout
    )
    assert found["messages"] == 288 and found["seconds"] > 0
    command("model", "generate", LULESH, "--grid", "2x2x2", "-o", tmp_path / "made.c")
    command("model", "generate", LULESH, "--grid", "2x2x2", "--trace", tmp_path / "trace")
    assert "MPI_Waitall(active" in (tmp_path / "made.c").read_text()
    assert len(list((tmp_path / "trace").iterdir())) == 9


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["cost", "--machine", "MACHINE", "--set", "x=1", "LULESH"], 36, "has no such parameter"),
        (["cost", "--machine", "LULESH", "LULESH"], 36, "a machine model has one machine; found: none"),
        (["check", "absent"], 10, "no such file"),
        (["cost", "--machine", "MACHINE", "--probe", "s=-1", "LULESH"], 36, "a number of seconds is wanted"),
        (["cost", "--machine", "MACHINE", "--probe", "s", "LULESH"], 36, "Name it with --node"),
        (["query", "LULESH", "comm", "--over", "nelem=1..9:0"], 2, "a range upward"),
        (["generate", "LULESH"], 2, "one of --output and --trace"),
    ],
)
def test_wrong_use(arguments: list[str], status: int, words: str, command: Command) -> None:
    paths = {"LULESH": str(LULESH), "MACHINE": str(MACHINE)}
    done = command("model", *(paths.get(argument, argument) for argument in arguments))
    assert done.returncode == status and words in done.stderr
