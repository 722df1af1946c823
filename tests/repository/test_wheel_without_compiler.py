# SPDX-License-Identifier: Apache-2.0
"""A wheel on a machine without a compiler: an ordinary user installs it, builds a probe and runs it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from direct_runs import mount
from ordinary_user import as_ordinary_user, home_for_anybody
from programs import build
from wheels import PACKAGES, ROOT, make_wheel, pip

from checkpoint.errors import ToolMissing

pytestmark = pytest.mark.slow

TOOLS = ("cat", "sleep", "true", "unshare")
"""What the doctor tries things with."""


@pytest.fixture(scope="module")
def home(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Beside it the wheel's packages, and the only programs of its PATH; in it a program, `sorter`."""
    wheel = make_wheel(tmp_path_factory.mktemp("wheel"))
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    with home_for_anybody() as folder:
        pip(sys.executable, "install", "--no-deps", "--no-index", "--target", _packages(folder), wheel)
        (folder.parent / "bin").mkdir()
        for tool in TOOLS:
            (folder.parent / "bin" / tool).symlink_to(os.path.realpath(str(shutil.which(tool))))
        (folder / "input.dat").write_bytes(os.urandom(300_000))
        shutil.copy(build("sorter", builds), folder / "sorter")
        (folder / "sorter").chmod(0o755)
        yield folder


def _packages(home: Path) -> Path:
    return home.parent / "packages"


def _hide_checkout() -> None:
    for name in PACKAGES:
        mount("none", str(ROOT / name), "tmpfs", 0)


def _probe(home: Path, *arguments: str, status: int = 0) -> str:
    """What the command prints; on both streams, where it fails as it should."""
    done = as_ordinary_user(
        *arguments, home=home, before=_hide_checkout, packages=_packages(home), path=str(home.parent / "bin")
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + (done.stderr if status else "")


def test_it_builds_and_runs_a_probe(home: Path) -> None:
    needed, better = _probe(home, "doctor").split("better with:")
    assert "\nfail" not in needed and "came compiled" in needed and "compiler" not in needed
    assert "warn  compiler       no as and no gcc or cc" in better
    made = _probe(
        home, "build", "-q", "--json", "-o", "x.probe", "--interval", "10ms", "--max-phases", "2", "--flow",
        "--stdin", "input.dat", "--", "./sorter", "1",
    )  # fmt: skip
    assert json.loads(made)["coverage"] > 0.9
    assert json.loads(_probe(home, "run", "-q", "--json", "x.probe"))["phases"]
    checked = json.loads(_probe(home, "check", "-q", "--json", "x.probe"))
    assert checked["phases"]
    assert not list(home.rglob("native/*"))


def test_a_damaged_restorer_is_named(home: Path) -> None:
    (restorer,) = _packages(home).glob("checkpoint/programs/restorer-*")
    whole = restorer.read_bytes()
    restorer.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        for command in (("doctor",), ("build", "-q", "-o", "y.probe", "--", "./sorter", "1")):
            said = _probe(home, *command, status=ToolMissing.exit_code)
            assert f"{restorer} is damaged" in said
        assert not (home / "y.probe").exists()
    finally:
        restorer.write_bytes(whole)


def test_one_that_is_made_without_a_compiler_brings_none(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, path=str(tmp_path / "nothing"))
    assert wheel.name.endswith("-py3-none-any.whl")
