# SPDX-License-Identifier: Apache-2.0
"""Files that `--makes` names: removed before a run, and nothing else is."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tracing import program_of, streams_of

from checkpoint.errors import ProbeError, StorageError
from checkpoint.made_files import hint_of, refuse_own, refuse_present, remove_made
from checkpoint.process.plain_run import run_plain
from checkpoint.process.program import Program


def there(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    (made / "results" / "deep").mkdir(parents=True)
    for name in ("run.out", "run.log", "input", "results/deep/last.out", ".hidden"):
        (made / name).touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").touch()
    (made / "link.out").symlink_to(tmp_path / "elsewhere")
    return made


@pytest.mark.parametrize(
    ("patterns", "gone"),
    [
        ([], set()),
        (["run.out"], {"run.out"}),
        (["run.*", "nothing"], {"run.out", "run.log"}),
        (["results"], {"results", "results/deep", "results/deep/last.out"}),
        (["results/deep/*.out"], {"results/deep/last.out"}),
        (["results/*"], {"results/deep", "results/deep/last.out"}),
        (["*.out"], {"run.out", "link.out"}),
        (["link.out/*", "link.out/precious"], set()),
    ],
)
def test_what_is_named_goes(patterns: list[str], gone: set[str], folder: Path) -> None:
    before = there(folder)
    remove_made(str(folder), patterns)
    assert before - there(folder) == gone
    assert (folder.parent / "elsewhere" / "precious").exists()
    remove_made(str(folder), patterns)


@pytest.mark.parametrize(
    "pattern",
    ["", ".", "*", "**", "?", "*/*", "*.*", "[!q]*", "a**b", "**/run.out", "..", "../elsewhere", "/etc"],
)
def test_patterns_that_may_name_all(pattern: str, folder: Path) -> None:
    before = there(folder)
    for refuse in (remove_made, refuse_present):
        with pytest.raises(ProbeError, match="give names of files in the program's folder"):
            refuse(str(folder), [pattern])
    assert there(folder) == before


def test_what_is_there_before_the_program_runs(folder: Path) -> None:
    refuse_present(str(folder), ["other.*"])
    with pytest.raises(ProbeError, match=r"run.log: is there before the program runs, and --makes \*\.log names it"):
        refuse_present(str(folder), ["other.*", "*.log"])


@pytest.mark.parametrize("pattern", ["x.probe", "./x.probe", "*.probe", "x*"])
def test_what_is_the_builds_own(pattern: str, folder: Path) -> None:
    for own in (folder / "x.probe", folder / "x.probe" / "within"):
        with pytest.raises(ProbeError, match=f"names {own}, which is this build's own"):
            refuse_own(str(folder), [pattern], (None, own))
    refuse_own(str(folder), [pattern], (None, folder.parent / "x.probe"))


def test_a_folder_that_may_not_be_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "unlink", refused)
    with pytest.raises(StorageError, match=r"run.out: cannot be removed \(Operation not permitted\) for --makes"):
        remove_made(str(folder), ["run.out"])


def test_what_was_left_is_named() -> None:
    assert hint_of(["a"]).startswith("; an earlier run left a in its folder;")
    assert hint_of(["a", "b", "c", "d", "e"]).startswith("; an earlier run left a, b, c and 2 more in its folder;")
    assert hint_of(["a.out", "b"], ["*.out"]).startswith("; an earlier run left b in its folder;")
    assert hint_of([]) == hint_of(["a.out"], ["*.out"]) == ""


def test_each_run_begins_without_it(tmp_path: Path) -> None:
    program = program_of(Path("/bin/sh"), "-c", "echo *; touch been")
    seen = []
    for makes in ((), (), ("been",)):
        started = replace(program, cwd=str(tmp_path), makes=makes)
        assert Program.from_json(started.to_json()).makes == (), "what is removed is never read from a file"
        with streams_of() as streams:
            run_plain(started, streams)
            seen.append(streams.stdout.read_text())
    assert seen == ["*\n", "been\n", "*\n"]
