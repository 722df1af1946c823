# SPDX-License-Identifier: Apache-2.0
"""Order of the sources: first words of modules, lengths of files, sizes of folders, imports that only go down."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import click
import pytest
from small_probe import ROOT

from probe.cli.main import cli

LONGEST = 400
DATA_TABLES: frozenset[str] = frozenset()
"""Files of data alone, which may be longer than LONGEST: by path, each with its reason beside it."""

MOST_MODULES = 16
VERBS = "probe/cli"
"""There every verb has a module of its own, however many there are; only the modules beside them are counted."""

QUESTIONS = {"does", "from", "how", "on", "what", "when", "where", "whether", "which", "who", "whose", "why"}
"""First words after which a reader does not know yet what a module is or does."""

FLOORS = (
    ("probe/interface",),
    ("probe/cli",),
    ("probe/slurm",),
    ("probe/mpi/network", "probe/mpi/probes", "probe/mpi/report"),
    ("probe/mpi",),
    ("probe/mpi/library",),
    ("probe/dataflow",),
    ("probe/simulation",),
    ("probe/models", "probe/ranking", "probe/report", "probe/schedulers"),
    ("probe/scaling",),
    ("probe/inspection", "probe/store"),
    ("probe/emulation/elsewhere",),
    ("probe/emulation",),
    ("probe/emulation/counting",),
    ("probe/candidates", "probe/pipeline"),
    ("probe/pipeline/runs",),
    ("probe/contents", "probe/doctor", "probe/flow", "probe/prediction"),
    ("probe/node", "probe/selection", "probe/tracers"),
    ("probe/applications",),
    ("probe/formats", "probe/ssh"),
    ("probe",),
    ("reducer",),
    ("checkpoint/flow",),
    ("checkpoint/restore",),
    ("checkpoint/capture",),
    ("checkpoint/flat",),
    ("checkpoint/criu", "checkpoint/stubs"),
    ("checkpoint/process",),
    ("checkpoint/state",),
    ("checkpoint/binary",),
    ("checkpoint",),
)
"""Folders, top down. A module imports from its own folder and from floors below, never from its own floor's others."""

INTERFACE = {"probe/__init__.py", "probe/__main__.py"}
"""What users of the package import and start; the other modules of that folder are ground for all of `probe`."""


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.readline(80).endswith(b"python3\n")


@cache
def sources() -> dict[str, ast.Module]:
    """Every Python file by its path below the repository, parsed."""
    folders = ("checkpoint", "data", "docs", "examples", "pintools", "probe", "reducer", "scripts", "tests")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    python = [path for path in paths if path.suffix == ".py" or (not path.suffix and _is_script(path))]
    assert len(python) > 300
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in sorted(python)}


def test_the_first_word_of_a_module_says_what_it_is_or_does() -> None:
    first = {path: (ast.get_docstring(tree) or "").split(maxsplit=1)[:1] for path, tree in sources().items()}
    assert [path for path, word in first.items() if not word] == [], "without a docstring"
    asking = {path for path, word in first.items() if word[0].lower().strip(",:") in QUESTIONS}
    assert asking == set()


def test_no_file_is_long() -> None:
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in sources()}
    assert {path: length for path, length in lengths.items() if length > LONGEST and path not in DATA_TABLES} == {}


def test_no_folder_of_a_package_is_crowded() -> None:
    packages = [p for p in sources() if p.split("/")[0] in ("checkpoint", "probe", "reducer") and "__init__" not in p]
    verbs = {f"{VERBS}/{verb}.py" for verb in cli.list_commands(click.Context(cli))}
    counted = Counter(str(Path(path).parent) for path in packages if path not in verbs)
    assert {folder: count for folder, count in counted.items() if count > MOST_MODULES} == {}


# -- imports


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(tree: ast.Module, modules: dict[str, str]) -> Iterator[str]:
    """Paths of the modules that are imported anywhere in `tree`: inside functions and for types alone, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (modules[alias.name] for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if (found := name if name in modules else node.module or "") in modules:
                    yield modules[found]


@cache
def arrows() -> dict[str, set[str]]:
    """Path of each module of the packages -> paths of what it imports of them."""
    trees = {p: t for p, t in sources().items() if p.startswith(("checkpoint/", "probe/", "reducer/"))}
    modules = {module_of(path): path for path in trees}
    drawn = {path: set(imported(tree, modules)) - {path} for path, tree in trees.items()}
    assert sum(map(len, drawn.values())) > 500
    return drawn


def folder_of(path: str) -> str:
    return "probe/interface" if path in INTERFACE else str(Path(path).parent)


def test_every_folder_has_its_floor() -> None:
    assert Counter(folder for floor in FLOORS for folder in floor) == Counter({folder_of(path) for path in arrows()})


@pytest.mark.parametrize("floor", range(len(FLOORS)), ids=[" ".join(floor) for floor in FLOORS])
def test_imports_go_down(floor: int) -> None:
    below = {folder for lower in FLOORS[floor + 1 :] for folder in lower}
    upward = [
        f"{path} -> {goal}"
        for path, goals in arrows().items()
        for goal in goals
        if folder_of(path) in FLOORS[floor] and folder_of(goal) not in below | {folder_of(path)}
    ]
    assert upward == []


def test_no_circle_of_files() -> None:
    try:
        TopologicalSorter(arrows()).prepare()
    except CycleError as circle:
        pytest.fail(" -> ".join(circle.args[1]))
