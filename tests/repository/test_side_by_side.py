# SPDX-License-Identifier: Apache-2.0
"""Distribution of tests by `scripts/test` (scripts/fast_first.py), in three files that write down when they ran."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_FILE = """
import os, time
import pytest

@pytest.fixture(autouse=True)
def written_down(request):
    begun = time.monotonic_ns()
    yield
    time.sleep(0.05)
    line = f"{request.node.name} {os.environ.get('PYTEST_XDIST_WORKER', '-')} {begun} {time.monotonic_ns()}\\n"
    with open("NOTES", "a") as file:
        file.write(line)

@pytest.mark.alone("it is the only one")
def test_alone_NAME(): pass

@pytest.mark.slow(minutes=MINUTES)
def test_slow_NAME(): pass

def test_fast_NAME(): assert "NAME" != "BAD"

def test_next_NAME(): CRASH
"""


@dataclass(frozen=True)
class Ran:
    test: str
    worker: str
    begun: int
    ended: int


def suite(folder: Path, *arguments: str, bad: str = "", crash: str = "") -> tuple[list[Ran], int, str]:
    """What ran in the order of its beginning, pytest's exit status, and its last line."""
    markers = "\n".join(f"  {name}: x" for name in ("slow", "alone"))
    (folder / "pytest.ini").write_text(f"[pytest]\naddopts = -p no:cacheprovider\nmarkers =\n{markers}\n")
    for minutes, name in enumerate("abc"):
        text = _FILE.replace("NOTES", str(folder / "notes")).replace("MINUTES", str(minutes)).replace("BAD", bad)
        ending = f"os._exit(3) if 'PYTEST_XDIST_WORKER' in os.environ and '{name}' == '{crash}' else None"
        (folder / f"test_{name}.py").write_text(text.replace("CRASH", ending).replace("NAME", name))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(ROOT / "scripts"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plugins = ["-p", "xdist.plugin", "-p", "fast_first"]
    command = [sys.executable, "-m", "pytest", *plugins, f"--basetemp={folder / 'base'}", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    notes = folder / "notes"
    lines = notes.read_text().splitlines() if notes.exists() else []
    ran = [Ran(test, worker, int(begun), int(ended)) for test, worker, begun, ended in map(str.split, lines)]
    return sorted(ran, key=lambda one: one.begun), done.returncode, done.stdout.splitlines()[-1]


def kinds(ran: list[Ran]) -> list[str]:
    return [one.test.split("_")[1] for one in ran]


def test_what_runs_alone_comes_last_and_overlaps_with_nothing(tmp_path: Path) -> None:
    ran, status, said = suite(tmp_path, "-n", "2")
    assert status == 0 and " 12 passed in " in said
    assert len({one.test for one in ran}) == 12 and len({one.worker for one in ran}) == 2
    assert kinds(ran)[-3:] == ["alone"] * 3
    alone = ran[-3:]
    assert len({one.worker for one in alone}) == 1
    assert max(one.ended for one in ran[:-3]) <= alone[0].begun
    slow = [one.test for one in ran if "slow" in one.test]
    assert slow[0] == "test_slow_c", "the longest file begins first"


def test_in_one_process_the_order_is_the_same(tmp_path: Path) -> None:
    ran, status, said = suite(tmp_path, "-n", "0")
    assert status == 0 and " 12 passed in " in said
    assert kinds(ran) == ["fast", "next"] * 3 + ["slow"] * 3 + ["alone"] * 3


@pytest.mark.parametrize(("bad", "crash"), [("a", ""), ("", "b")])
def test_a_failure_anywhere_fails_the_whole(tmp_path: Path, bad: str, crash: str) -> None:
    """Of a test, or of a worker that dies: another one takes over what it had left."""
    ran, status, said = suite(tmp_path, "-n", "2", bad=bad, crash=crash)
    assert status == 1 and " 1 failed, 11 passed in " in said
    assert len({one.test for one in ran}) == (12 if bad else 11)


def test_arguments_choose_tests(tmp_path: Path) -> None:
    ran, status, said = suite(tmp_path, "-n", "2", "-k", "alone_b or fast_c")
    assert status == 0 and " 2 passed in " in said.replace(", 10 deselected", "")
    assert [one.test for one in ran] == ["test_fast_c", "test_alone_b"]
    assert suite(tmp_path, "-n", "2", "-k", "nothing_of_this")[1] == pytest.ExitCode.NO_TESTS_COLLECTED
