# SPDX-License-Identifier: Apache-2.0
"""Captures that are cut short: the program is killed while its pages are copied, or the builder is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from programs import build
from regions import captured_regions

import checkpoint.capture.direct
from checkpoint.capture.page_copy import copy_pages
from checkpoint.capture.stored import read_state
from checkpoint.errors import ProbeError
from checkpoint.process.waiting import process_state

_SECONDS = 20.0


def test_a_program_that_is_killed_meanwhile_is_named(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was being copied is whole: a traced process keeps its memory until its tracer lets it go."""

    def killed(pid: int, memory: int, stretches: Iterable[tuple[int, int]], target: Path) -> None:
        os.kill(pid, signal.SIGKILL)
        copy_pages(pid, memory, stretches, target)

    monkeypatch.setattr(checkpoint.capture.direct, "copy_pages", killed)
    with pytest.raises(ProbeError, match=r"markers of phases \[2\]"):
        captured_regions(build("touches", builds, "nopie"), folder=tmp_path / "work", regions=2, direct=True)
    assert read_state(tmp_path / "work" / "phase-1").pages > 0


def test_a_program_does_not_outlive_its_builder(builds: Path, tmp_path: Path) -> None:
    """Killed with its builder, at the moment at which it stands still and could stay so for ever."""
    reader, writer = os.pipe()
    builder = os.fork()
    if not builder:

        def stuck(pid: int, memory: int, stretches: Iterable[tuple[int, int]], target: Path) -> None:
            os.write(writer, f"{pid}\n".encode())
            time.sleep(_SECONDS)

        checkpoint.capture.direct.copy_pages = stuck
        try:
            captured_regions(build("traps", builds), "sparse", folder=tmp_path / "work", direct=True)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as answers:
        program = int(answers.readline())
        os.kill(builder, signal.SIGKILL)
        os.waitpid(builder, 0)
    end = time.monotonic() + _SECONDS
    while process_state(program) not in ("", "Z") and time.monotonic() < end:
        time.sleep(0.01)
    assert process_state(program) in ("", "Z")
