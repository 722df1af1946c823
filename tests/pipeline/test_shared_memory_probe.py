# SPDX-License-Identifier: Apache-2.0
"""Probes of programs with shared memory of their own, and pending signals, built and run by an ordinary user."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from ordinary_user import as_ordinary_user, home_for_anybody
from programs import build

pytestmark = pytest.mark.slow(minutes=3)

NOTES = {
    "anonymous": "of shared memory: it is kept whole",
    "memfd": "of shared memory: it is kept whole",
    "deleted": "of shared memory: it is kept whole",
    "segment": "of shared memory: it is kept whole",
    "file": "of shared memory: it is kept whole",
    "signals": "signals are pending where phases start, and are sent again: 1, 10, 28, 35, 36",
}


@pytest.mark.parametrize("kind", NOTES)
def test_an_ordinary_user_builds_and_runs_it(kind: str, builds: Path) -> None:
    """The program checks in every millisecond that all is as it was, and ends where it is not."""
    with home_for_anybody() as home:
        shutil.copy(build("shares", builds), home / "shares")
        (home / "shares").chmod(0o755)
        made = as_ordinary_user(
            "build", "-q", "-o", "small.probe", "--interval", "10ms", "--max-phases", "2", "--runs", "0", "--json",
            "--", "./shares", kind, "600", home=home,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        shown = json.loads(made.stdout)
        assert [note for note in shown["notes"] if NOTES[kind] in note], shown["notes"]
        assert not any(phase["only_criu"] for phase in shown["phases"])
        ran = as_ordinary_user("run", "small.probe", "--json", home=home)
        assert ran.returncode == 0, ran.stderr
        phases = json.loads(ran.stdout)["phases"]
        assert phases and all(phase["status"] == "ok" for phase in phases)
        printed = as_ordinary_user("show", "small.probe", home=home)
        assert NOTES[kind] in " ".join(printed.stdout.split())
