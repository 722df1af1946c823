# SPDX-License-Identifier: Apache-2.0
"""Descriptors that lead to the process itself come back, with all that is in them, whoever restores them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from socket import SOCK_DGRAM, SOCK_SEQPACKET, SOCK_STREAM

import pytest
from direct_runs import as_nobody, flat_job, for_anybody, open_to_anybody
from direct_state import timed
from programs import build
from regions import captured_regions

from checkpoint.compiled import restorer
from checkpoint.criu.images import read_checkpoint
from checkpoint.criu.tool import find_criu
from checkpoint.flat.image import NAME, FlatImage, Header, Kind, decode, encode
from checkpoint.restore.criu_restore import RestoreJob, time_phase
from checkpoint.restore.direct_restore import DirectAgent
from checkpoint.state.process_state import ProcessState
from probe.contents.carried_files import copy_written_files
from probe.pipeline.runs.boundaries import RegionPlan

TICKS = "ticks"
"""CRIU restores a timer that waits to be read as one that has ended: its captures of that are refused."""

ALONE = "alone"
"""Sockets that nobody is connected to: CRIU would want the addresses that they listen on."""

REACH, REACH_ALONE = "reach", "reach alone"
"""What a confined region may not do with a pair of sockets, and with others."""

KINDS = ("gone", "pipe", "brim", "sockets", "events", "number", TICKS, ALONE, "closed")


@dataclass
class Regions:
    """A phase of `inside KIND` for each kind that was asked for."""

    builds: Path
    folder: Path
    jobs: dict[str, RestoreJob]

    def __call__(self, kind: str) -> RestoreJob:
        if kind not in self.jobs:
            folder = self.folder / kind
            folder.mkdir()

            def copies(plan: RegionPlan, images: ProcessState) -> dict[str, Path]:
                outputs = (str(folder / "stdout"), str(folder / "stderr"))
                return copy_written_files(images, folder / "written", outputs, since=0)

            before = Path.cwd()
            os.chdir(folder)
            try:
                (job,) = captured_regions(
                    build("inside", self.builds),
                    kind,
                    folder=folder,
                    on_dump=copies,
                    direct=kind in (TICKS, ALONE, REACH_ALONE),
                )
            finally:
                os.chdir(before)
            # Unconfined, as it is watched, it would reach further.
            flat_job(job, self.folder, watched=kind not in (REACH, REACH_ALONE))
            self.jobs[kind] = job
        return self.jobs[kind]


@pytest.fixture(scope="module")
def regions(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> Regions:
    return Regions(builds, tmp_path_factory.mktemp("inside"), {})


@pytest.mark.parametrize("kind", [*KINDS, "all"])
def test_they_come_back_directly(kind: str, regions: Regions, tmp_path: Path) -> None:
    with DirectAgent(regions(kind), restorer(), scratch=tmp_path) as agent:
        assert all(agent.repeat().wall > 0 for _ in range(2))
    assert timed(regions(kind), tmp_path, only_recorded_calls=True).wall > 0


@pytest.mark.parametrize("kind", [*(kind for kind in KINDS if kind not in (TICKS, ALONE)), "all"])
def test_criu_agrees(kind: str, regions: Regions, tmp_path: Path) -> None:
    before = sorted(regions.folder.joinpath(kind).iterdir()) if kind in regions.jobs else None
    assert len(time_phase(regions(kind), find_criu(), repeats=2, scratch=tmp_path)) == 2
    assert before is None or sorted(regions.folder.joinpath(kind).iterdir()) == before


@pytest.mark.parametrize("kind", [REACH, REACH_ALONE])
def test_a_region_with_sockets_reaches_nobody_else(kind: str, regions: Regions, tmp_path: Path) -> None:
    assert timed(regions(kind), tmp_path).wall > 0


def test_an_image_says_no_more_than_it_needs(regions: Regions, tmp_path: Path) -> None:
    """Without clocks older programs read what has no new kinds; of what has them every descriptor is there once."""
    flat = decode(regions("events").images / NAME)
    assert flat.header.version == 7
    assert version_without_clocks(flat) == 2
    assert sorted(d.kind for d in flat.descriptors if d.kind > Kind.SAME_AS) == [
        Kind.EVENT, Kind.EPOLL, Kind.EPOLL, Kind.TIMER, Kind.SIGNALS
    ]  # fmt: skip
    assert len(flat.watches) == 4 and not flat.contents
    assert version_without_clocks(decode(regions("number").images / NAME)) == 1


def test_sockets_that_nobody_is_connected_to_are_no_pair(regions: Regions) -> None:
    """Each names itself; older programs refuse the image by its number."""
    flat = decode(regions(ALONE).images / NAME)
    assert flat.header.version == 9 == version_without_clocks(flat)
    alone = [d for d in flat.descriptors if d.kind == Kind.SOCKET]
    assert [(d.file == d.number, d.position, d.path) for d in alone] == [
        (True, 1, SOCK_STREAM), (True, 1, SOCK_SEQPACKET), (True, 0, SOCK_DGRAM)
    ]  # fmt: skip


def version_without_clocks(flat: FlatImage) -> int:
    flat.clocks = 0
    return Header.from_buffer_copy(encode(flat)).version


def test_deleted_files_are_shown_nowhere(regions: Regions, tmp_path: Path) -> None:
    job = regions("gone")
    names = {path.name for path in job.images.glob("gone-*.img")}
    flat = decode(job.images / NAME)
    assert len(names) == 2 and names == {name for name in (*flat.files, *flat.written) if "/" not in name}
    assert (job.images / flat.written[0]).stat().st_size == 300000
    images = read_checkpoint(job.images)
    assert len(images.removed_files) == 3 - 1 or len(set(images.removed_files.values())) == 2
    assert not [path for path in regions.folder.joinpath("gone").iterdir() if path.name.startswith("inside-")]


def test_an_ordinary_user_gets_them(regions: Regions, builds: Path, tmp_path: Path) -> None:
    job = regions("all")
    for folder in (regions.folder, builds, tmp_path):
        open_to_anybody(folder)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch").chmod(0o777)
    for_anybody(tmp_path / "code")
    program = tmp_path / "restorer"
    shutil.copy(restorer(), program)
    program.chmod(0o755)

    def restored() -> float:
        import checkpoint.restore.direct_restore

        checkpoint.restore.direct_restore._AGENT = tmp_path / "code" / "checkpoint" / "restore" / "direct_agent.py"
        with DirectAgent(job, program, scratch=tmp_path / "scratch") as agent:
            return agent.repeat().wall

    assert 0 < as_nobody(restored) < 5
