# SPDX-License-Identifier: Apache-2.0
"""More mappings than a process may have by default: captured and restored where they may be, and named where not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from direct_runs import flat_job
from direct_state import timed
from programs import build
from regions import captured_regions

from checkpoint.errors import NodeUnfit
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.direct_restore import DirectRefused
from probe.pipeline.reduce import PhaseToReduce, reduce_phase

pytestmark = pytest.mark.alone("changes what every process of the machine may have")

_SETTING = Path("/proc/sys/vm/max_map_count")
_DEFAULT, _MORE = 65530, 300_000


@pytest.fixture
def allow() -> Iterator[Callable[[int], None]]:
    """Sets how many mappings a process may have, for this test alone."""
    before = _SETTING.read_text()

    def set_to(most: int) -> None:
        _SETTING.write_text(str(most))

    try:
        yield set_to
    finally:
        _SETTING.write_text(before)


def captured(builds: Path, folder: Path, kind: str, count: int) -> RestoreJob:
    (job,) = captured_regions(build("crowd", builds), "10", kind, str(count), folder=folder / "work", direct=True)
    return job


def test_seventy_thousand_mappings(allow: Callable[[int], None], builds: Path, tmp_path: Path) -> None:
    allow(_MORE)
    job = captured(builds, tmp_path, "areas", 70_000)
    flat = flat_job(job, tmp_path, watched=False)
    assert len(flat.mappings) > 70_000
    assert timed(job, tmp_path).wall > 0
    # As on a node that was left as it came.
    allow(_DEFAULT)
    with pytest.raises(DirectRefused, match=rf"phase 1: .*vm\.max_map_count \({len(flat.mappings)} mappings\)"):
        timed(job, tmp_path)


def test_memory_in_more_pieces_than_there_may_be_mappings(
    allow: Callable[[int], None], builds: Path, tmp_path: Path
) -> None:
    """Watched, each piece is a mapping of its own: such a phase is kept whole, and it is said what helps."""
    allow(_DEFAULT)
    job = captured(builds, tmp_path, "pages", 40_000)

    def whole() -> str:
        return reduce_phase(PhaseToReduce(job, 0.001), None, how="drop", folder=tmp_path).whole

    said = whole()
    assert "its memory is in 80" in said and "a process may have 65530 mappings here" in said
    assert said.endswith("build with a larger vm.max_map_count")
    allow(_MORE)
    assert whole() == ""


def test_a_program_that_takes_all_it_may_have_is_named(
    allow: Callable[[int], None], builds: Path, tmp_path: Path
) -> None:
    """No room is left for what a build puts into it."""
    few = 22_000
    allow(few)
    with pytest.raises(NodeUnfit, match=r"crowd: has no room .*vm\.max_map_count"):
        captured(builds, tmp_path, "full", few)
