# SPDX-License-Identifier: Apache-2.0
"""Programs that change the files that they are given: what a refusal says of these."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import build as compiled

from checkpoint.errors import Diverged, PhaseFailed, ProbeError
from probe.pipeline.build import build
from probe.pipeline.options import BuildOptions
from probe.pipeline.runs import given_files
from probe.pipeline.runs.given_files import changes_named


@pytest.mark.slow
def test_a_program_that_works_in_place(builds: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1500))
    with pytest.raises(Diverged, match=rf"; {file}: no longer as when the build began; .* begin with a copy"):
        build([str(compiled("inplace", builds)), "file"], tmp_path / "it.probe", cwd=str(tmp_path),
              options=BuildOptions(interval=0.02))  # fmt: skip
    # It did not come back to life: it is its owner's.
    assert file.stat().st_size == 1215, "the traced run and one timing run: another finds no more of what it was given"


@pytest.mark.parametrize("largest", [given_files.LARGEST_READ, 1])
@pytest.mark.parametrize("word", ["it", "--input=it", "{folder}/it"])
def test_changed_files_are_named(word: str, largest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_files, "LARGEST_READ", largest)
    file = tmp_path / "it"
    file.write_text("before")
    argv = ["program", word.format(folder=tmp_path), "-v", "--level=3", "nothing"]
    for after, named in (("before", largest == 1), ("behind", True), (None, True)):
        with pytest.raises(Diverged) as raised, changes_named(argv, str(tmp_path)):
            file.unlink()
            if after is not None:
                file.write_text(after)
            raise Diverged("differs")
        assert str(raised.value).startswith("differs") and (f"{file}: no longer" in str(raised.value)) == named
        file.write_text("before")


def test_other_errors_and_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ProbeError) as raised, changes_named(["program", "folder", "x\0y"], str(tmp_path)):
        (tmp_path / "folder").rmdir()
        raise PhaseFailed("phase 3: killed")
    assert str(raised.value) == "phase 3: killed"
    with pytest.raises(Diverged) as diverged, changes_named(["program", "folder", "x\0y"], str(tmp_path)):
        raise Diverged("differs")
    assert str(diverged.value) == "differs"
