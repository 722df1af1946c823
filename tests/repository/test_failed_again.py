# SPDX-License-Identifier: Apache-2.0
"""Tests that fail are tried once more by `scripts/test`, alone (scripts/suite.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[2] / "scripts/suite.py"

_TESTS = """
import os
import pytest

def test_sound(): pass

def test_needs_quiet():
    assert "PYTEST_XDIST_WORKER" not in os.environ

def test_broken():
    assert not {broken}

@pytest.fixture(scope="module")
def shared(): assert not {shared}

@pytest.mark.parametrize("user", range(20))
def test_of_many_users(shared, user): pass
"""

_OTHER_FILE = """
def test_broken(): assert False
"""

_MARKERS = "[pytest]\nmarkers =\n  slow: x\n  alone: x\n"


@pytest.mark.parametrize(
    ("broken", "shared", "others", "status"),
    [(False, False, 0, 0), (True, False, 0, 1), (False, True, 0, 1), (False, False, 7, 1), (False, False, 8, 1)],
    ids=["disturbed", "broken", "broken-for-all", "broken-eight", "too-many"],
)
def test_failures_are_tried_again_alone(broken: bool, shared: bool, others: int, status: int, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(_MARKERS)
    (tmp_path / "test_it.py").write_text(_TESTS.format(broken=broken, shared=shared))
    for number in range(others):
        (tmp_path / f"test_other_{number}.py").write_text(_OTHER_FILE)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, SUITE, f"--basetemp={tmp_path / 'base'}"],
        cwd=tmp_path, env=environment | {"PYTHONPATH": str(SUITE.parent)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == status, done.stdout
    again = others < 8
    passed = "suite: passed alone, failed beside others: test_it.py::test_needs_quiet"
    assert (passed in done.stdout) == again
    assert f"suite: {1 + broken + 20 * shared + others} failed; once more, alone" in done.stdout or not again
    assert "once more" not in done.stdout or again
    assert done.stdout.count("suite: passed alone") == again
