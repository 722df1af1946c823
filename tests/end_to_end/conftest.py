# SPDX-License-Identifier: Apache-2.0
"""Programs, commands, and one probe that many tests use."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import programs
import pytest
from command import Command

MakeProgram = Callable[..., Path]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> MakeProgram:
    """program(NAME, VARIANT): path of a program of tests/support/programs.py."""
    folder = tmp_path_factory.mktemp("programs")

    def made(name: str, variant: str = "pie") -> Path:
        return programs.build(name, folder, variant)

    return made


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """The `probe` command. Nothing of it may be left when the test ends."""
    made = Command(tmp_path / "command")
    try:
        yield made
        made.nothing_left()
    finally:
        made.kill_all()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may read and write."""
    # Not below pytest's own folders, which are root's alone.
    folder = Path(tempfile.mkdtemp(prefix="probe-open-", dir="/var/tmp"))
    folder.chmod(0o1777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Sample:
    """A finished probe, what it is of, and what the build said of it (JSON)."""

    path: Path
    argv: list[str]
    described: dict[str, Any]


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory, program: MakeProgram) -> Sample:
    """A probe of half a second of n-body."""
    folder = tmp_path_factory.mktemp("sample")
    command = Command(folder)
    argv = [str(program("nbody")), "200"]
    done = command(
        "build", "-o", folder / "nbody.probe", "--interval", "20ms", "--max-phases", "4", "--json",
        "--capture", "criu", "--", *argv,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Sample(folder / "nbody.probe", argv, json.loads(done.stdout))
