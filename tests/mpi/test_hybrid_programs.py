# SPDX-License-Identifier: Apache-2.0
"""MPI programs whose ranks have threads of their own: recorded with the time of all threads, replayed alone."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from mpi_programs import LIBRARIES, allow_root, built, launched, recorded, results

from checkpoint.errors import ProgramUnsupported
from probe.candidates.local import run
from probe.formats.phase_record import DIRECT
from probe.mpi.probes.building import build_mpi
from probe.mpi.probes.predicting import predict
from probe.mpi.record import PRINTED, record
from probe.mpi.recording import RankRun, Recording, read_recording, write_recording
from probe.mpi.replay import alone, replay
from probe.mpi.simulate import Where, simulate
from probe.mpi.trace import read_calls
from probe.pipeline.options import BuildOptions

RANKS = 2


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    allow_root(monkeypatch)
    # The first thread sleeps while it waits for the second.
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path


@pytest.mark.timed
@pytest.mark.parametrize("library", LIBRARIES)
def test_computing_of_other_threads_is_computing(library: str, place: Path) -> None:
    program = built("hybrid", library, place, "-fopenmp")
    made = record(launched(library, RANKS, program), place / "recording")
    spent = re.findall(r"^spent (\d) ([0-9.]+)$", (made.folder / PRINTED).read_text(), re.M)
    assert sorted(rank for rank, _ in spent) == ["0", "1"]
    for rank, seconds in spent:
        assert read_calls(made.folder, int(rank)).computing > 0.9 * float(seconds)
    assert [one.threads for one in made.ranks] == [2, 2]
    assert all(one.processors > 0 for one in made.ranks)
    assert read_recording(made.folder) == made
    first = results("hybrid", place, RANKS)
    for rank in range(RANKS):
        assert replay(made, rank).status == 0
    assert results("hybrid", place, RANKS) == first
    assert simulate(made, Where(network="torus:2")).seconds > 0.9 * max(float(seconds) for _, seconds in spent)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ["ocean", "cg"])
def test_threads_of_the_library_are_not_the_programs(name: str, library: str, place: Path) -> None:
    """Neither where Fortran begins it: its computing was taken for that of all threads, the library's among them."""
    made = record(launched(library, RANKS, built(name, library, place)), place / "recording")
    assert [one.threads for one in made.ranks] == [1, 1] and made.warnings == ()


def test_binding_threads_takes_no_processors_away(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP binds the first thread to one of them, at its first parallel region."""
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    program = built("hybrid", "mpich", place, "-fopenmp")
    made = record(launched("mpich", 1, program), place / "recording")
    assert [one.processors for one in made.ranks] == [len(os.sched_getaffinity(0))]


@pytest.mark.slow
def test_a_rank_with_threads_is_built_and_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe of a team: both threads are in it."""
    monkeypatch.delenv("OMP_WAIT_POLICY")
    program = built("hybrid", "openmpi", place, "-fopenmp")
    command = [*launched("openmpi", 1, program, "800", "200000", "together")]
    made = record([command[0], "--bind-to", "none", *command[1:]], place / "recording")
    probe = build_mpi(made, place / "probe", options=BuildOptions(capture=DIRECT, runs=0))
    found = predict(probe, lambda path: run(path, repeats=2), Where(network="torus:2"))
    assert found.low <= found.seconds <= found.high
    assert found.ratios[0].ratio > 0


def test_ranks_without_threads_have_none(place: Path) -> None:
    made = recorded("cg", "openmpi", RANKS, place)
    assert [one.threads for one in made.ranks] == [1, 1]
    # Alone it would have as many threads of OpenMP as the machine has processors.
    assert alone(made, 0).environment["OMP_NUM_THREADS"] == "1"


def test_the_users_own_number_of_threads_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recorded("cg", "openmpi", 1, place)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert alone(made, 0).environment["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize("library", LIBRARIES)
def test_calls_of_another_thread_are_refused(library: str, place: Path) -> None:
    program = built("hybrid", library, place, "-fopenmp")
    with pytest.raises(ProgramUnsupported, match="another thread than the first calls MPI, which is not recorded"):
        record(launched(library, 1, program, "1", "1000", "another"), place / "recording")
    assert not (place / "recording").exists()


def with_threads(folder: Path, threads: int, of_rank: int, of_all: int) -> Recording:
    runs = tuple(RankRun(rank, "/bin/true", "/", ("true",), True, threads, of_rank) for rank in range(2))
    return Recording(folder, ("mpirun",), "Open MPI", "mpicc", 1.0, {"/bin/true": "0"}, runs, of_all)


def test_threads_that_shared_processors_are_told(place: Path) -> None:
    assert with_threads(place, 2, 2, 4).warnings == ()
    (shared,) = with_threads(place, 2, 2, 3).warnings
    assert "4 threads of 2 ranks shared 3 processors when they were recorded" in shared
    (bound,) = with_threads(place, 2, 1, 4).warnings
    assert "rank 0 had 1 processors for its 2 threads when it was recorded" in bound
    # A recording of before does not know.
    older = with_threads(place, 0, 0, 2)
    assert older.warnings == ()
    write_recording(older)
    text = (place / "recording.json").read_text()
    text, changed = re.subn(r',\s*"threads": 0,\s*"processors": 0', "", text)
    assert changed == 2
    (place / "recording.json").write_text(text)
    assert read_recording(place) == older == replace(older)
