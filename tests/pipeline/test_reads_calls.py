# SPDX-License-Identifier: Apache-2.0
"""A program that reads its own calls is traced with its calls as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from native_profiles import INTERVAL
from programs import build
from tracing import program_of

from checkpoint.errors import ProgramFailed
from checkpoint.process.program import Program
from probe.formats.profile import Profile
from probe.pipeline import trace as trace_stage
from probe.pipeline.options import BuildOptions
from probe.pipeline.stage import Build
from probe.progress import Silent
from probe.work_folder import work_folder


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether calls were left alone, of each traced run."""
    tries: list[bool] = []
    trace_program = trace_stage.trace_program

    def noted(program: Program, **options: Any) -> Profile:
        tries.append(program.reads_calls)
        return trace_program(program, **options)

    monkeypatch.setattr(trace_stage, "trace_program", noted)
    return tries


def traced(argv: list[str], tmp_path: Path) -> Profile:
    with work_folder(None, {}, resume=False) as folder:
        program = program_of(Path(argv[0]), *argv[1:])
        made = Build(program, BuildOptions(interval=INTERVAL), folder, None, Silent(), tmp_path / "out", None)
        trace_stage.run(made, lambda _: None)
        return made.profile


def test_its_calls_stay_as_they_are(builds: Path, tmp_path: Path, tried: list[bool]) -> None:
    profile = traced([str(build("callreader", builds)), "40"], tmp_path)
    assert tried == [False, True], "the first run notices that its calls were redirected"
    assert profile.program.reads_calls and profile.intervals > 5
    assert profile.counts.sum() > 40 * 2_000_000


def test_who_fails_without_the_tracer_is_not_traced_again(builds: Path, tmp_path: Path, tried: list[bool]) -> None:
    with pytest.raises(ProgramFailed, match="SIGABRT"):
        traced([str(build("abort", builds)), "200"], tmp_path)
    assert tried == [False]
