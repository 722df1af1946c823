# SPDX-License-Identifier: Apache-2.0
"""scripts/bench reads its command line before it installs anything, and every word has a suite behind it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.accuracy import report
from benchmarks.arguments import SUITES
from interruption import status_when_told_to_end
from small_probe import ROOT
from written_pages import page_with


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The scripts alone, in a fresh checkout: whatever is installed leaves something there."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    # Installing begins with this folder, and ends here, before it could fetch anything.
    (tmp_path / "build").write_text("")
    return tmp_path


def bench(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [checkout / "scripts" / "bench", *arguments], env=environment, capture_output=True, text=True, timeout=60
    )
    assert {entry.name for entry in checkout.iterdir()} == {"scripts", "build"}, "something was installed"
    return done


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["accuracy", "--help"]])
def test_help_is_printed_and_nothing_installed(checkout: Path, arguments: list[str]) -> None:
    done = bench(checkout, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: scripts/bench") and "--programs" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["acuracy"], "acuracy"),
        (["--quik"], "--quik"),
        (["accuracy", "--seeds", "many"], "many"),
        (["--programs", "gzip,gunzip"], "'gunzip'"),
    ],
)
def test_a_wrong_option_ends_before_anything_is_installed(checkout: Path, arguments: list[str], wrong: str) -> None:
    done = bench(checkout, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: scripts/bench" in done.stderr and wrong in done.stderr.splitlines()[-1]


def test_a_right_one_installs(checkout: Path) -> None:
    done = bench(checkout, "--quick", "--programs", "gzip")
    assert done.returncode == 1 and "mkdir" in done.stderr


_IMPORTS = """
import importlib, pkgutil
import benchmarks.__main__ as main
for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
    importlib.import_module(module.name)
print(sorted(name for name in main.SUITES if name))
"""


def test_every_suite_is_there_and_finds_its_modules() -> None:
    scripts = ROOT / "scripts"
    done = subprocess.run(
        [sys.executable, "-c", f"import benchmarks{_IMPORTS}"],
        env={**os.environ, "PYTHONPATH": str(scripts)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == f"{sorted(SUITES)}\n", done.stderr


_ELSEWHERE = """
import sys
from pathlib import Path
import benchmarks.__main__ as main
main.HERE = Path(sys.argv.pop(1))
main.main()
"""


def test_a_signal_ends_what_a_suite_started(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _ELSEWHERE, str(tmp_path), "breadth", "--only", "lua", "--again"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    streams = tmp_path / "breadth" / "here" / "stdout"
    assert status_when_told_to_end(command, environment, streams.exists) == 128 + signal.SIGTERM
    assert not streams.parent.exists()


FAILED = [{"program": "made", "seed": 1, "date": "2026-11-25", "interval_seconds": 0.02, "failure": "made up"}]


def test_tables_take_the_place_of_those_on_the_page(tmp_path: Path) -> None:
    _, once = page_with("accuracy.md", FAILED, report.write, tmp_path)
    assert "| perl |" not in once and "no records" in once and once.count("## How it is measured") == 1


def test_a_page_without_its_marks_is_left_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "accuracy.md"
    page.write_text("text\n<!-- end -->\n")
    with pytest.raises(ValueError, match="marks"):
        report.write(page, FAILED)
    assert page.read_text() == "text\n<!-- end -->\n"
