# SPDX-License-Identifier: Apache-2.0
"""Judge what a traced program starts: whether processes leave room for phases and end, whether threads just wait."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import numpy as np

from checkpoint.process.children import most_at_once
from checkpoint.process.plain_run import running_time
from checkpoint.process.threads import ADVICE, WorkingThreads
from checkpoint.process.tracee import Tracee
from checkpoint.process.waiting import process_cpu
from probe.tracers.lives import (
    JUDGED_SECONDS,
    Lives,
    longest_first,
    named,
    refuse_by_time,
    refuse_outliving,
    refuse_without_room,
    share_of,
    worked_by,
)

_GRACE_SECONDS = 1.0
"""Helpers end soon after their program: they lose a pipe, or are told to."""


MOST_BY_THREADS = 0.05
"""Share of the CPU time that threads beside the first may have: no phase shows it, as with other processes."""

_LEAST_SECONDS, _MOST_SOON, _MOST_JUDGED = 2.0, 0.5, 0.25
"""Seconds of a run that tell something; the share that threads may have by then, and by JUDGED_SECONDS. Less may be
work of the start, which a longer run makes small."""

_SUSPECTED = (0.5, 0.9)
"""CPU seconds of children, and their share, from which on another look at the program is worth a run more."""


def judge_early(tracee: Tracee, started: float, *, soon: bool) -> None:
    """Raise ProgramUnsupported where the run so far, since `started`, shows that children or threads leave no room.

    `soon`: WorkedByChildren already where children alone have worked up to now, which the rest of the run may disprove.
    """
    if soon and tracee.children.all:
        _suspect_children(tracee)
    now = time.monotonic()
    if now - started < _LEAST_SECONDS:
        return
    # The user waits also while counters are put in.
    judged = now - tracee.started_at > JUDGED_SECONDS
    if tracee.helpers.all and not tracee.team:
        with contextlib.suppress(OSError):
            first, whole = running_time(tracee.pid), process_cpu(tracee.pid)
            _refuse_threads(tracee, whole - first, whole, _MOST_JUDGED if judged else _MOST_SOON)
    if tracee.children.all and judged:
        with contextlib.suppress(OSError):  # ended since the last wait: the next one says so
            own = process_cpu(tracee.pid)
            refuse_by_time(tracee.program.argv[0], tracee.children, started, now, own)


def _suspect_children(tracee: Tracee) -> None:
    seconds, most = _SUSPECTED
    with contextlib.suppress(OSError):
        children, share = tracee.children, share_of(tracee.children, process_cpu(tracee.pid))
        if children.cpu() > seconds and share > most:
            raise worked_by(tracee.program.argv[0], children.processes(), share, so_far=True)


def judge_threads(tracee: Tracee) -> None:
    """Raise ProgramUnsupported where threads beside the first had too much of the ended run's CPU time."""
    if tracee.helpers.all and not tracee.team:
        _refuse_threads(tracee, tracee.helpers_cpu, tracee.own_cpu + tracee.helpers_cpu, MOST_BY_THREADS)


def _refuse_threads(tracee: Tracee, theirs: float, whole: float, most: float) -> None:
    if theirs > most * whole:
        who, at_once = named(tracee.helpers.names()), most_at_once(tracee.helpers.all)
        if at_once < len(tracee.helpers.all):  # a program that starts some for each step is no crowd
            who += f"; at most {at_once} at the same time"
        raise WorkingThreads(
            f"{tracee.program.argv[0]}: {theirs / whole:.0%} of its CPU time is that of threads beside its first one "
            f"({who}); a probe holds one working thread. To go on, {ADVICE}.",
            tracee.helpers.working(whole),
        )


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
