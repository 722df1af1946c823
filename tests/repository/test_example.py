# SPDX-License-Identifier: Apache-2.0
"""The example drives the API over two programs and several nodes: real probes, real SSH servers."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from candidate_runs import assert_nothing_left
from PIL import Image
from small_probe import small_probe
from sshd import GUEST, machine

from probe.inspection.trimming import trim

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "compare_nodes.py"
SECONDS = 120.0


def environment() -> list[str]:
    return ["env", f"PYTHONPATH={ROOT}:{os.environ.get('PYTHONPATH', '')}"]


@pytest.mark.slow
def test_one_table_and_one_figure(builds: Path, tmp_path: Path) -> None:
    small = small_probe(builds)
    whole, part = tmp_path / "sorter.probe", tmp_path / "part.probe"
    shutil.copy(small.path, whole)
    trim(whole, part, coverage=0.9)
    trim(whole, tmp_path / "tiny.probe", phases=1)
    probes = ["sorter.probe", "part.probe", "tiny.probe"]
    with machine(tmp_path / "machine") as nodes:
        good = nodes.serve().address(GUEST).text
        arguments = ["--here", "--on", good, "--on", "guest@127.0.0.1:9", "--repeat", "2", "--identity", nodes.identity]
        arguments += ["--known-hosts", nodes.known_hosts, "--ssh-config", "/dev/null"]
        done = subprocess.run(
            nodes.command([*environment(), sys.executable, EXAMPLE, *arguments, *probes]),
            capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path,
        )  # fmt: skip
        assert_nothing_left(nodes)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "nodes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["program"], r["node"]) for r in rows] == [
        (program, node) for program in ("sorter", "part", "tiny") for node in ("here", good, "guest@127.0.0.1:9")
    ]
    for row in rows:
        if row["node"] == "guest@127.0.0.1:9":
            assert not row["seconds"] and row["reason"]
        elif row["program"] != "tiny":
            assert not row["reason"], row["reason"]
            assert float(row["low"]) <= float(row["seconds"]) <= float(row["high"])
            assert 0.2 < float(row["speed"]) < 5
        else:
            assert not row["seconds"] and "of the run" in row["reason"]
    said = done.stdout.splitlines()
    assert good in said[0] and said[1].startswith("sorter") and "none" in said[1]
    assert any(line.startswith("sorter on guest@127.0.0.1:9: ") for line in said)
    with Image.open(tmp_path / "nodes.png") as picture:
        assert picture.size[0] > 500 and len(picture.convert("RGB").getcolors(1 << 20)) > 20


def test_it_says_what_it_needs(tmp_path: Path) -> None:
    done = subprocess.run(
        [*environment(), sys.executable, EXAMPLE, "some.probe"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2 and "nothing to compare" in done.stderr and not list(tmp_path.iterdir())
