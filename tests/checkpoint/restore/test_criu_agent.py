# SPDX-License-Identifier: Apache-2.0
"""Processes that do not live until they are timed, and what the agent that lets CRIU restore says of them."""

from __future__ import annotations

import os
import signal
import time

from checkpoint.restore.criu_agent import Spec, time_region

SPEC: Spec = {"region_seconds": 20.0}


def waited(pid: int, deadline: float) -> int | None:
    return os.waitpid(pid, os.WUNTRACED)[1] if time.monotonic() < deadline else None


def dead_child() -> int:
    """A child that a signal has killed and nobody has waited for: it has no memory any more."""
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(1)
    os.kill(child, signal.SIGTERM)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return child


def test_a_process_killed_before_it_is_continued_is_reported_as_killed() -> None:
    child = dead_child()
    assert time_region(SPEC, child, waited) == {"status": "killed", "signal": signal.SIGTERM}


def test_a_process_that_cannot_be_asked_how_it_ended_is_a_failed_restore() -> None:
    child = dead_child()
    try:
        assert time_region(SPEC, child, lambda *_: None)["status"] == "restore"
    finally:
        os.waitpid(child, 0)
