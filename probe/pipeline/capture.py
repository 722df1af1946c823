# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of all phases from one native run.

Each phase has three markers: the start of its warm-up, where the process stops itself and is dumped; the start of
the region, and its end. At a dump only the phase's own events are left in the process, so that the restored copy
runs the program's own code with at most two patched instructions.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from checkpoint.capture.by_criu import DUMP_SECONDS
from checkpoint.capture.stored import NAME as STATE
from checkpoint.criu.tool import Criu, find_criu
from checkpoint.errors import Diverged, ProbeError, ProgramFailed
from checkpoint.event import STAMP, STOP_BEFORE
from checkpoint.process.descriptors import ONLY_CRIU, refusal_of_phases
from checkpoint.process.exit_status import refuse_killed, signal_name
from checkpoint.process.program import Streams
from checkpoint.process.tracee import Occurrence, Tracee, What
from checkpoint.stubs.encode import Event
from checkpoint.stubs.markers import Marker
from probe.contents.captured_files import CAPTURE_RUN, captured_outputs, checkpoint_files
from probe.contents.carried_files import set_apart
from probe.formats.checkpoints import CapturedPhase
from probe.formats.intervals import interval_times, vectors
from probe.formats.profile import Profile
from probe.formats.timing import TimedProfile
from probe.pipeline.at_once import remove_checkpoint, taken
from probe.pipeline.outputs import bounded_outputs, output_streams, remove_output
from probe.pipeline.reduce import reduced_at_once, room_sentence
from probe.pipeline.runs.boundaries import Place, RegionPlan, plan_regions
from probe.pipeline.runs.plan import FullRuns
from probe.pipeline.runs.standing import CopyWritten, MarkedRun, Unfit, copies_of_written
from probe.pipeline.stage import LEAST_COVERAGE, Build
from probe.progress import Report
from probe.selection.substitute import another_representative, with_representatives, without_phases
from probe.tracers.team import refuse_orphans
from probe.tracers.worker import let_end
from probe.work_folder import each

NAME = CAPTURE_RUN
OPTIONS = ("capture", "reduce")
FILES = ("captured.json", "phase-*", "kept-pages.*", "written-*", "touched-*.bin")

_RESULT = "captured.json"

MOST_LEFT_OUT = 1 - LEAST_COVERAGE
"""Share of the time of phases that a probe may do without, because none of their intervals can be captured."""

RUNS = 3
"""Capture runs, each with other intervals for the phases at which the program held what no probe can."""

_OTHERWISE = "another count of executions than the timing run had shown"

_SLOWEST = 20.0
"""A capture run that takes this many times as long as the timing run has missed its markers."""

_REST, _GRACE_SECONDS = 2.0, 10.0
"""Behind the last dump a run that writes files goes on for this many times the timing run's length at most, and so many
seconds: half a file may be what the next run begins with. TeX reads what the run before has noted."""


@dataclass
class Lost:
    """Phases without a checkpoint, by number. `unfit`: what the program held there that a probe cannot; `strayed`: the
    run had gone another way than the timing run."""

    unfit: dict[int, list[str]] = field(default_factory=dict)
    strayed: dict[int, Diverged] = field(default_factory=dict)

    @property
    def phases(self) -> set[int]:
        return self.unfit.keys() | self.strayed.keys()

    def note(self, phase: int, why: Unfit | Diverged) -> None:
        """One phase, which could not be captured in this run."""
        if isinstance(why, Unfit):
            self.unfit[phase] = why.faults
        else:
            self.strayed[phase] = why

    def add(self, other: Lost) -> None:
        """What another run lost besides."""
        for phase, found in other.unfit.items():
            self.unfit[phase] = list(dict.fromkeys([*self.unfit.get(phase, ()), *found]))
        self.strayed.update(other.strayed)

    def refusal(self, name: str, phases: Collection[int]) -> ProbeError:
        """What refuses the program for these phases."""
        strayed = [self.strayed[phase] for phase in sorted(phases) if phase in self.strayed]
        unfit = {phase: found for phase, found in self.unfit.items() if phase in phases}
        return refusal_of_phases(name, unfit) if unfit or not strayed else strayed[0]

    def why(self, phase: int) -> str:
        """Why another interval stands for a phase; "" where none does."""
        return "; ".join([*self.unfit.get(phase, ()), *([_OTHERWISE] if phase in self.strayed else ())])


def capture(
    profile: Profile,
    plans: list[RegionPlan],
    *,
    criu: Criu | None,
    folder: Path,
    streams: Streams,
    expected_seconds: float,
    cpu: int | None = None,
    progress: Callable[[int], None] | None = None,
    on_dump: CopyWritten,
    on_captured: Callable[[CapturedPhase], CapturedPhase] = lambda phase: phase,
    lost: Lost | None = None,
) -> list[CapturedPhase]:
    """Run the program once and capture every planned phase below `folder`. `progress` gets the phases done.

    `criu` takes the checkpoints; without it they are captured directly, as any user. `on_dump` is called while the
    process stands at a phase, and returns the copies it made of files being written. `on_captured` gets the finished
    checkpoint before the process goes on, and returns what became of it.
    `lost` gets the phases of which there is no checkpoint; without it, that is an error.

    Raises Diverged where a marker is not reached, ProgramUnsupported for state that no probe can hold,
    CriuError, StorageError. The run is ended after the last dump, but for a wrapper's and one that was seen writing
    files.
    """
    missing = Lost()
    stops: dict[Place, list[RegionPlan]] = defaultdict(list)
    events: dict[Marker, dict[int, Event]] = defaultdict(dict)
    for plan in plans:
        stops[plan.warm].append(plan)
        events[plan.warm.marker][plan.warm.count] = Event(plan.warm.count, STOP_BEFORE | STAMP)
        for place in (plan.start, plan.end):
            events.setdefault(place.marker, {})
    wanted = {marker: list(found.values()) for marker, found in events.items()}
    captured: list[CapturedPhase] = []
    deadline = time.monotonic() + _SLOWEST * expected_seconds + DUMP_SECONDS
    with Tracee.start(profile.program, streams, cpu=cpu) as tracee:
        run = MarkedRun(tracee, wanted)
        waiting = dict(stops)
        run.arm()
        tracee.resume()
        while waiting:
            occurrence = tracee.wait(max(0.0, deadline - time.monotonic()))
            if occurrence.what in (What.TIMEOUT, What.ENDED, What.EXITING):
                if occurrence.what is not What.TIMEOUT:
                    refuse_killed(profile.program, occurrence.status)
                    if occurrence.what is What.EXITING:
                        refuse_orphans(tracee)
                    _refuse_ended(tracee, waiting, occurrence.status)
                error = _never_reached(tracee, waiting, occurrence)
                if occurrence.what is What.TIMEOUT or profile.program.worker is not None:
                    raise error
                missing.strayed.update((plan.phase, error) for plans in waiting.values() for plan in plans)
                break
            if occurrence.what is What.STOPPED and (reached := run.stopped_at(waiting)) is not None:
                stood = time.monotonic()
                for plan in waiting.pop(reached):
                    try:
                        phase = run.dump(plan, criu, folder, on_dump)
                        begun = time.monotonic()
                        phase = on_captured(phase)
                        deadline += time.monotonic() - begun
                        captured.append(replace(phase, standing=time.monotonic() - stood))
                    except (Unfit, Diverged) as error:
                        missing.note(plan.phase, error)
                        remove_checkpoint(folder, plan.phase)
                    if progress:
                        progress(len(captured) + len(missing.phases))
                if waiting:
                    run.go_on(criu)
                continue
            if occurrence.what is What.EXECUTED:
                tracee.run_to_entry()
                run = MarkedRun(tracee, wanted)
                run.arm()
            elif occurrence.what is What.BREAKPOINT:
                run.libraries_changed()
            tracee.resume()
        if not waiting and (profile.program.worker is not None or profile.written):
            run.watch.disarm()
            run.go_on(criu)
            if profile.program.worker is None:
                deadline = min(deadline, time.monotonic() + _REST * expected_seconds + _GRACE_SECONDS)
            let_end(tracee, deadline)
    if lost is None and missing.phases:
        raise missing.refusal(profile.program.name, missing.phases)
    if lost is not None:
        lost.unfit, lost.strayed = missing.unfit, missing.strayed
    return captured


def _phases(waiting: Mapping[Place, list[RegionPlan]]) -> list[int]:
    return sorted(plan.phase for plans in waiting.values() for plan in plans)


def _refuse_ended(tracee: Tracee, waiting: Mapping[Place, list[RegionPlan]], status: int) -> None:
    """Raise ProgramFailed where a signal has ended the run, as this wait status says."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        raise ProgramFailed(
            f"{tracee.program.name}: was killed by signal {number} ({signal_name(number)}) in the capture run, "
            f"before it reached the markers of phases {_phases(waiting)}; the runs before it were not"
        )


def _never_reached(tracee: Tracee, waiting: Mapping[Place, list[RegionPlan]], occurrence: Occurrence) -> Diverged:
    name, phases = tracee.program.name, _phases(waiting)
    if tracee.children.strayed:
        return Diverged(
            f"{name}: a process that it starts (vfork) reaches the markers of phases {phases} in its stead; choose "
            "another --interval"
        )
    return Diverged(
        f"{name}: the capture run did not reach the markers of phases {phases} ({occurrence.what.value}); "
        "its control flow changes between runs (time, random numbers, process number, changed input files?)"
    )


def take_checkpoints(
    profile: Profile,
    timed: TimedProfile,
    plans: list[RegionPlan],
    *,
    criu: Criu | None,
    folder: Path,
    cpu: int | None,
    progress: Callable[[float], None],
    on_captured: Callable[[CapturedPhase], CapturedPhase] = lambda phase: phase,
    lost: Lost | None = None,
) -> list[CapturedPhase]:
    """One capture run: every plan's checkpoint, and copies of the files it was writing, below `folder`.

    `progress` gets the share done; `on_captured` and `lost` as for `capture`. Raises as `capture` does.
    """
    begun = time.time()
    # It prints the beginning of what other runs print, and is compared with none.
    with bounded_outputs(folder, unread=NAME):
        captured = capture(
            profile,
            plans,
            criu=criu,
            folder=folder,
            streams=output_streams(folder, NAME),
            expected_seconds=timed.wall_seconds,
            cpu=cpu,
            progress=lambda done: progress(done / len(plans)),
            on_dump=copies_of_written(folder, begun),
            on_captured=on_captured,
            lost=lost,
        )
    remove_output(folder, NAME)
    return captured


def runs(plan: FullRuns) -> int:
    """The run that checkpoints are taken from, unless the timing run is."""
    return 0 if plan.at_once else 1


def run(build: Build, report: Report) -> None:
    """Take every phase's checkpoint: that of the timing run, or all in one run; and where something is held at a phase
    that a probe cannot hold, or the run has strayed there, with another interval of the phase in a further run. A phase
    is reduced before the next is captured. Raises as `capture` does."""
    if early := taken(build):
        build.captured = sorted(early, key=_place)
        return
    if build.timed.resident:
        build.display.note(room_sentence(build.folder.path, len(build.selection.phases), build.timed.resident))
    name, every = build.program.name, Lost()
    tried = {phase.id: [phase.representative] for phase in build.selection.phases}
    done: list[CapturedPhase] = []
    wanted = set(tried)
    for number in range(RUNS):
        plans = plan_regions(build.profile, build.timed, build.selection, build.warmup.chosen)
        lost = Lost()
        done += take_checkpoints(
            build.profile,
            build.timed,
            [plan for plan in plans if plan.phase in wanted],
            criu=build.criu,
            folder=build.folder.path,
            cpu=build.cpu,
            progress=report,
            on_captured=lambda phase: reduced_at_once(build, phase, build.folder.path),
            lost=lost,
        )
        for_criu = build.may_take_criu and all(_for_criu(found) for found in lost.unfit.values())
        if not done and (lost.strayed or for_criu):
            raise lost.refusal(name, lost.phases)
        every.add(lost)
        # What all phases hold twice over, others will hold too.
        wanted = _take_others(build, tried, lost.phases) if done or not number else set()
        if not wanted:
            break
    missing = tried.keys() - {c.phase for c in done}
    if sum(p.time_share for p in build.selection.phases if p.id in missing) > MOST_LEFT_OUT:
        raise every.refusal(name, missing)
    build.captured = [replace(c, instead=every.why(c.phase)) for c in sorted(done, key=_place)]
    _leave_out(build)


def _for_criu(faults: Sequence[str]) -> bool:
    return any(fault.endswith(ONLY_CRIU) for fault in faults)


def _leave_out(build: Build) -> None:
    """Do without phases of which there is no checkpoint."""
    there = {c.phase for c in build.captured}
    for phase in build.selection.phases:
        if phase.id not in there:
            build.warnings.append(
                f"phase {phase.id}, with {phase.time_share:.1%} of the time, is left out: the program held something "
                "that no probe can, or had strayed, at every interval tried"
            )
    build.selection = without_phases(build.selection, {p.id for p in build.selection.phases} - there)


def _place(phase: CapturedPhase) -> int:
    return phase.interval


def _take_others(build: Build, tried: dict[int, list[int]], lost: Collection[int]) -> set[int]:
    """Let other intervals stand for the phases `lost`, and note them in `tried`; the phases that have another."""
    found = set[int]()
    rows, seconds = vectors(build.profile, build.timed), interval_times(build.timed, build.reference)
    for phase in build.selection.phases:
        if phase.id in lost:
            other = another_representative(phase.members, rows, seconds, tried[phase.id])
            if other is not None:
                tried[phase.id].append(other)
                found.add(phase.id)
    build.selection = with_representatives(build.selection, {phase: of[-1] for phase, of in tried.items()})
    return found


def save(build: Build) -> None:
    build.folder.write_json(_RESULT, [phase.to_json() for phase in build.captured])


def load(build: Build) -> None:
    build.captured = build.folder.read(_RESULT, each(CapturedPhase.from_json))
    if build.criu is None and not all((build.folder.path / c.folder / STATE).exists() for c in build.captured):
        build.criu = find_criu()
        build.notes.append("checkpoints are captured by CRIU: the program holds what direct capture cannot hold")
    build.selection = with_representatives(build.selection, {c.phase: c.interval for c in build.captured})
    _leave_out(build)


def doubts(build: Build) -> list[str]:
    """None but notes; and a wrong name in `--external` must not end the build at its very end. Raises ProbeError."""
    build.notes += [
        f"phase {c.phase}: interval {c.interval} stands for it, since at the nearest one the program held {c.instead}"
        for c in build.captured
        if c.instead
    ]
    if build.options.external:
        outputs = captured_outputs(build.folder.path)
        set_apart(checkpoint_files(build.folder.path, build.program, build.captured, outputs), build.options.external)
    return []
