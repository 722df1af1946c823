# SPDX-License-Identifier: Apache-2.0
"""A region that prints when it is timed, and did not when its pages were observed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from direct_runs import flat_job
from direct_state import timed
from programs import build
from regions import captured_regions

from checkpoint.criu.tool import find_criu
from checkpoint.errors import PhaseFailed
from checkpoint.restore.criu_restore import RestoreJob, time_phase
from probe.pipeline.reduce import PhaseToReduce, reduce_phase
from reducer import touched_set


@pytest.mark.parametrize("variant", ["nopie", "pie"])
@pytest.mark.parametrize("direct", [True, False])
def test_it_finds_its_streams(direct: bool, variant: str, builds: Path, tmp_path: Path) -> None:
    job, said = _reduced(direct, variant, builds, tmp_path)
    if direct:
        flat_job(job, tmp_path)
    said.touch()
    if direct:
        timed(job, tmp_path)
    else:
        assert len(time_phase(job, find_criu(), repeats=1, scratch=tmp_path)) == 1


def test_without_static_data_it_is_lost(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched_set, "STATIC_BYTES", 0)
    job, said = _reduced(True, "nopie", builds, tmp_path)
    flat_job(job, tmp_path)
    said.touch()
    with pytest.raises(PhaseFailed):
        timed(job, tmp_path)


def _reduced(direct: bool, variant: str, builds: Path, folder: Path) -> tuple[RestoreJob, Path]:
    """The job with its reduced images, and the file that lets it report."""
    said = folder / "say-it"
    (job,) = captured_regions(build("reports", builds, variant), str(said), folder=folder / "work", direct=direct)
    reduced = reduce_phase(PhaseToReduce(job, 0.02), None if direct else find_criu(), how="drop", folder=folder)
    assert reduced.whole == ""
    return replace(job, images=folder / reduced.folder), said
