# SPDX-License-Identifier: Apache-2.0
"""Runs with markers draw the random numbers that every other run of a build draws."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
from native_profiles import made
from tracing import SECONDS, compile_small, program_of, streams_of

from checkpoint.process.tracee import Tracee, What
from probe.pipeline import trace
from probe.pipeline.runs.standing import MarkedRun
from probe.pipeline.stage import Build

DRAW = r"""
#include <stdio.h>
#include <sys/random.h>
int main(void)
{
    unsigned long drawn = 0;
    if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn)
        return 1;
    printf("%lu\n", drawn);
}
"""


def test_a_build_that_is_resumed_keeps_its_numbers(tmp_path: Path) -> None:
    profile = made(np.ones((6, 2), dtype=np.int64))
    profile = replace(profile, program=replace(profile.program, seed="kept"), images=())
    folder = SimpleNamespace(file=tmp_path.joinpath)
    first = SimpleNamespace(profile=profile, program=profile.program, folder=folder)
    trace.save(cast(Build, first))
    again = SimpleNamespace(
        program=replace(profile.program, seed="another"), folder=folder, may_take_criu=False, criu=None
    )
    trace.load(cast(Build, again))
    assert again.program.seed == again.profile.program.seed == "kept"


def test_runs_with_markers_draw_the_same(tmp_path: Path) -> None:
    program, said = program_of(compile_small(tmp_path, "draw", DRAW)), set()
    for _ in range(2):
        with streams_of() as streams, Tracee.start(program, streams) as tracee:
            MarkedRun(tracee, {}).arm()
            tracee.resume()
            while tracee.wait(SECONDS).what is not What.ENDED:
                tracee.resume()
            said.add(streams.stdout.read_text())
    assert len(said) == 1 and said != {""}
