# SPDX-License-Identifier: Apache-2.0
"""Knowledge of the SSH library: none outside of probe/ssh, and of its private parts in one module."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SSH = ROOT / "probe/ssh"
FOR_ALL = {"probe.ssh.addresses", "probe.ssh.interface", "probe.ssh.reach", "probe.ssh.throughput"}
"""Modules of probe/ssh that the others may import."""
WITH_PARAMIKO = {"config.py", "connection.py", "login.py", "paramiko_private.py", "transport.py"}
PRIVATE = SSH / "paramiko_private.py"


def imported(path: Path) -> set[str]:
    """Full names of the modules that a file imports, at its top or later."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            module = node.module or ""
            # `from probe.ssh import connection` imports a module too.
            found |= {module} | {
                f"{module}.{name.name}" for name in node.names if (ROOT / module.replace(".", "/")).is_dir()
            }
    return found


def uses_paramiko(path: Path) -> bool:
    return any(name.split(".")[0] in ("paramiko", "cryptography") for name in imported(path))


def test_nobody_else_imports_the_library() -> None:
    outside = [p for p in ROOT.glob("*/**/*.py") if p.parts[len(ROOT.parts)] not in ("tests", ".venv")]
    outside = [p for p in outside if SSH not in p.parents]
    assert len(outside) > 150
    for path in outside:
        assert not uses_paramiko(path), f"{path} imports paramiko: only probe/ssh may"
        of_ours = {name for name in imported(path) if name.startswith("probe.ssh.")}
        assert of_ours <= FOR_ALL, f"{path} imports {of_ours - FOR_ALL}: use probe.ssh.interface and probe.ssh.reach"


def test_few_modules_of_ours_import_the_library() -> None:
    assert {path.name for path in SSH.glob("*.py") if uses_paramiko(path)} == WITH_PARAMIKO
    assert not {f"{name.rpartition('.')[2]}.py" for name in FOR_ALL} & WITH_PARAMIKO


@pytest.mark.parametrize("module", ["probe", "probe.candidates.remote", "probe.cli.net", "probe.ssh.throughput"])
def test_the_library_is_loaded_when_a_node_is_reached(module: str) -> None:
    code = f"import sys, {module}; assert 'paramiko' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def leaning(tree: ast.AST) -> Iterator[str]:
    """Where a module leans on private parts of another's objects, and what it does there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in node.bases if ast.unparse(base).startswith("paramiko")]
            yield from (f"line {node.lineno}: class {node.name}({base})" for base in bases)


@pytest.mark.parametrize("path", sorted(set(SSH.glob("*.py")) - {PRIVATE}), ids=lambda path: path.name)
def test_private_parts_are_used_in_one_module(path: Path) -> None:
    assert list(leaning(ast.parse(path.read_text()))) == []


def test_private_parts_are_seen() -> None:
    found = list(leaning(ast.parse(PRIVATE.read_text())))
    assert any("base._closed" in place for place in found)
    assert any("class Transport(paramiko.Transport)" in place for place in found)
