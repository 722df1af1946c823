# SPDX-License-Identifier: Apache-2.0
"""Costs that a command pays when it starts: the libraries that it needs, and no others."""

from __future__ import annotations

import ast
import os
import pkgutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import probe
from probe.cli.main import _MODULES

RECORDED = Path(__file__).parents[1] / "recorded" / "version_0_1" / "turns.probe"
COMPUTING = {"numpy", "scipy", "sklearn"}
FOR_SOME = {"paramiko", "sqlalchemy", "matplotlib", "jinja2"}
"""Libraries that some commands need: a tenth of a second each, and more."""

_COMMAND = """
import sys
from probe.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
sys.stdout.flush()
print("\\n", *sys.modules, file=sys.stderr)
"""


def loaded(*arguments: str, **environment: str) -> set[str]:
    """Libraries, ours aside, that the `probe` command has loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND, *arguments],
        capture_output=True, text=True, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout
    return {name.split(".")[0] for name in done.stderr.splitlines()[-1].split()}


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["completion", "bash"], *([verb, "--help"] for verb in sorted(_MODULES))]
)
def test_help_needs_no_library(arguments: list[str]) -> None:
    assert not loaded(*arguments) & (COMPUTING | FOR_SOME | {"rich"})


@pytest.mark.parametrize("words", ["probe ", "probe run --res", "probe build --", "probe store i"])
def test_completing_needs_no_library(words: str) -> None:
    asked = {"_PROBE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    assert not loaded(**asked) & (COMPUTING | FOR_SOME | {"rich"})


def test_a_probe_is_shown_without_computing() -> None:
    assert not loaded("show", str(RECORDED)) & (COMPUTING | FOR_SOME)
    assert not loaded("show", str(RECORDED), "--json") & (COMPUTING | FOR_SOME | {"rich"})


def test_the_store_is_read_without_computing(tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "store.db")]
    assert not loaded("store", "import", *store, "--node", "n1", str(result(tmp_path))) & COMPUTING
    for arguments in (["history"], ["history", "--format", "csv"], ["store", "calibration"]):
        assert not loaded(*arguments, *store) & (COMPUTING | FOR_SOME - {"sqlalchemy"}), arguments


def result(folder: Path) -> Path:
    """A result of the recorded probe."""
    command = [sys.executable, "-m", "probe", "run", "-q", "--restorer", "direct", "--repeat", "2", "--json", RECORDED]
    done = subprocess.run(command, capture_output=True, check=True)
    path = folder / "turns.json"
    path.write_bytes(done.stdout)
    return path


def test_a_prediction_here_needs_nothing_of_other_commands() -> None:
    assert not loaded("run", "-q", "--restorer", "direct", "--repeat", "2", str(RECORDED)) & FOR_SOME


def seconds(command: Sequence[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


@pytest.mark.timed
@pytest.mark.parametrize("arguments", [["--version"], ["show", "--help"]])
def test_a_command_starts_at_once(arguments: list[str]) -> None:
    """At most 1.5 times as long as Python itself and 60 ms, in runs by turns."""
    plain, ours = [sys.executable, "-c", "pass"], [sys.executable, "-m", "probe", *arguments]
    turns = [(seconds(plain), seconds(ours)) for _ in range(11)]
    python, command = (statistics.median(column) for column in zip(*turns, strict=True))
    # Under other load all times grow, the 60 ms too: they were set where Python takes 20 ms.
    assert command < 1.5 * python + max(0.06, 3 * python)


def test_the_interface_loads_nothing_before_it_is_used() -> None:
    code = "import sys, probe; dir(probe); print(*sys.modules)"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {name.split(".")[0] for name in names} & (COMPUTING | FOR_SOME | {"rich", "click"})
    assert [name for name in names if name.startswith("probe")] == ["probe"]


def test_every_name_is_there_and_no_other() -> None:
    code = "import probe; assert all(getattr(probe, name) for name in probe.__all__); probe.nothing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode and "module 'probe' has no attribute 'nothing'" in done.stderr


def test_type_checkers_and_the_program_find_names_in_the_same_modules() -> None:
    source = ast.parse(Path(str(probe.__file__)).read_text())
    (checked,) = (
        node for node in source.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    assert {alias.name: node.module for node in imports for alias in node.names} == probe._HOMES
    assert sorted(probe._HOMES) == sorted(probe.__all__)


def test_no_module_takes_the_name_of_a_function() -> None:
    """Importing `probe.run` would put the module in the function's place."""
    assert not {module.name for module in pkgutil.iter_modules(probe.__path__)} & set(probe.__all__)
