# SPDX-License-Identifier: Apache-2.0
"""A program that prints gigabytes in a second or two gets a probe, in a bounded room on the disk."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import Command
from conftest import MakeProgram

from probe.pipeline.outputs import KEPT_END, KEPT_START

# A build is refused where restored regions take other times, as they may beside other tests.
pytestmark = [pytest.mark.slow, pytest.mark.timed]

MEGABYTES = 2100
LOOK_SECONDS = 0.05

BUILD_SECONDS = 600.0
"""A busy disk takes gigabytes slowly. A build takes half a minute where nothing else writes."""


class Room:
    """The most bytes on the disk that one output of a folder took at a time, and all of them together."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.one, self.all = folder, 0, 0

    def now(self) -> list[int]:
        found = []
        for path in self.folder.glob("*.stdout"):
            # It may be removed at any moment.
            with contextlib.suppress(OSError):
                found.append(path.stat().st_blocks * 512)
        self.one, self.all = max([self.one, *found]), max(self.all, sum(found))
        return found


@contextmanager
def looked_at(folder: Path) -> Iterator[Room]:
    room, ended = Room(folder), threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_SECONDS):
            room.now()

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield room
    finally:
        ended.set()
        looking.join()


def test_a_program_that_prints_gigabytes(program: MakeProgram, command: Command, tmp_path: Path) -> None:
    target, work = tmp_path / "out.probe", tmp_path / "work"
    with looked_at(work) as room:
        process = command.start(
            "build", "-q", "--json", "--runs", "1", "--max-phases", "2", "-o", target, "--work", work, "--",
            program("gigabytes"), str(MEGABYTES),
        )  # fmt: skip
        with process:
            try:
                printed, told = process.communicate(timeout=BUILD_SECONDS)
            except BaseException:
                process.kill()
                raise
    assert process.returncode == 0, told
    outputs = list(work.glob("*.stdout"))
    whole = [path for path in outputs if path.stat().st_size == MEGABYTES << 20]
    assert len(whole) >= 3, outputs
    # At no time did one of these outputs, or all that is left of them, take the room of a whole one.
    assert KEPT_START + KEPT_END <= room.one < MEGABYTES << 19 and room.all < MEGABYTES << 20, vars(room)
    said = json.loads(printed)
    assert any("too large to compare but for its size and its first 64 MB, which are those" in n for n in said["notes"])
    assert said["size_bytes"] < 100 << 20
    predicted = command.json("run", "-q", target)
    assert predicted["prediction"]["seconds"] > 0
