# SPDX-License-Identifier: Apache-2.0
"""One small real probe, built once for all tests that ask for it, and the `probe` command."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from programs import build
from short_budget import in_short

ROOT = Path(__file__).parents[2]
SECONDS = 120.0
_CHANGING = ("PYTEST_", "CONDOR_")

_made: dict[Path, SmallProbe] = {}


@dataclass(frozen=True)
class SmallProbe:
    """A probe of several phases; its program has the file `stdin` open. `again` rebuilds it in moments."""

    path: Path
    stdin: Path
    arguments: tuple[str, ...]

    def again(self, output: Path, *options: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Pack the same run once more, with other options of packing."""
        return command(
            "build",
            "-q",
            "--budget",
            "0",
            "-o",
            str(output),
            *options,
            "--resume",
            *self.arguments,
            status=status,
            cwd=self.stdin.parent,
        )


def command(*arguments: str | Path, status: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the `probe` command; it must end with `status`."""
    done = subprocess.run(
        [sys.executable, "-m", "probe", *in_short(arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=cwd,
        # Without what pytest sets anew for each test, and HTCondor's library when it is imported: a build that is
        # resumed must find the same environment.
        env={**_environment(building=arguments[0] == "build"), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


_PATH = os.environ["PATH"]
"""As it is before any fixture puts a cluster's commands there."""


def _environment(building: bool) -> dict[str, str]:
    changing = (*_CHANGING, "PROBE_STORE", "SLURM_") if building else _CHANGING
    kept = {k: v for k, v in os.environ.items() if not k.startswith(changing)}
    return {**kept, "PATH": _PATH} if building else kept


def small_probe(builds: Path) -> SmallProbe:
    """The probe, beside the session's folder `builds`."""
    if builds not in _made:
        # Not below the programs, whose folder some tests open to everybody: modes are part of what a probe needs.
        folder = builds.with_name(f"{builds.name}-small-probe")
        folder.mkdir()
        stdin = folder / "input.dat"
        stdin.write_bytes(os.urandom(300_000))
        stdin.chmod(0o640)
        arguments = ("--work", str(folder / "work"), "--interval", "10ms", "--max-phases", "4", "--stdin", str(stdin))
        # With it both ways of capturing and restoring are tried: what builds without the option takes the other.
        arguments += ("--capture", "criu", "--runs", "3", "--", str(build("sorter", builds)), "1")
        path = folder / "small.probe"
        command("build", "-q", "--budget", "0", "-o", path, *arguments, cwd=folder)
        _made[builds] = SmallProbe(path, stdin, arguments)
    return _made[builds]
