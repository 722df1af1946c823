# SPDX-License-Identifier: Apache-2.0
"""Run the program once, by itself but for a stamp at every marker: the run that intervals are timed by."""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from checkpoint.errors import Diverged
from checkpoint.event import STAMP
from checkpoint.process.exit_status import exit_status
from checkpoint.process.loader import LoadWatch
from checkpoint.process.plain_run import run_delay
from checkpoint.process.program import Streams
from checkpoint.process.tracee import Tracee, What
from checkpoint.process.waiting import peak_resident, process_cpu
from checkpoint.stubs.encode import Event
from checkpoint.stubs.markers import Marker, MarkerSet
from probe.formats.profile import Profile
from probe.formats.timing import Outside
from probe.pipeline.boundaries import Candidate, StampedRun, marker_of

_PROGRESS_SECONDS = 0.5


def stamped_run(
    profile: Profile,
    wanted: list[Candidate],
    *,
    streams: Streams,
    cpu: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> StampedRun:
    """Run the program once more, untraced but for a stamp at every candidate."""
    events: dict[Marker, dict[int, Event]] = defaultdict(dict)
    for c in wanted:
        events[marker_of(profile, c.column)][c.count] = Event(c.count, STAMP)
    with Tracee.start(profile.program, streams, cpu=cpu) as tracee:
        markers, status, (started, started_cpu, delayed, held) = _run_to_exit(
            tracee, {m: list(e.values()) for m, e in events.items()}, progress
        )
        ended, waited = _now(), run_delay(tracee.pid) - delayed
        stamps = _stamps(markers, events)
        resident = peak_resident(tracee.pid)
        columns = {c.column for c in wanted}
        totals = {c: markers.executions(m) for c in columns if (m := marker_of(profile, c)) not in markers.missing()}
        tracee.resume()
        tracee.wait()
        ending = tracee.finish()
        own, others = _cpu_seconds(tracee, ending.cpu)
        children, commands = tuple(tracee.children.processes()), _commands(tracee)
        active = tuple(tracee.helpers.active)
        starts = tuple(tracee.team.started) if tracee.team else ()
    if os.WIFSIGNALED(status):
        exit_status(profile.program, status, streams)
    exit_status(profile.program, ending.status, streams, profile.exit_status)
    found = [stamps.get((marker_of(profile, c.column), c.count)) for c in wanted]
    return StampedRun(
        wall=np.array([np.nan if s is None else s.wall for s in found]),
        cpu=np.array([np.nan if s is None else s.cpu for s in found]),
        kernel=np.array([np.nan if s is None else s.kernel for s in found]),
        started=started,
        ended=ended,
        ended_cpu=own,
        children=children,
        active=active,
        starts=starts,
        others=Outside(ending.around, others, commands),
        totals=totals,
        started_cpu=started_cpu,
        executed_cpu=tracee.executed_cpu,
        resident=resident,
        waited=waited,
        held=held,
    )


def _cpu_seconds(tracee: Tracee, whole: float) -> tuple[float, float]:
    """Of the ended program's first thread, and of all others: `whole` has the processes that were waited for."""
    others = tracee.children.cpu() + tracee.helpers_cpu if tracee.root is None else math.inf
    others = max(0.0, min(whole - tracee.own_cpu, others))
    return whole - others, others


def _commands(tracee: Tracee) -> tuple[str, ...]:
    """What the other processes executed, and the other threads."""
    around = [child for child in tracee.around.processes() if child.pid != tracee.pid]
    helpers = () if tracee.team else tracee.helpers.names()
    return (*(child.command for child in (*around, *tracee.children.processes())), *helpers)


def _now() -> float:
    return time.monotonic()


def _run_to_exit(
    tracee: Tracee, events: dict[Marker, list[Event]], progress: Callable[[float], None] | None
) -> tuple[MarkerSet, int, tuple[float, float, float, float]]:
    """Let the program run to its exit event, where its memory can still be read.

    Returns the markers, the exit status, when the program began (monotonic clock, its own CPU seconds and those that it
    had waited for a processor), and the seconds for which it was held afterwards.
    """
    while True:
        markers, watch = MarkerSet(tracee, events), LoadWatch(tracee)
        watch.arm()
        markers.install_new(watch)
        began = _now(), process_cpu(tracee.pid), run_delay(tracee.pid)
        tracee.resume()
        replaced, held = False, 0.0
        while not replaced:
            occurrence = tracee.wait(_PROGRESS_SECONDS)
            if occurrence.what is What.TIMEOUT:
                if progress:
                    progress(_now() - tracee.started_at)
                continue
            stopped = _now()
            if occurrence.what is What.EXITING:
                return markers, occurrence.status, (*began, held)
            if occurrence.what is What.ENDED:
                raise Diverged(f"{tracee.program.argv[0]}: was killed in its timing run (status {occurrence.status})")
            if occurrence.what is What.EXECUTED:
                tracee.run_to_entry()
                replaced = True
            elif occurrence.what is What.BREAKPOINT:
                watch.step_over()
                markers.install_new(watch)
                tracee.resume()
            else:
                tracee.resume()
            held += _now() - stopped


def _stamps(markers: MarkerSet, events: dict[Marker, dict[int, Event]]) -> dict[tuple[Marker, int], Any]:
    return {
        (marker, count): stamp
        for marker, wanted in events.items()
        for count, stamp in zip(sorted(wanted), markers.stamps(marker), strict=True)
    }
