# SPDX-License-Identifier: Apache-2.0
"""Programs with odd calls, folders that are no recordings, and what ranks leave that are ended while they write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mpi_programs import LIBRARIES, allow_root, built, launched, recorded, results

from checkpoint.errors import ProgramUnsupported, StorageError
from probe.mpi.record import _refuse_failed, record
from probe.mpi.recording import read_recording
from probe.mpi.replay import replay
from probe.mpi.simulate import Where, simulate
from probe.mpi.trace import read_calls


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    allow_root(monkeypatch)
    return tmp_path


@pytest.mark.parametrize("name", ["recording.json", "calls.0.000"])
def test_pipes_in_the_place_of_files_hold_nobody(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(StorageError, match=rf"{name}: not a regular file"):
        read_recording(tmp_path) if name == "recording.json" else read_calls(tmp_path, 0)


def test_a_folder_without_a_description_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"is no recording of `probe mpi record` \(it has no recording.json\)"):
        read_recording(tmp_path)


def test_a_refusal_that_was_cut_off_is_not_the_one_told(tmp_path: Path) -> None:
    """Two ranks refuse at the same time; the launcher ends one of them when the other has ended."""
    (tmp_path / "refused.0").write_text("")
    (tmp_path / "refused.1").write_text("this program calls MPI_Win_create, which is not recorded")
    with pytest.raises(ProgramUnsupported, match="rank 1: this program calls MPI_Win_create"):
        _refuse_failed(["mpirun"], tmp_path, 71)


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("how", "call"),
    [
        ("window", "Win_create"), ("file", "File_open"), ("spawn", "Comm_spawn"), ("between", "Intercomm_create"),
        ("graph", "Graph_create"), ("neighbours", "Dist_graph_create"),
    ],
)  # fmt: skip
def test_a_call_that_is_not_recorded_is_named(how: str, call: str, library: str, place: Path) -> None:
    program = built("unrecorded", library, place)
    with pytest.raises(ProgramUnsupported, match=f"calls MPI_{call}, which is not recorded"):
        record(launched(library, 2, program, how), place / "recording")
    assert {path.name for path in place.iterdir()} == {"unrecorded"}


@pytest.mark.slow
def test_two_libraries_in_one_program(place: Path) -> None:
    program = built("cg", "openmpi", place, "-Wl,--no-as-needed", "-l:libmpich.so.12")
    with pytest.raises(ProgramUnsupported, match=r"cg: is linked with two MPI libraries: libmpi\S+, libmpi\S+"):
        record(launched("openmpi", 2, program), place / "recording")


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_child_before_mpi_begins(library: str, place: Path) -> None:
    """The child is not recorded, and runs again with its rank alone."""
    made = recorded("forks", library, 2, place)
    first = results("forks", place, 2)
    assert [replay(made, rank).status for rank in range(2)] == [0, 0]
    assert results("forks", place, 2) == first


@pytest.mark.slow
@pytest.mark.parametrize("how", ["count", "type"])
def test_more_than_two_gigabytes_in_one_call(how: str, place: Path) -> None:
    made = record([str(built("large", "openmpi", place)), how], place / "recording")
    first = results("large", place, 1)
    assert read_calls(made.folder, 0).sent == 257 << 23
    assert replay(made, 0).sent == 1
    assert results("large", place, 1) == first
    with pytest.raises(ProgramUnsupported, match=rf"sends {257 << 23} bytes in one call; a simulation takes 2 GB"):
        simulate(made, Where(network="torus:1"))


@pytest.mark.slow
def test_a_launcher_that_is_probed_itself(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The launcher, which is ended, leaves its session there.
    monkeypatch.setenv("TMPDIR", str(place))
    command = launched("openmpi", 1, built("cg", "openmpi", place))
    words = ["build", "-q", "--tracer", "valgrind", "-o", "cg.probe", "--", *command]
    done = subprocess.run([sys.executable, "-m", "probe", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert done.stderr.endswith("; for MPI programs use `probe mpi build`\n")
    assert "without a probe" not in done.stderr
