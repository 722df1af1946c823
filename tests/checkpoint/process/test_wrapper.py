# SPDX-License-Identifier: Apache-2.0
"""Waiting for a wrapper: until its worker has begun, and once that has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from programs import build
from tracing import SECONDS, compile_small, program_of, streams_of

from checkpoint.errors import Diverged
from checkpoint.process import wrapper
from checkpoint.process.program import Program, Worker
from checkpoint.process.tracee import Tracee, What
from checkpoint.process.wrapper import survey
from probe.tracers.worker import let_end

Write = Callable[..., Program]

# A child holds the program's output open for a moment longer.
LINGERS = r"""
#include <unistd.h>
int main(void)
{
    if (fork() == 0)
        usleep(200000);
    return 0;
}
"""


@pytest.fixture
def script(tmp_path: Path) -> Write:
    """script(WORKER, LINES): a script in which the file WORKER is the program `worker`, and the worker."""

    def written(worker: Path, lines: str) -> Program:
        path = tmp_path / "run"
        path.write_text(f"#!/bin/sh\n{lines}\n".replace("worker", str(worker)))
        path.chmod(0o755)
        return replace(program_of(path), worker=Worker(str(worker), 0, (worker.name,), "/"))

    return written


def ended(tracee: Tracee) -> None:
    tracee.resume()
    while (occurrence := tracee.wait(SECONDS)).what is not What.ENDED:
        assert occurrence.what is not What.TIMEOUT
        tracee.resume()


@pytest.mark.timeout(60)
def test_a_wrapper_that_waits_for_its_workers_child(script: Write, tmp_path: Path) -> None:
    program = script(compile_small(tmp_path, "lingers", LINGERS), "said=$(worker); exit 3")
    with streams_of() as streams, Tracee.start(program, streams) as tracee:
        ended(tracee)
        assert len(tracee.children.living()) == 1
        assert tracee.finish().status == 3 << 8
        assert tracee.children.living() == []


@pytest.mark.timeout(60)
def test_a_wrapper_that_waits_for_nothing(script: Write, builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where an earlier run has left a lock. What computes now and then goes on."""
    monkeypatch.setattr(wrapper, "IDLE_SECONDS", 0.5)
    helpers = build("helpers", builds)
    begin = "i=0; while [ $i -lt 8 ]; do sleep 0.2; i=$((i+1)); done; "
    before = r"computed for 0.5 s \((run|sh).*, sleep 100\), and it has not executed /.*helpers; does"
    with streams_of() as streams, pytest.raises(Diverged, match=before):
        Tracee.start(script(helpers, begin + "sleep 100; worker 20"), streams)
    with streams_of() as streams, Tracee.start(script(helpers, begin + "worker 20; sleep 100"), streams) as tracee:
        ended(tracee)
        with pytest.raises(Diverged, match=r"sleep 100\), and it has not ended; does it"):
            tracee.finish()
    with streams_of() as streams, pytest.raises(Diverged, match=r"sleep 100\), and it has not ended; does it"):
        survey(script(helpers, begin + "worker 20; sleep 100"), streams)


def test_a_wrapper_that_goes_on_is_left_at_the_deadline(script: Write, builds: Path) -> None:
    begun = time.monotonic()
    with (
        streams_of() as streams,
        Tracee.start(script(build("helpers", builds), "worker 20; sleep 100"), streams) as tracee,
    ):
        tracee.resume()
        let_end(tracee, time.monotonic() + 2)
        assert tracee.status == 0
    assert time.monotonic() - begun < SECONDS
