# SPDX-License-Identifier: Apache-2.0
"""Judge the processes that a traced program starts: whether they leave room for phases, and whether they end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import numpy as np

from checkpoint.process.tracee import Tracee
from checkpoint.process.waiting import process_cpu
from probe.tracers.lives import (
    EARLY_SECONDS,
    Lives,
    longest_first,
    refuse_by_time,
    refuse_outliving,
    refuse_without_room,
)

_GRACE_SECONDS = 1.0
"""Helpers end soon after their program: they lose a pipe, or are told to."""


def judge_early(tracee: Tracee, started: float) -> None:
    """Raise ProgramUnsupported where the run so far, since `started`, shows that children leave no room."""
    now = time.monotonic()
    if tracee.children.all and now - started > EARLY_SECONDS:
        with contextlib.suppress(OSError):  # ended since the last wait: the next one says so
            own = process_cpu(tracee.pid)
            refuse_by_time(tracee.program.argv[0], tracee.children, started, now, own)


def judge_children(tracee: Tracee, started: float, seconds: Sequence[float]) -> None:
    """Raise ProgramUnsupported where the whole run, cut into intervals of so many seconds, shows it, or some go on."""
    name = tracee.program.argv[0]
    children = tracee.children.processes()
    if not children:
        return
    tracee.children.await_end(_GRACE_SECONDS)
    refuse_outliving(name, tracee.children.living())
    refuse_by_time(name, tracee.children, started, tracee.ended_at, tracee.own_cpu)
    edges = started + np.concatenate([[0.0], np.cumsum(seconds)])
    if Lives.of(children, tracee.ended_at).beside(edges)[1:-1].all():
        refuse_without_room(name, longest_first(children), len(seconds))
