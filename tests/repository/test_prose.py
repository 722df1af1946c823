# SPDX-License-Identifier: Apache-2.0
"""The documentation can be read: short lines, short sentences, small table cells, one row for each command."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from documentation import ROOT, rows, section, text_of

COLUMNS = 120

MOST_WORDS = 30
"""Words of a sentence; a colon ends one, a semicolon does not."""

MOST_CELL_WORDS = 35
"""Words of a table cell, of any page."""

MOST_SHORT_CELL_WORDS = 20
"""Words of a table cell on the pages of SMALL_CELLS."""

SHORT_SENTENCES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "docs/accuracy.md",
    "docs/breadth.md",
    "docs/candidates.md",
    "docs/cli.md",
    "docs/comparison.md",
    "docs/development.md",
    "docs/estimators.md",
    "docs/how-it-works.md",
    "docs/json.md",
    "docs/limits.md",
    "docs/phase-image.md",
    "docs/probe-format.md",
    "docs/profile-format.md",
    "docs/ranking.md",
    "docs/report.md",
    "docs/scaling.md",
    "docs/schedulers.md",
    "docs/slurm.md",
    "docs/ssh.md",
    "docs/store.md",
    "docs/troubleshooting.md",
    "docs/tutorial.md",
    "docs/where-to-add.md",
)
"""Pages whose every sentence is short. A page is added when it is, and never taken out."""

SMALL_CELLS = (
    "CONTRIBUTING.md",
    "README.md",
    "docs/candidates.md",
    "docs/cli.md",
    "docs/comparison.md",
    "docs/development.md",
    "docs/estimators.md",
    "docs/how-it-works.md",
    "docs/limits.md",
    "docs/node-protocol.md",
    "docs/python-api.md",
    "docs/report.md",
    "docs/schedulers.md",
    "docs/slurm.md",
    "docs/troubleshooting.md",
    "docs/tutorial.md",
    "docs/where-to-add.md",
)
"""Likewise, pages whose every table cell is small."""

PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")))

README_LINES = 116

_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s")


def prose(text: str) -> Iterator[str]:
    """Lines that are neither code, table, heading nor picture; an empty one where a paragraph or an item ends."""
    inside = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        code = inside or line.lstrip().startswith("```") or re.match(r" {4}(?! *[-*] )\S", line) is not None
        if code or line.startswith(("|", "#", "![")):
            yield ""
        else:
            if _ITEM.match(line):
                yield ""
            yield line


def sentences(text: str) -> Iterator[str]:
    """Sentences of a page, each on one line, the addresses of links left out."""
    for paragraph in "\n".join(prose(text)).split("\n\n"):
        line = re.sub(r"\]\([^)]*\)", "]", " ".join(_ITEM.sub("", paragraph.lstrip("\n")).split()))
        yield from re.split(r"(?<=[.!?:])[)*]*\s+", line)


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_not_wide(page: str) -> None:
    assert [line for line in prose(text_of(page)) if len(line) > COLUMNS] == []


@pytest.mark.parametrize("page", SHORT_SENTENCES)
def test_sentences_are_short(page: str) -> None:
    assert [sentence for sentence in sentences(text_of(page)) if len(sentence.split()) > MOST_WORDS] == []


@pytest.mark.parametrize("page", PAGES)
def test_cells_are_small(page: str) -> None:
    most = MOST_SHORT_CELL_WORDS if page in SMALL_CELLS else MOST_CELL_WORDS
    assert [cell for row in rows(text_of(page)) for cell in row if len(cell.split()) > most] == []


def test_sentences_are_found() -> None:
    """Of every kind of text around them: else the tests above see nothing."""
    page = "# Head\n\nOne. Two\nthree: four.\n\n- five\n  six; seven\n- [eight](x y)\n\n```\ncode\n```\n| a | b |\n"
    assert [s for s in sentences(page) if s] == ["One.", "Two three:", "four.", "five six; seven", "[eight]"]


def test_readme_is_short() -> None:
    assert len(text_of("README.md").splitlines()) < README_LINES


@pytest.mark.parametrize(("page", "heading"), [("README.md", "Commands"), ("docs/cli.md", "Command line")])
def test_a_command_has_one_row(page: str, heading: str) -> None:
    text = text_of(page).split("\n## ")[0] if page != "README.md" else section(page, heading)
    first = [name for cells in rows(text) for name in re.findall(r"`(probe \w+)[^`]*`", cells[0])]
    twice = {name for name in first if first.count(name) > 1}
    assert len(first) > 12 and twice <= {"probe run"}, "here and on nodes"


# -- names of modules in comments and docstrings


def said(path: Path) -> str:
    """Comments and docstrings of a module or script, or all of a C or assembly file."""
    text = path.read_text()
    if path.suffix != ".py":
        return text
    parts = re.findall(r"#.*", text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            parts.append(node.value.value)
    return "\n".join(parts)


SOURCES = [
    path
    for folder in ("probe", "checkpoint", "reducer", "scripts", "tests", "pintools", "examples", "data")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".c", ".h", ".S", ".cpp", ".lua")
]
MODULES = {path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in SOURCES}


def exists(dotted: str) -> bool:
    """A module, a package, or a name in one of them."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in MODULES or (ROOT / name.replace(".", "/") / "__init__.py").exists():
            source = ROOT / (
                f"{name.replace('.', '/')}.py" if name in MODULES else f"{name.replace('.', '/')}/__init__.py"
            )
            return length == len(parts) or re.search(rf"\b{parts[length]}\b", source.read_text()) is not None
    return False


def test_modules_that_comments_name_exist() -> None:
    assert len(SOURCES) > 200
    lost = []
    for path in SOURCES:
        text = said(path)
        for name in re.findall(
            r"(?<![\w/.$-])(?:probe|checkpoint|reducer|tests|scripts)/[\w/-]+\.(?:py|c|h|S)\b", text
        ):
            if not (ROOT / name).exists():
                lost.append((path.name, name))
        if path.suffix == ".py":
            for name in re.findall(r"(?<![\w/.@-])(?:probe|checkpoint|reducer)\.[a-z_]\w*(?:\.\w+)*", text):
                if not exists(name):
                    lost.append((path.name, name))
    assert lost == []
