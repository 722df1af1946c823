# SPDX-License-Identifier: Apache-2.0
"""Run the program once, by itself but for a stamp at every marker: the run that intervals are timed by."""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from checkpoint.errors import Diverged
from checkpoint.event import STAMP, STOP_BEFORE
from checkpoint.process.children import Child
from checkpoint.process.exit_status import exit_status, refuse_killed
from checkpoint.process.plain_run import run_delay
from checkpoint.process.program import Streams
from checkpoint.process.tracee import Tracee, What
from checkpoint.process.waiting import peak_resident, process_cpu
from checkpoint.stubs.encode import Event
from checkpoint.stubs.markers import Marker, MarkerSet
from probe.formats.arrays import FloatArray
from probe.formats.profile import Profile
from probe.formats.timing import Outside
from probe.pipeline.runs.boundaries import Candidate, Place, StampedRun, marker_of
from probe.pipeline.runs.standing import MarkedRun
from probe.tracers.team import refuse_orphans

_PROGRESS_SECONDS = 0.5


class Halts(Protocol):
    """Places at which the run is stopped besides, each of them a candidate's."""

    @property
    def places(self) -> Collection[Place]:
        """Where."""

    def reached(self, run: MarkedRun) -> bool:
        """The run has stopped, and goes on afterwards; whether at one of the places."""


def stamped_run(
    profile: Profile,
    wanted: list[Candidate],
    *,
    streams: Streams,
    cpu: int | None = None,
    progress: Callable[[float], None] | None = None,
    halts: Halts | None = None,
    counted: Collection[int] = (),
    look: Callable[[MarkedRun], None] | None = None,
) -> StampedRun:
    """Run the program once more, untraced but for a stamp at every candidate. `counted`: columns whose executions are
    counted besides. `look` sees the run now and then while it goes on, and may end it by what it raises."""
    events: dict[Marker, dict[int, Event]] = defaultdict(dict)
    halting = halts.places if halts else ()
    for c in wanted:
        place = Place(marker_of(profile, c.column), c.count)
        events[place.marker][c.count] = Event(c.count, STAMP | STOP_BEFORE if place in halting else STAMP)
    marked: dict[Marker, list[Event]] = {marker_of(profile, column): [] for column in counted}
    marked |= {marker: list(those.values()) for marker, those in events.items()}
    with Tracee.start(profile.program, streams, cpu=cpu) as tracee:
        ran = _run_to_exit(tracee, marked, progress, halts, look)
        markers, ended, waited = ran.run.markers, _now(), run_delay(tracee.pid) - ran.delayed
        stamps = _stamps(markers, events)
        resident = peak_resident(tracee.pid)
        columns = {*counted, *(c.column for c in wanted)}
        totals = {c: markers.executions(m) for c in columns if (m := marker_of(profile, c)) not in markers.missing()}
        refuse_orphans(tracee)
        tracee.resume()
        tracee.wait()
        ending = tracee.finish()
        own, others = _cpu_seconds(tracee, ending.cpu)
        children, commands = tuple(map(ran.on_clock, tracee.children.processes())), _commands(tracee)
        active = tuple((began, ended) for began, ended in ran.clock(tracee.helpers.active).tolist())
        starts = tuple(ran.clock(tracee.team.started).tolist()) if tracee.team else ()
    if os.WIFSIGNALED(ran.status):
        exit_status(profile.program, ran.status, streams)
    exit_status(profile.program, ending.status, streams, profile.exit_status)
    found = [stamps.get((marker_of(profile, c.column), c.count)) for c in wanted]
    return StampedRun(
        wall=ran.clock([np.nan if s is None else s.wall for s in found]),
        cpu=np.array([np.nan if s is None else s.cpu for s in found]),
        kernel=np.array([np.nan if s is None else s.kernel for s in found]),
        started=ran.began,
        ended=float(ran.clock([ended])[0]),
        ended_cpu=own,
        children=children,
        active=active,
        starts=starts,
        others=Outside(ending.around, others, commands),
        totals=totals,
        started_cpu=ran.began_cpu,
        executed_cpu=tracee.executed_cpu,
        resident=resident,
        waited=waited,
        halts=tuple(ran.clock(ran.halts).tolist()),
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


@dataclass
class _Ran:
    """A run that stands at its exit event, where its memory can still be read.

    began, began_cpu, delayed: when the program began by the monotonic clock, its own CPU seconds then, and those that
    it had waited for a processor. halts: when it was stopped for a checkpoint. stops: when it stood still, and for how
    long: there, and where the tracer looked at what was loaded.
    """

    run: MarkedRun
    began: float
    began_cpu: float
    delayed: float
    status: int = 0
    halts: list[float] = field(default_factory=list)
    stops: list[tuple[float, float]] = field(default_factory=list)

    def clock(self, times: Any) -> FloatArray:
        """The same times, in their shape, on a clock that stood whenever the run did."""
        at, lasted = np.array(self.stops).reshape(-1, 2).T
        lost = np.cumsum(lasted)
        edges = np.concatenate([[0.0], np.stack([at, at + lasted], axis=1).ravel()])
        until = np.concatenate([[0.0], np.stack([lost - lasted, lost], axis=1).ravel()])
        asked = np.array(times, dtype=np.float64)
        found: FloatArray = asked - np.interp(asked, edges, until)
        return found

    def on_clock(self, child: Child) -> Child:
        """The same process, its life on that clock."""
        ended, kept, gone = (
            None if at is None else float(self.clock(at)) for at in (child.ended, child.kept, child.gone)
        )
        return replace(child, began=float(self.clock(child.began)), ended=ended, kept=kept, gone=gone)


def _run_to_exit(
    tracee: Tracee,
    events: dict[Marker, list[Event]],
    progress: Callable[[float], None] | None,
    halts: Halts | None,
    look: Callable[[MarkedRun], None] | None,
) -> _Ran:
    """Let the program run to its exit event."""
    while True:
        run = MarkedRun(tracee, events)
        run.arm()
        ran = _Ran(run, _now(), process_cpu(tracee.pid), run_delay(tracee.pid))
        tracee.resume()
        replaced = False
        while not replaced:
            occurrence = tracee.wait(_PROGRESS_SECONDS)
            if occurrence.what is What.TIMEOUT:
                if progress:
                    progress(_now() - tracee.started_at)
                if look:
                    look(run)
                continue
            stopped = _now()
            if occurrence.what is What.EXITING:
                ran.status = occurrence.status
                return ran
            if occurrence.what is What.ENDED:
                refuse_killed(tracee.program, occurrence.status)
                raise Diverged(f"{tracee.program.name}: was killed in its timing run (status {occurrence.status})")
            if occurrence.what is What.STOPPED and halts is not None and halts.reached(run):
                ran.halts.append(stopped)
                # Before it goes on: what follows comes when the stop is over.
                ran.stops.append((stopped, _now() - stopped))
                tracee.resume()
                continue
            if occurrence.what is What.EXECUTED:
                tracee.run_to_entry()
                replaced = True
                continue
            if occurrence.what is What.BREAKPOINT:
                run.libraries_changed()
            ran.stops.append((stopped, _now() - stopped))
            tracee.resume()


def _stamps(markers: MarkerSet, events: dict[Marker, dict[int, Event]]) -> dict[tuple[Marker, int], Any]:
    return {
        (marker, count): stamp
        for marker, wanted in events.items()
        for count, stamp in zip(sorted(wanted), markers.stamps(marker), strict=True)
    }
