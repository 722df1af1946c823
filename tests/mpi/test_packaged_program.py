# SPDX-License-Identifier: Apache-2.0
"""LAMMPS of the distribution: an MPI program that nobody wrote for this project."""

from __future__ import annotations

from pathlib import Path

import pytest
from mpi_programs import allow_root

from probe.mpi.record import record
from probe.mpi.replay import replay
from probe.mpi.simulate import Where, simulate
from probe.mpi.trace import read_calls

pytestmark = [pytest.mark.slow]

MELT = """
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 6 0 6 0 6
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
run 200
write_dump all custom last.dump id x y z modify sort id format float %.17g
"""
"""Its benchmark of a Lennard-Jones liquid, of 864 atoms."""

COMMAND = ["mpirun.openmpi", "--oversubscribe", "-n", "2", "lmp", "-in", "melt.in", "-log", "none"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    allow_root(monkeypatch)
    return tmp_path


def test_each_rank_alone_finds_the_same_to_the_bit(place: Path) -> None:
    (place / "melt.in").write_text(f"timer off\n{MELT}")
    made = record(COMMAND, place / "recording")
    first = (place / "last.dump").read_bytes()
    (place / "last.dump").unlink()
    # The first rank writes the file.
    assert replay(made, 1, quiet=True).sent > 500
    assert not (place / "last.dump").exists()
    assert replay(made, 0, quiet=True).sent > 500
    assert (place / "last.dump").read_bytes() == first
    found = simulate(made, Where(network="torus:2"))
    assert found.seconds >= max(read_calls(made.folder, rank).computing for rank in range(2)) * 0.99


def test_cpu_times_that_it_sends_are_others_alone(place: Path) -> None:
    (place / "melt.in").write_text(MELT)
    made = record(COMMAND, place / "recording")
    assert replay(made, 1, quiet=True).differing == 1
