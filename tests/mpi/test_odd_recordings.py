# SPDX-License-Identifier: Apache-2.0
"""Folders that are no recordings of MPI programs, and what ranks leave that are ended while they write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checkpoint.errors import ProgramUnsupported, StorageError
from probe.mpi.record import _refuse_failed
from probe.mpi.recording import read_recording
from probe.mpi.trace import read_calls


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
