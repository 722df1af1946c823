# SPDX-License-Identifier: Apache-2.0
"""The `probe` command run by an ordinary user: no capability, no new privileges."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from direct_runs import NOBODY, mount, refuse_calls
from short_budget import in_short

ROOT = Path(__file__).parents[2]
SECONDS = 300.0
_NEW_MOUNTS, _PRIVATE, _BIND = 0x20000, 1 << 18 | 1 << 14, 1 << 12
_NO_NEW_PRIVILEGES = 38
_UNSHARE = 272

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def home_for_anybody() -> Iterator[Path]:
    """A folder of that user's own. Not below pytest's, which every session that begins closes to others."""
    with tempfile.TemporaryDirectory(prefix="probe-user-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        home = folder / "home"
        home.mkdir()
        os.chown(home, NOBODY, NOBODY)
        yield home


def as_ordinary_user(
    *arguments: str | Path,
    home: Path,
    namespaces: bool = True,
    before: Callable[[], None] = lambda: None,
    packages: Path = ROOT,
    path: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """`probe ARGUMENTS` in `home`. `namespaces`: whether the user may make any; `before` is called there as root.
    `packages`: where this project's packages are; `path`: PATH there."""
    interpreter = Path(os.path.realpath(sys.executable))
    hidden = next((p for p in reversed(interpreter.parents) if not p.stat().st_mode & 1), None)
    shown = [Path(sys.base_prefix), *([Path(sys.prefix)] if hidden and Path(sys.prefix).is_relative_to(hidden) else [])]
    keep = home.parent / "interpreter"

    def become() -> None:
        assert _libc.unshare(_NEW_MOUNTS) == 0
        mount(None, "/", None, _PRIVATE)
        if hidden is not None:
            _open_up(hidden, shown, keep)
        before()
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        if not namespaces:
            refuse_calls(_UNSHARE)

    environment = {
        "PATH": os.environ["PATH"] if path is None else path, "HOME": str(home), "PROBE_HOME": str(home / "data"),
        "TMPDIR": str(home), "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "probe", *in_short(arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=SECONDS, cwd=home, env=environment, preexec_fn=become,
    )  # fmt: skip


def _open_up(hidden: Path, shown: list[Path], keep: Path) -> None:
    """In a mount namespace of one's own: show nothing of the folder `hidden` but these in it, and let everybody in."""
    shutil.rmtree(keep, ignore_errors=True)
    for number, path in enumerate(shown):
        (keep / str(number)).mkdir(parents=True)
        mount(str(path), str(keep / str(number)), None, _BIND)
    mount("none", str(hidden), "tmpfs", 0, "mode=0755")
    for number, path in enumerate(shown):
        path.mkdir(parents=True, exist_ok=True)
        mount(str(keep / str(number)), str(path), None, _BIND)
