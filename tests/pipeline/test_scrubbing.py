# SPDX-License-Identifier: Apache-2.0
"""`--scrub-env`: a variable that the program never had is nowhere in its profile, work folder and probe."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from programs import build

from checkpoint.errors import ProbeError
from probe.pipeline.runs.environment import scrubbed
from reducer.unpack import open_probe

ROOT = Path(__file__).parents[2]
SECONDS = 180.0
ENVIRONMENT = {"PATH": "/bin", "LC_ALL": "C", "API_TOKEN": "a", "my_token": "b", "OMP_NUM_THREADS": "1", "EDITOR": "ed"}


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        ((), set(ENVIRONMENT)),
        (("*TOKEN*",), set(ENVIRONMENT) - {"API_TOKEN", "my_token"}),
        (("*token",), set(ENVIRONMENT) - {"API_TOKEN", "my_token"}),
        (("TOKEN",), set(ENVIRONMENT)),
        (("all",), {"PATH", "LC_ALL", "OMP_NUM_THREADS"}),
        (("all", "omp_*"), {"PATH", "LC_ALL"}),
        (("API_TOKEN", "EDITOR"), {"PATH", "LC_ALL", "my_token", "OMP_NUM_THREADS"}),
    ],
)
def test_what_is_taken_out(patterns: tuple[str, ...], left: set[str]) -> None:
    assert scrubbed(ENVIRONMENT, patterns) == {name: ENVIRONMENT[name] for name in left}


@pytest.mark.parametrize("pattern", ["", "TOKEN=secret"])
def test_what_is_no_name(pattern: str) -> None:
    with pytest.raises(ProbeError, match="not the name of a variable"):
        scrubbed(ENVIRONMENT, [pattern])


def everything_in(probe: Path, work: Path) -> bytes:
    """All bytes of a probe, members inflated, and of a work folder with its profile unpacked."""
    pieces: list[bytes] = [probe.read_bytes()[: 1 << 20]]
    with open_probe(probe) as archive:
        for name in archive.members:
            archive.copy_member(name, pieces.append)
    pieces += [path.read_bytes() for path in work.rglob("*") if path.is_file() and path.suffix != ".npz"]
    import numpy as np

    with np.load(work / "profile.npz") as stored:
        pieces.append(stored["header"].tobytes())
    return b"".join(pieces)


@pytest.mark.slow
def test_a_secret_stays_out(builds: Path, tmp_path: Path) -> None:
    secret, seen = secrets.token_hex(24), secrets.token_hex(24)
    probe, work = tmp_path / "n.probe", tmp_path / "work"
    arguments = ["-q", "-o", str(probe), "--work", str(work), "--interval", "10ms", "--max-phases", "2"]
    arguments += ["--warmup", "0", "--reduce", "none", "--scrub-env", "*TOKEN*"]
    done = subprocess.run(
        [sys.executable, "-m", "probe", "build", *arguments, "--", str(build("nbody", builds)), "60"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MY_TOKEN": secret, "PLAIN": seen},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = everything_in(probe, work)
    # Without the second this would not have looked where environments are.
    assert secret.encode() not in found and found.count(seen.encode()) > 2
