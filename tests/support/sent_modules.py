# SPDX-License-Identifier: Apache-2.0
"""Rules for what is sent to nodes: which modules it imports, and which letters a command line may have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.candidates.agent_file import ROOT

OURS = ("checkpoint", "probe", "reducer")

SAFE = re.compile(r"[A-Za-z0-9_./+=:@%^ -]*\Z")
"""What no shell gives a meaning to; `=` and `%` only at a word's beginning, `^` in some old ones."""


def imported(source: str, name: str) -> Iterator[str]:
    """All modules that a source file imports, wherever it does."""
    for node in ast.walk(ast.parse(source, name)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{name}: a relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(module: str) -> str | None:
    """The source file of one of our modules; None for what is a name inside one."""
    path = module.replace(".", "/")
    return next((name for name in (f"{path}.py", f"{path}/__init__.py") if (ROOT / name).is_file()), None)
