# SPDX-License-Identifier: Apache-2.0
"""Every command line of the documentation is run, or docs/development.md says why it is not."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import short_budget
from aspen_models import LULESH, MACHINE
from documentation import ROOT, pages, rows, section
from durango_files import LISTING_7, rounds_in
from programs import build
from results import result
from small_probe import small_probe

SECONDS = 300.0
_RAN: set[str] = set()
"""Command lines that have run in this session's folder."""


def lines() -> list[tuple[str, str]]:
    """(page, command line) of all blocks of shell code, comments gone, in the order of the pages' reader."""
    found = []
    for page in pages():
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.S):
            joined = block.replace("\\\n", " ")
            found += [
                (str(page.relative_to(ROOT)), re.sub(r"\s+#.*", "", line).strip()) for line in joined.splitlines()
            ]
    return [(page, line) for page, line in found if line]


@cache
def reasons() -> dict[str, str]:
    """Why command lines like these are not run: pattern, as in a shell, and reason."""
    listed = rows(section("docs/development.md", "Commands that no test runs"))
    return {re.sub(r"^`|`$", "", cells[0]).replace("\\|", "|"): cells[1] for cells in listed}


def not_run(line: str) -> str | None:
    return next((pattern for pattern in reasons() if fnmatch.fnmatchcase(line, pattern)), None)


def test_reasons_are_for_something() -> None:
    used = {not_run(line) for _, line in lines()}
    assert used - {None} == reasons().keys()
    assert all(reasons().values())
    assert sum(not_run(line) is None for _, line in lines()) > 50


def test_other_tests_that_reasons_name_are_there() -> None:
    for reason in reasons().values():
        for name in re.findall(r"`(tests/[^`]+)`", reason):
            assert (ROOT / name).exists(), name


@pytest.fixture(scope="module")
def sandbox(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the pages' names exist: programs that end soon, probes, a store with two nodes."""
    folder = tmp_path_factory.mktemp("sandbox")
    probe = small_probe(builds)
    (folder / "bin").mkdir()
    (folder / "tmp").mkdir()
    (folder / "data" / "programs" / "bin").mkdir(parents=True)
    (folder / "examples").symlink_to(ROOT / "examples")
    _script(folder / "bin" / "probe", f'exec {sys.executable} {short_budget.__file__} "$@"')
    for name in (folder / "solver", folder / "bin" / "hmmsearch"):
        _script(name, f"exec {build('nbody', builds)} 150")
    shutil.copy(build("nbody", builds), folder)
    _script(folder / "job.sh", "seq 3 > /dev/null\n./solver")
    # Traced alone, also by Valgrind, which takes tens of times as long.
    _script(folder / "data" / "programs" / "bin" / "sorter", f"exec {build('nbody', builds)} 60")
    # The tutorial's own program is real, its input is shorter.
    _script(folder / "bin" / "seq", "exec /usr/bin/seq 1500000")
    for name in ("hmmsearch", "solver", "sorter", "job"):
        shutil.copy(probe.path, folder / f"{name}.probe")
    (folder / "input.dat").write_text("1 2 3\n")
    shutil.copy(LULESH, folder)
    shutil.copy(MACHINE, folder / "rig.aspen")
    rounds_in(folder, network=LISTING_7.replace('"4096"', '"64"'))
    (folder / "pool.json").write_text(_pool())
    (folder / "request.json").write_text(
        json.dumps({"pod": {"metadata": {"labels": {"probe": "solver"}}}, "nodenames": ["n17", "n18"]})
    )
    (folder / "result.json").write_text(json.dumps([result(800.0, node="n17"), result(900.0, node="n18")]))
    run("probe store import result.json --cluster north", folder)
    others = [result(700.0, node="n2"), result(2.0, probe="other", node="node1")]
    (folder / "others.json").write_text(json.dumps(others))
    run("probe store import others.json", folder)
    run("probe store cluster north --home --local-network 1G --inbound 1G --outbound 1G --latency 1ms", folder)
    (folder / "more.json").write_text(json.dumps([result(700.0 + number, node="n17") for number in range(14)]))
    run("probe store import more.json", folder)
    # What other nodes would have sent.
    run("probe profile -o sort.usage -- sort input.dat", folder)
    run("probe emulate sort.usage --json > emulated.json", folder)
    return folder


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def _pool() -> str:
    page = (ROOT / "docs" / "ranking.md").read_text()
    found = re.search(r"```json\n(.*?)```", page, re.S)
    assert found, "docs/ranking.md shows a pool file"
    pool = json.loads(found[1])
    # Where no probe is named there is none whose times could be in the store.
    for cluster in pool["clusters"]:
        for node in cluster["nodes"]:
            node.setdefault("seconds", 10.0)
    return json.dumps(pool)


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "CONDOR_"))}
    done = subprocess.run(
        ["bash", "-c", line],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, cwd=folder,
        env={
            **kept,
            "PATH": f"{folder / 'bin'}:{kept['PATH']}",
            "PYTHONPATH": f"{ROOT}:{kept.get('PYTHONPATH', '')}",
            "PROBE_STORE": str(folder / "store.db"),
            "MPLCONFIGDIR": str(folder / "tmp"),
        },
    )  # fmt: skip
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done


PAGES = list(dict.fromkeys(page for page, line in lines() if not_run(line) is None))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_command_lines_of_a_page_run(page: str, sandbox: Path) -> None:
    """In their order, each once in a session: later ones use what earlier ones made."""
    for line in [line for where, line in lines() if where == page and line not in _RAN and not_run(line) is None]:
        run(line, sandbox)
        _RAN.add(line)
