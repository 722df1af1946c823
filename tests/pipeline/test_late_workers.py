# SPDX-License-Identifier: Apache-2.0
"""Programs whose children work before they do: looked at as wrappers, and traced to the end where they are none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from native_profiles import INTERVAL
from programs import build
from tracing import program_of

from checkpoint.errors import ProgramUnsupported
from checkpoint.process.program import Program
from probe.formats.profile import Profile
from probe.node.measuring import away_from, measuring_cpu
from probe.pipeline import trace as trace_stage
from probe.pipeline.options import BuildOptions
from probe.pipeline.stage import Build
from probe.progress import Silent
from probe.tracers.lives import EARLY_SECONDS, WorkedByChildren
from probe.work_folder import work_folder

OPTIONS = BuildOptions(interval=INTERVAL)


@contextmanager
def begun(program: Program, target: Path, options: BuildOptions = OPTIONS) -> Iterator[Build]:
    cpu = measuring_cpu()
    with work_folder(None, {}, resume=False) as folder, away_from(cpu):
        yield Build(program, options, folder, None, Silent(), target, cpu)


@pytest.fixture
def took(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that each traced run took."""
    seconds: list[float] = []
    trace_program = trace_stage.trace_program

    def timed(program: Program, **options: Any) -> Profile:
        began = time.monotonic()
        try:
            return trace_program(program, **options)
        finally:
            seconds.append(time.monotonic() - began)

    monkeypatch.setattr(trace_stage, "trace_program", timed)
    return seconds


def test_a_program_that_works_after_its_child_is_traced(builds: Path, tmp_path: Path, took: list[float]) -> None:
    """The child alone works until it is suspected; later the program does more than the child has done."""
    with begun(program_of(build("helpers", builds), "3000", "ahead", "1500"), tmp_path / "out") as made:
        trace_stage.run(made, lambda _: None)
        assert made.program.worker is None and made.profile.processes == 1
    assert len(took) == 2, "nothing was suspected"


def test_a_process_that_was_chosen_is_not_suspected(builds: Path, tmp_path: Path, took: list[float]) -> None:
    options = replace(OPTIONS, worker=1)
    with begun(program_of(build("helpers", builds), "2000", "ahead", "1000"), tmp_path / "out", options) as made:
        trace_stage.run(made, lambda _: None)
        assert made.program.worker is None and made.profile.processes == 1
    assert len(took) == 1


def test_copies_that_work_are_no_workers(builds: Path, tmp_path: Path, took: list[float]) -> None:
    """The run that looks for a worker tells so, and the program is not traced to its end."""
    with begun(program_of(build("helpers", builds), "3000", "wrapper"), tmp_path / "out") as made:
        with pytest.raises(WorkedByChildren, match=r"9\d% of its CPU time .* copy of itself"):
            trace_stage.run(made, lambda _: None)
        assert made.folder.file("find-worker.stdout").exists()
    assert len(took) == 1


def test_a_worker_is_found_soon(builds: Path, tmp_path: Path, took: list[float]) -> None:
    """The launcher is no shell. It is not traced for as long as its worker takes."""
    helpers = build("helpers", builds)
    launcher = program_of(Path("/usr/bin/timeout"), "--foreground", "100", str(helpers), "4000", "start")
    with begun(launcher, tmp_path / "out") as made:
        trace_stage.run(made, lambda _: None)
        assert made.program.worker is not None and made.program.worker.executable == str(helpers)
    assert len(took) == 2 and took[0] < 0.6 * took[1]


@pytest.mark.timed
def test_two_workers_at_once_are_refused_soon(builds: Path, tmp_path: Path, took: list[float]) -> None:
    """The launcher is no shell, and waits for both. Neither is seen to its end."""
    start = ("-e", "for (1, 2) { fork or exec @ARGV, $_ } wait; wait", str(build("helpers", builds)), "90000", "start")
    began = time.monotonic()
    with begun(program_of(Path("/usr/bin/perl"), *start), tmp_path / "out") as made:
        said = r"helpers 90000 start (1|2) and helpers 90000 start (?!\1)(1|2) compute at the same time"
        with pytest.raises(ProgramUnsupported, match=said):
            trace_stage.run(made, lambda _: None)
    assert len(took) == 1 and time.monotonic() - began < EARLY_SECONDS
