# SPDX-License-Identifier: Apache-2.0
"""A machine that promises no more memory than it has (vm.overcommit_memory=2), and a program that took most of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Command
from conftest import MakeProgram

pytestmark = pytest.mark.alone("changes what every process of the machine is promised")

_SETTING = Path("/proc/sys/vm/overcommit_memory")
_SHARE = 0.6
"""Of what is left: for the program, and so too much for a copy beside it."""


@pytest.fixture
def megabytes() -> Iterator[int]:
    """Lets the machine be strict for one test; what a program may ask for besides."""
    before = _SETTING.read_text()
    _SETTING.write_text("2")
    try:
        said = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        limit, committed = (int(said[name].split()[0]) for name in ("CommitLimit", "Committed_AS"))
        yield int((limit - committed) * _SHARE) >> 10
    finally:
        _SETTING.write_text(before)


@pytest.mark.slow
def test_phases_are_reduced_behind_the_run(
    megabytes: int, command: Command, tmp_path: Path, program: MakeProgram
) -> None:
    options = ("--interval", "20ms", "--max-phases", "1", "--budget", "1", "--capture", "direct")
    argv = (program("crowd"), "400", "block", "5000", str(megabytes))
    done = command("build", "--json", *options, "-o", tmp_path / "out.probe", "--", *argv)
    assert done.returncode == 0, done.stderr
    built = json.loads(done.stdout)
    assert not [warning for warning in built["warnings"] if "kept whole" in warning]
    assert all(phase["pages"]["kept"] < phase["pages"]["raw"] for phase in built["phases"])
    result = command.json("run", "--repeat", "1", tmp_path / "out.probe")
    assert [phase["status"] for phase in result["phases"]] == ["ok"]
