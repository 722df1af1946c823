# SPDX-License-Identifier: Apache-2.0
"""An MPI program that no launcher starts is an ordinary one: its regions are captured, restored and timed as such."""

from __future__ import annotations

from pathlib import Path

import pytest
from direct_runs import flat_job
from direct_state import timed
from mpi_programs import LIBRARIES, built
from regions import captured_regions


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_region_of_one_rank(library: str, tmp_path: Path) -> None:
    """Beside it no daemon lives. The sockets that it listens on come back, and its segments of System V."""
    program = built("single", library, tmp_path)
    # Open MPI keeps a folder there, also of runs that are ended early.
    (job,) = captured_regions(program, folder=tmp_path / "work", direct=True, env={"TMPDIR": str(tmp_path)})
    flat_job(job, tmp_path)
    assert timed(job, tmp_path, only_recorded_calls=True).wall > 0
