# SPDX-License-Identifier: Apache-2.0
"""Shared memory that nobody else has, and pending signals: captured directly, restored as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from direct_runs import flat_job
from direct_state import timed
from programs import build
from regions import captured_regions

from checkpoint.capture.stored import read_state
from checkpoint.criu.unsupported import unsupported
from checkpoint.flat.image import NAME, decode

KINDS = ("anonymous", "memfd", "deleted", "signals")


@pytest.mark.parametrize("kind", KINDS)
def test_they_come_back(kind: str, builds: Path, tmp_path: Path) -> None:
    (job,) = captured_regions(build("shares", builds), kind, folder=tmp_path / "work", direct=True)
    assert unsupported(read_state(job.images)) == []
    flat_job(job, tmp_path)
    assert decode(job.images / NAME).header.version == 4
    assert timed(job, tmp_path).wall > 0
    assert timed(job, tmp_path, only_recorded_calls=True).wall > 0
