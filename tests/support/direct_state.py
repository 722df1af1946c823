# SPDX-License-Identifier: Apache-2.0
"""A phase of a process whose every property is unusual, for tests that restore it directly."""

from __future__ import annotations

import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from direct_runs import flat_job, refuse_calls
from programs import build
from regions import captured_regions

from checkpoint.compiled import restorer
from checkpoint.criu.images import read_checkpoint
from checkpoint.flat.image import NAME
from checkpoint.restore.criu_restore import RegionTime, RestoreJob
from checkpoint.restore.direct_restore import DirectAgent
from checkpoint.state.process_state import ProcessState
from probe.contents.carried_files import copy_written_files
from probe.pipeline.runs.boundaries import RegionPlan

FAILED, RESTORED = 1, 2
FORMAT, CHECKSUM, TABLE, PARK, PAGES = 4, 5, 6, 7, 8


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("direct")


@pytest.fixture(scope="module")
def state(builds: Path, places: Path) -> RestoreJob:
    """A phase of a process whose every property is unusual."""
    folder = places / "state"
    folder.mkdir()
    (folder / "input").write_bytes(random.Random(1).randbytes(5000))
    begun = time.time()

    def copies(plan: RegionPlan, images: ProcessState) -> dict[str, Path]:
        return dict(
            copy_written_files(images, folder / f"written-{plan.phase}", (str(folder / "stdout"),), since=begun)
        )

    (job,) = captured_regions(
        build("state", builds), str(folder / "input"), str(folder / "output"), folder=folder, on_dump=copies
    )
    (folder / "output").unlink()
    return job


@pytest.fixture(scope="module")
def flat_state(state: RestoreJob, places: Path) -> RestoreJob:
    flat_job(state, places)
    return state


@pytest.fixture(scope="module")
def plain(builds: Path, places: Path) -> RestoreJob:
    """A phase that makes no system call, 96 pages of it touched."""
    (job,) = captured_regions(build("touches", builds), "plain", folder=places / "plain")
    flat_job(job, places)
    return job


def timed(job: RestoreJob, scratch: Path, **more: object) -> RegionTime:
    with DirectAgent(job, restorer(), scratch=scratch, **more) as agent:  # type: ignore[arg-type]
        return agent.repeat()


def flat_bytes(job: RestoreJob) -> bytes:
    return (job.images / NAME).read_bytes()


def pages_of(job: RestoreJob) -> Path:
    return read_checkpoint(job.images).pages_image


def moved(job: RestoreJob, folder: Path) -> RestoreJob:
    shutil.copytree(job.images, folder)
    return replace(job, images=folder)


def no_namespaces() -> None:
    """As in most containers: a filter refuses unshare."""
    refuse_calls(272)
