# SPDX-License-Identifier: Apache-2.0
"""Traces and profiles by the Valgrind tracer, for tests of what is in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import build, run
from tracing import INTERVAL, Traced, program_of, recorded_run, streams_of

from probe.formats.profile import Profile
from probe.tracers.valgrind import trace


def traced(path: Path, *arguments: str, interval: int = INTERVAL) -> Traced:
    return recorded_run(program_of(path, *arguments), interval)


def profile_of(path: Path, *arguments: str, interval: int = 1_000_000) -> Profile:
    with streams_of() as streams:
        profile = trace(program_of(path, *arguments), interval=interval, streams=streams)
        assert streams.stdout.read_text() == run(path, *arguments).stdout
    return profile


@pytest.fixture(scope="module")
def sorter(builds: Path) -> Profile:
    return profile_of(build("sorter", builds), "1", interval=50_000_000)
