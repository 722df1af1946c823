# SPDX-License-Identifier: Apache-2.0
"""Wheels of this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("checkpoint", "pintools", "probe", "reducer")


def make_wheel(folder: Path, path: str | None = None) -> Path:
    """Built of a copy: setuptools takes along what it finds in the checkout's own `build`. `path`: PATH meanwhile."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, folder / "source", path=path)
    (made,) = folder.glob("*.whl")
    return made


def pip(python: str | Path, *arguments: str | Path, path: str | None = None) -> None:
    """Must succeed. `path`: PATH, where it is another."""
    # A build of the copy must import the copy.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    if path is not None:
        environment["PATH"] = path
    done = subprocess.run(
        [python, "-m", "pip", "-q", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
