# SPDX-License-Identifier: Apache-2.0
"""Programs that came compiled: used as they are, unless they are damaged or of other sources."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from checkpoint import prebuilt
from checkpoint.compiled import RECIPES, RESTORER, STUBS, faults_of_brought, restorer, restorer_bytes
from checkpoint.errors import ToolMissing
from checkpoint.paths import HOME_VARIABLE
from probe.doctor.checks import Finding
from probe.doctor.diagnosis import examine


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a wheel made here brings, by file names."""
    return {made.name: made.read_bytes() for made in (r.prepare(tmp_path_factory.mktemp("made")) for r in RECIPES)}


@pytest.fixture
def brought(compiled: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with them, as this installation's; an empty cache, and no compiler."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, program in compiled.items():
        (folder / name).write_bytes(program)
    monkeypatch.setattr(prebuilt, "FOLDER", folder)
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    return folder


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> str:
    """PATH as it was: ask for it before `brought`."""
    return os.environ["PATH"]


def _of(folder: Path, name: str) -> Path:
    (found,) = folder.glob(f"{name}-*")
    return found


def _damage(program: Path) -> None:
    data = bytearray(program.read_bytes())
    data[len(data) // 2] ^= 1
    program.write_bytes(data)


def _compiler() -> Finding:
    return next(finding for finding in examine() if finding.name == "compiler")


def test_nothing_is_compiled(brought: Path, tmp_path: Path) -> None:
    assert [recipe.made().parent for recipe in RECIPES] == [brought] * len(RECIPES)
    assert restorer_bytes() == _of(brought, "restorer").read_bytes()
    assert not (tmp_path / "home").exists()


def test_a_compiler_is_then_for_other_commands(path: str, brought: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _compiler()
    assert (found.status, found.need, found.exit_code) == ("warn", "better", 0)
    assert "optional" in found.remedy and "emulate" in found.remedy
    monkeypatch.setenv("PATH", path)
    found = _compiler()
    assert (found.status, found.need) == ("ok", "better")


def test_a_damaged_one_is_not_used(path: str, brought: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled in its place, where that can be done."""
    damaged = _of(brought, "restorer")
    whole = damaged.read_bytes()
    _damage(damaged)
    with pytest.raises(ToolMissing, match=f"what came compiled cannot be used: {damaged} is damaged;"):
        restorer()
    assert STUBS.made().parent == brought
    found = _compiler()
    assert (found.status, found.need, found.exit_code) == ("fail", "needed", ToolMissing.exit_code)
    assert f"{damaged} is damaged" in found.detail and "install the wheel again" in found.remedy
    monkeypatch.setenv("PATH", path)
    made = restorer()
    assert made.parent == tmp_path / "home" / "cache" / "native" and made.read_bytes() == whole
    assert (_compiler().status, _compiler().need) == ("warn", "needed")


def test_one_of_other_sources_is_not_used(brought: Path) -> None:
    """Whole, by its digest, and not what these sources make."""
    old = _of(brought, "restorer")
    older = old.with_name(f"restorer-{'0' * 16}-{hashlib.sha256(old.read_bytes()).hexdigest()}")
    old.rename(older)
    with pytest.raises(ToolMissing, match=f"{older} was made of other sources"):
        restorer()
    older.with_name(old.name).write_bytes(older.read_bytes())
    assert restorer() == old


def test_one_that_is_not_there_is_named_by_the_doctor(brought: Path) -> None:
    _of(brought, "step.so").unlink()
    assert faults_of_brought() == [f"{brought} lacks step.so"]
    with pytest.raises(ToolMissing, match="no C compiler"):
        next(recipe for recipe in RECIPES if recipe.name == "step.so").made()


def test_a_checkout_brings_none() -> None:
    assert faults_of_brought() is None and RESTORER.brought() == (None, "")
