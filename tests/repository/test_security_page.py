# SPDX-License-Identifier: Apache-2.0
"""Every claim of docs/security.md that names a test names one that is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from documentation import ROOT, code, rows, section, text_of

PAGE = "docs/security.md"


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def named() -> set[str]:
    return {name for name in re.findall(r"`([^`\n]+)`", text_of(PAGE)) if re.match(r"test_\w+$|tests/", name)}


def test_every_test_that_is_named_is_there() -> None:
    files = [*(ROOT / "tests").rglob("test_*.py")]
    functions = set().union(*(functions_of(path) for path in files))
    paths = {str(path.relative_to(ROOT)) for path in files} | {"tests/programs/hostile.c"}
    assert len(named()) > 20
    assert named() - functions - paths == set()


@pytest.mark.parametrize("title", ["What a phase may do", "Which tests hold this"])
def test_every_claim_names_a_test(title: str) -> None:
    claims = rows(section(PAGE, title))
    assert len(claims) > 8
    assert [cells[0] for cells in claims if not code(cells[-1])] == []
