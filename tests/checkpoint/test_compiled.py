# SPDX-License-Identifier: Apache-2.0
"""Compiling native programs: an interrupted compiler leaves nothing, and what a failing one says is told."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from interruption import interrupted_after

from checkpoint.compiled import built, own_programs, restorer
from checkpoint.errors import StorageError, ToolMissing
from checkpoint.paths import HOME_VARIABLE


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_interrupted_compiler_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    """Neither the programs that it had started, nor their temporary files."""
    os.mkfifo(tmp_path / "endless.h")
    source = tmp_path / "waits.c"
    source.write_text('#include "endless.h"\n')

    there = set(os.listdir(tempfile.gettempdir()))  # noqa: PTH208
    with interrupted_after(0.5):
        built("waits", [source], [])
    assert [path for path in cache.rglob("*") if path.is_file() or "tmp" in path.name] == []
    assert set(os.listdir(tempfile.gettempdir())) == there  # noqa: PTH208


def test_what_the_compiler_says_is_told(tmp_path: Path, cache: Path) -> None:
    source = tmp_path / "wrong.c"
    source.write_text("int main(void) { return nothing; }\n")
    with pytest.raises(ToolMissing, match=r"compiling wrong failed: (?s:.*)nothing"):
        built("wrong", [source], [])


@pytest.mark.parametrize("how", ["everybody's", "another user's"])
def test_programs_of_others_are_not_run(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where root is given somebody's PROBE_HOME, or a folder in /tmp."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    folder = own_programs()
    folder.mkdir(parents=True)
    assert restorer().parent == folder
    if how == "everybody's":
        folder.chmod(0o777)
    else:
        os.chown(folder, 65534, 65534)
    with pytest.raises(StorageError, match="belongs to somebody else, or others can write to it; set PROBE_HOME"):
        restorer()
