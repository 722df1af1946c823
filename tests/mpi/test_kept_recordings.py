# SPDX-License-Identifier: Apache-2.0
"""Recordings that are kept beside probes of MPI programs: used again, replaced, left alone."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from mpi_programs import allow_root, built, launched

from checkpoint import strict_json
from checkpoint.errors import ProgramFailed, StorageError
from probe.mpi.probes import keeping
from probe.mpi.probes.keeping import KEPT, kept_folder, kept_or_recorded
from probe.mpi.record import record


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    allow_root(monkeypatch)
    return built("endings", "openmpi", tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("output", "folder"),
    [("app.mpiprobe", "app.recording"), ("run.v1", "run.v1.recording"), ("a.recording", "a.recording.recording")],
)
def test_each_probe_has_a_folder_of_its_own(output: str, folder: str) -> None:
    assert kept_folder(Path("there") / output) == Path("there") / folder


def test_a_recording_is_kept_for_the_same_run(program: Path, tmp_path: Path) -> None:
    output = tmp_path / "app.mpiprobe"
    command = launched("openmpi", 2, program)
    first, was_kept = kept_or_recorded(command, output)
    assert not was_kept and first.folder == tmp_path / "app.recording" and len(first.ranks) == 2
    again, was_kept = kept_or_recorded(command, output)
    assert was_kept and again == first
    other, was_kept = kept_or_recorded(launched("openmpi", 3, program), output)
    assert not was_kept and len(other.ranks) == 3 and other.folder == first.folder
    with program.open("ab") as file:
        file.write(b"\0")
    _, was_kept = kept_or_recorded(launched("openmpi", 3, program), output)
    assert not was_kept
    assert [one.name for one in tmp_path.glob(".app*")] == []
    for path in first.folder.iterdir():
        path.unlink()
    (first.folder / "mine").touch()
    with pytest.raises(StorageError, match="exists already and is no recording"):
        kept_or_recorded(command, output)
    assert contents(first.folder) == {"mine": b""}


def test_a_damaged_recording_is_made_anew(program: Path, tmp_path: Path) -> None:
    output, command = tmp_path / "app.mpiprobe", launched("openmpi", 2, program)
    folder = kept_or_recorded(command, output)[0].folder
    for name in ("inbox.1.000", "calls.1.000", "recording.json"):
        (folder / name).write_bytes((folder / name).read_bytes()[:-8])
        found, was_kept = kept_or_recorded(command, output)
        assert not was_kept and len(found.ranks) == 2
        assert kept_or_recorded(command, output) == (found, True)
    said = strict_json.loads((folder / "recording.json").read_bytes())
    del said["ranks"][1]
    (folder / "recording.json").write_text(strict_json.dumps(said))
    assert not kept_or_recorded(command, output)[1]
    (folder / "calls.1.000").unlink()
    (folder / KEPT).unlink()
    with pytest.raises(StorageError, match="holds another run, or a damaged one"):
        kept_or_recorded(command, output)


def test_a_named_compiler_counts(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, command = tmp_path / "app.mpiprobe", launched("openmpi", 2, program)
    kept_or_recorded(command, output)
    looked = []
    monkeypatch.setattr(keeping, "refuse_changed", lambda found, run: looked.append(run.program))
    assert kept_or_recorded(command, output)[1]
    # Both ranks run it.
    assert looked == [str(program)]
    named = shutil.which("mpicc.openmpi")
    found, was_kept = kept_or_recorded(command, output, compiler=named)
    assert not was_kept and found.compiler == named


def test_a_recording_of_the_users_own_is_left_alone(program: Path, tmp_path: Path) -> None:
    output, command = tmp_path / "app.mpiprobe", launched("openmpi", 2, program)
    own = record(command, tmp_path / "app.recording").folder
    before = contents(own)
    assert kept_or_recorded(command, output)[1]
    with pytest.raises(StorageError, match=r"holds another run, .* move it away, or name another -o"):
        kept_or_recorded(launched("openmpi", 3, program), output)
    assert contents(own) == before
    own.rename(tmp_path / "elsewhere")
    own.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="is a link"):
        kept_or_recorded(command, output)


def test_a_failure_leaves_what_was_there(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, command = tmp_path / "app.mpiprobe", launched("openmpi", 2, program)
    first = kept_or_recorded(command, output)[0]
    before = contents(first.folder)
    with pytest.raises(ProgramFailed):
        kept_or_recorded(launched("openmpi", 2, program, "status"), output)
    assert contents(first.folder) == before
    renamed = Path.rename

    def full(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(errno.ENOSPC, "No space left on device")
        return renamed(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(StorageError, match=r"cannot write .*app.recording: No space left"):
        kept_or_recorded(launched("openmpi", 3, program), output)
    assert contents(first.folder) == before
    assert [one.name for one in tmp_path.glob(".app*")] == []
    with pytest.raises(StorageError, match="cannot write"):
        kept_or_recorded(command, tmp_path / "nowhere" / "app.mpiprobe")
