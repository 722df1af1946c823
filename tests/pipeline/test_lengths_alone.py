# SPDX-License-Identifier: Apache-2.0
"""Of files that a phase appends to the length is kept, and the contents where the phase could read them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from direct_state import timed
from programs import build
from regions import captured_regions

from checkpoint.criu.tool import find_criu
from checkpoint.flat.image import FlatImage, Header, Kind, OpenDescriptor, Thread
from checkpoint.restore.criu_restore import CriuAgent, RestoreJob
from checkpoint.restore.recorded_calls import RecordedCalls
from checkpoint.state.process_state import ProcessState
from probe.contents.carried_files import copy_written_files
from probe.contents.flat_phase import keep_lengths_alone
from probe.pipeline.flatten import flatten_phases
from probe.pipeline.runs.boundaries import RegionPlan

BYTES = 300_000


def flattened(mode: str, builds: Path, folder: Path, *, direct: bool = True) -> tuple[RestoreJob, Path]:
    """A flattened phase of the program, and the copy of the file that it writes."""
    begun = time.time()

    def copies(plan: RegionPlan, images: ProcessState) -> dict[str, Path]:
        outputs = (str(folder / "stdout"), str(folder / "stderr"))
        return copy_written_files(images, folder / f"written-{plan.phase}", outputs, since=begun)

    folder.mkdir()
    (job,) = captured_regions(
        build("appends", builds), mode, str(folder / "out"), folder=folder, direct=direct, on_dump=copies
    )
    (folder / "out").unlink()
    (found,) = flatten_phases([(job, ())], folder=folder, cpu=None, progress=lambda _: None)
    assert found.refused == ""
    # The program itself is another, where it has just been compiled.
    copies_by_path = {path: Path(copy) for copy, path in job.written}
    return job, copies_by_path[str(folder / "out")]


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("mode", ["end", "always", "empties"])
def test_what_is_only_appended_to_is_a_hole(mode: str, direct: bool, builds: Path, tmp_path: Path) -> None:
    job, copy = flattened(mode, builds, tmp_path / "work", direct=direct)
    assert (copy.stat().st_size, copy.stat().st_blocks, copy.stat().st_mode & 0o777) == (BYTES, 0, 0o644)
    assert timed(job, tmp_path).wall > 0
    if not direct:
        with CriuAgent(job, find_criu(), scratch=tmp_path) as agent:
            assert agent.repeat().wall > 0


def test_repeats_copy_no_hole(builds: Path, tmp_path: Path) -> None:
    """On a disk with room for an eighth of it."""
    job, copy = flattened("end", builds, tmp_path / "work")
    os.truncate(copy, 64 << 20)
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "small", small], check=True)
    try:
        assert timed(job, small).wall > 0
    finally:
        subprocess.run(["umount", small], check=True)


@pytest.mark.parametrize("mode", ["within", "both", "reads", "again", "renames"])
def test_what_may_be_read_is_kept(mode: str, builds: Path, tmp_path: Path) -> None:
    job, copy = flattened(mode, builds, tmp_path / "work")
    assert copy.read_bytes() == b"x" * BYTES
    assert timed(job, tmp_path).wall > 0


@pytest.mark.parametrize("unknown", ["", "calls", "threads", "copy"])
def test_what_somebody_unknown_may_read_is_kept(unknown: str, tmp_path: Path) -> None:
    copy, flat = tmp_path / "copy", FlatImage(Header())
    copy.write_bytes(b"x" * BYTES)
    flat.written = ["/out"]
    flat.descriptors = [OpenDescriptor(number=3, kind=Kind.WRITTEN, flags=os.O_WRONLY, file=0, position=BYTES)]
    if unknown == "threads":
        flat.threads = [Thread()]
    path = "/other" if unknown == "copy" else "/out"
    job = cast(Any, SimpleNamespace(written=[(str(copy), path)]))
    keep_lengths_alone(job, flat, RecordedCalls(complete=unknown != "calls"))
    assert copy.read_bytes() == (b"x" if unknown else b"\0") * BYTES
