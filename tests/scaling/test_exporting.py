# SPDX-License-Identifier: Apache-2.0
"""`probe scale export`: Extra-P's text format, read again by the grammar of its documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_runs import computing, made_runs, mpi

from probe.cli.main import cli
from probe.store.opening import Store, open_store
from probe.store.runs import store_runs

SIZES = (1, 2, 4, 8, 16)
NUMBER = re.compile(r"[-+]?\d+(\.\d*)?")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    (tmp_path / "fusion.toml").write_text('name = "fusion"\n[kernel.gem]\nwork = "1"\n[kernel.ets]\nwork = "1"\n')
    with open_store(str(tmp_path / "runs.db")) as opened:
        store_runs(opened, [*made_runs(SIZES, 2, work=1e9), *made_runs(SIZES, kernel="ets", node_type="sky lake/2")])
        yield opened


def exported(tmp_path: Path, *words: str) -> str:
    given = ["scale", "export", str(tmp_path / "fusion.toml"), "--store", str(tmp_path / "runs.db"), *words]
    done = CliRunner().invoke(cli, given)
    assert done.exit_code == 0, done.output
    return done.stdout


def parsed(text: str) -> tuple[list[str], list[float], dict[str, list[list[float]]]]:
    """(parameters, points, data of each region in the order of the points). Every line is one that the grammar has."""
    parameters: list[str] = []
    points: list[float] = []
    regions: dict[str, list[list[float]]] = {}
    for line in text.splitlines():
        tag, _, rest = line.partition(" ")
        if tag == "#":
            continue
        assert tag in {"PARAMETER", "POINTS", "METRIC", "REGION", "DATA"}
        if tag == "PARAMETER":
            parameters += rest.split()
        elif tag == "POINTS":
            points += [float(point.strip("()")) for point in rest.split()]
        elif tag == "REGION":
            regions[rest] = []
        elif tag == "DATA":
            assert all(NUMBER.fullmatch(word) for word in rest.split())
            regions[[*regions][-1]].append([float(word) for word in rest.split()])
    return parameters, points, regions


def test_one_kernel_to_standard_output(store: Store, tmp_path: Path) -> None:
    """All runs of a size in one line; times of a unit of work, in numbers without exponents."""
    parameters, points, regions = parsed(exported(tmp_path, "--kernel", "gem", "--format", "extrap"))
    assert parameters == ["cores"] and points == list(SIZES)
    assert [*regions] == ["gem->computing", "gem->mpi"]
    for part, curve in (("computing", computing), ("mpi", mpi)):
        found = regions[f"gem->{part}"]
        assert [len(values) for values in found] == ([2] * 5 if part == "computing" else [1, 2, 2, 2, 2])
        assert [values[0] for values in found] == pytest.approx([curve(x) for x in SIZES])


def test_a_file_for_each_kernel_and_type(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "extrap"
    said = exported(tmp_path, "-o", str(folder))
    assert said.split() == [str(folder / "gem-haswell.txt"), str(folder / "ets-sky-lake-2.txt")]
    assert [*parsed((folder / "ets-sky-lake-2.txt").read_text())[2]] == ["ets->computing", "ets->mpi"]


def test_several_models_need_a_folder(store: Store, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cli, ["scale", "export", str(tmp_path / "fusion.toml"), "--store", str(tmp_path / "runs.db")]
    )
    assert done.exit_code == 2 and "give -o for a folder" in done.output
