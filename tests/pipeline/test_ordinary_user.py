# SPDX-License-Identifier: Apache-2.0
"""A whole probe built and run by an ordinary user, without CRIU, with and without user namespaces."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from ordinary_user import as_ordinary_user, home_for_anybody
from programs import build
from small_probe import command

pytestmark = pytest.mark.slow(minutes=3)


def version_of(path: Path) -> int:
    """Format version of a probe file."""
    return int.from_bytes(path.read_bytes()[8:12], "little")


@pytest.fixture
def home(builds: Path) -> Iterator[Path]:
    """Holds a program, `sorter`, and its input."""
    with home_for_anybody() as folder:
        (folder / "input.dat").write_bytes(os.urandom(300_000))
        shutil.copy(build("sorter", builds), folder / "sorter")
        (folder / "sorter").chmod(0o755)
        yield folder


@pytest.mark.parametrize("namespaces", [True, False])
def test_an_ordinary_user_builds_and_runs_a_probe(namespaces: bool, home: Path) -> None:
    made = as_ordinary_user(
        "build", "-q", "-o", "small.probe", "--interval", "10ms", "--max-phases", "3", "--stdin", "input.dat", "--json",
        "--", "./sorter", "1", home=home, namespaces=namespaces,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    shown = json.loads(made.stdout)
    assert version_of(home / "small.probe") == 2 and shown["coverage"] > 0.9
    assert not any(phase["only_criu"] for phase in shown["phases"])
    assert any(phase["pages"]["kept"] < phase["pages"]["raw"] for phase in shown["phases"])
    ran = as_ordinary_user("run", "small.probe", "--json", home=home, namespaces=namespaces)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["phases"]
    if namespaces:
        refused = command("run", "small.probe", "--restorer", "criu", status=14, cwd=home)
        assert "was captured without CRIU" in refused.stderr
        command("trim", "small.probe", "-o", "less.probe", "--phases", "1", cwd=home)
        assert version_of(home / "less.probe") == 2


def test_what_needs_criu_is_refused_at_once(home: Path) -> None:
    rest = ("-o", "x.probe", "--", "./sorter", "1")
    by_criu = as_ordinary_user("build", "--capture", "criu", *rest, home=home)
    assert by_criu.returncode == 8 and "--capture criu needs root" in by_criu.stderr
    carried = as_ordinary_user("build", "--with-criu", *rest, home=home)
    assert carried.returncode == 1 and "--with-criu: checkpoints that are captured directly" in carried.stderr
