# SPDX-License-Identifier: Apache-2.0
"""`probe model` and `probe simulate`, as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aspen_models import LULESH, MACHINE, written
from command import Command
from durango_files import LISTING_7, rounds_in


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


def test_rounds_by_a_file_and_by_options(command: Command, tmp_path: Path) -> None:
    """Listings 6 and 7 with fewer servers; what is on the command line takes the file's place."""
    rounds = rounds_in(tmp_path, network=LISTING_7.replace('"4096"', '"16"'))
    done = command("simulate", rounds, "--requests", "8", "--json", "--picture", tmp_path / "load.svg",
                   "--export", "codes", "-o", tmp_path / "codes.conf")  # fmt: skip
    said = json.loads(done.stdout)
    assert [one["socket"] for one in said["rounds"]] == ["amd_830", "amd_HD5770"] and done.stderr == ""
    assert said["messages"] == 2 * 2 * 16 * 8 and said["network"] == "simple:16"
    assert said["seconds"] == pytest.approx(
        sum(one["network_seconds"] + one["computing_seconds"] for one in said["rounds"])
    )
    assert said["written"] == [str(tmp_path / "load.svg"), str(tmp_path / "codes.conf")]
    assert said["notes"] == [f"{tmp_path / 'codes.conf'}: untested: CODES has not read this file"]
    printed = command("simulate", rounds, "--network", "torus:2x2", "--routes-only").stdout
    assert "128 pings of 1024 bytes, random traffic" in printed and "4 ranks on torus:2x2" in printed
    options = [
        "--machine",
        MACHINE,
        "--socket",
        "cpu,card",
        "--rounds",
        "3",
        "--network",
        "torus:2x2",
        "--requests",
        "4",
    ]
    path = written(tmp_path, "model m { kernel main { execute [64] { flops [3e9] } } }")
    done = command("simulate", path, *options)
    assert "computing on card 2.000 s" in done.stdout and done.stdout.count("computing on cpu 16.000 s") == 2
    assert "rounds: done" in done.stderr
    assert command("simulate", path, *options, "--quiet").stderr == ""


def test_a_trace_is_simulated(command: Command, tmp_path: Path) -> None:
    command("model", "generate", LULESH, "--grid", "2x2x2", "--trace", tmp_path / "trace")
    asked = ["--network", "torus:2x2x2", "--json"]
    by_folder = json.loads(command("simulate", tmp_path / "trace", *asked).stdout)
    by_index = json.loads(command("simulate", tmp_path / "trace" / "trace.txt", *asked).stdout)
    by_model = json.loads(command("simulate", LULESH, "--grid", "2x2x2", *asked).stdout)
    for said in (by_folder, by_index, by_model):
        del said["simulation"], said["model"]
    assert by_folder == by_index == by_model


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["LULESH"], 2, "Missing option '--network'"),
        (["LULESH", "--network", "torus:4", "--requests", "3"], 2, "--requests is of direct mode"),
        (["LULESH", "--network", "torus:4", "--export", "codes"], 2, "--export and --output are given together"),
        (["LULESH", "--network", "torus:4", "--picture", "load.pdf"], 2, ".png or .svg is wanted"),
        (["trace.txt", "--network", "torus:4", "--rounds", "2"], 2, "--rounds needs a model"),
        (["absent.txt", "--network", "torus:4"], 10, "it should name a file for each rank"),
        (["absent.conf"], 10, "No such file"),
    ],
)
def test_wrong_use_of_simulate(arguments: list[str], status: int, words: str, command: Command) -> None:
    done = command("simulate", *(str(LULESH) if argument == "LULESH" else argument for argument in arguments))
    assert done.returncode == status and words in done.stderr


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
