# SPDX-License-Identifier: Apache-2.0
"""Costs that every command pays when it starts."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("library", ["paramiko", "sqlalchemy", "matplotlib", "jinja2"])
def test_libraries_of_some_commands_are_not_loaded_by_all(library: str) -> None:
    code = f"import sys, probe.cli.main; assert {library!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
