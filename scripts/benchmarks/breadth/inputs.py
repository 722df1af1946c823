# SPDX-License-Identifier: Apache-2.0
"""A folder for one program: its inputs, its home, and nothing that outlives it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.breadth.programs import Program
from checkpoint.paths import HOME_VARIABLE, cache_dir, data_dir

DATA = Path(__file__).resolve().parents[3] / "data"
KEPT, MAKER = DATA / "breadth", DATA / "make_breadth_data.py"
PREPARING_SECONDS = 300


@dataclass(frozen=True)
class Place:
    """Folders of one program. `folder`: where commands run; `prepared`: what is in it before each of them."""

    base: Path
    program: Program

    @property
    def folder(self) -> Path:
        return self.base / "run"

    @property
    def prepared(self) -> Path:
        return self.base / "prepared"

    @property
    def temporary(self) -> Path:
        return self.base / "temporary"

    @property
    def environment(self) -> dict[str, str]:
        """A person's, with a home of its own; probe's files stay where this user has them."""
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/games",
            "HOME": str(self.base / "home"),
            "TMPDIR": str(self.temporary),
            "LANG": "C.UTF-8",
            HOME_VARIABLE: os.environ.get(HOME_VARIABLE) or str(self.base / "probe-home"),
            **self.program.environment,
        }

    def fresh(self) -> None:
        """Make the folder what it was before the first command: what a command wrote is gone."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.prepared, self.folder, symlinks=True)


@contextmanager
def place(program: Program, base: Path, made: Path) -> Iterator[Place]:
    """A place with the program's inputs; removed at the end. Raises subprocess.SubprocessError where making fails."""
    shutil.rmtree(base, ignore_errors=True)
    found = Place(base, program)
    try:
        for folder in (found.prepared, found.temporary, base / "home", base / "probe-home"):
            folder.mkdir(parents=True)
        for name, goal in (("data", data_dir()), ("cache", cache_dir())):
            goal.mkdir(parents=True, exist_ok=True)
            (base / "probe-home" / name).symlink_to(goal)
        for name in program.inputs.split():
            shutil.copy(_input(name, made), found.prepared / name)
        found.folder.mkdir()
        _prepare(found)
        found.fresh()
        yield found
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _input(name: str, made: Path) -> Path:
    """The file of that name: kept in data/breadth, or made once."""
    if (KEPT / name).exists():
        return KEPT / name
    target = made / name
    if not target.exists() or target.stat().st_mtime < MAKER.stat().st_mtime:
        made.mkdir(parents=True, exist_ok=True)
        partial = made / f"partial-{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        command = [sys.executable, str(MAKER), str(partial), name]
        subprocess.run(command, check=True, timeout=PREPARING_SECONDS)
        (partial / name).rename(target)
        shutil.rmtree(partial)
    return target


def _prepare(found: Place) -> None:
    """Run the program's line of preparation, in the place where all its commands run: files may hold paths."""
    if not found.program.prepare:
        return
    found.fresh()
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", found.program.prepare],
        cwd=found.folder, env=found.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="replace", timeout=PREPARING_SECONDS, start_new_session=True,
    )  # fmt: skip
    if done.returncode:
        raise ValueError(f"preparing failed: {done.stderr.strip()[-300:]}")
    shutil.rmtree(found.prepared)
    shutil.copytree(found.folder, found.prepared, symlinks=True)
