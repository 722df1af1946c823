# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of all phases from one native run.

Each phase has three markers: the start of its warm-up, where the process stops itself and is dumped; the start of
the region, and its end. At a dump only the phase's own events are left in the process, so that the restored copy
runs the program's own code with at most two patched instructions.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from checkpoint.criu.images import CheckpointImages, read_checkpoint
from checkpoint.criu.tool import Criu
from checkpoint.criu.unsupported import unsupported
from checkpoint.errors import CriuError, Diverged
from checkpoint.event import STAMP, STOP_AFTER, STOP_BEFORE
from checkpoint.process.descriptors import LARGEST_DELETED, outside, refusal_of_phases
from checkpoint.process.loader import LoadWatch
from checkpoint.process.maps import huge_ranges
from checkpoint.process.program import Program, Streams
from checkpoint.process.tracee import Tracee, What
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.stubs.encode import Event
from checkpoint.stubs.markers import Marker, MarkerSet
from probe.contents.carried_files import copy_written_files, needed_files, set_apart
from probe.formats.checkpoints import CapturedPhase
from probe.formats.intervals import interval_times, vectors
from probe.formats.profile import Profile
from probe.formats.timing import TimedProfile
from probe.pipeline.boundaries import Place, RegionPlan, plan_regions
from probe.pipeline.outputs import output_streams
from probe.pipeline.stage import Build
from probe.pipeline.work_folder import each
from probe.progress import Report
from probe.selection.substitute import another_representative, with_representatives, without_phases
from probe.tracers.worker import let_wrapper_end
from reducer.archive import ContainedFile

NAME = "capture"
OPTIONS: tuple[str, ...] = ()
FILES = ("captured.json", "phase-*", "written-*")

_RESULT = "captured.json"

MOST_LEFT_OUT = 0.05
"""Share of the time of phases that a probe may do without, because none of their intervals can be captured."""

DUMP_SECONDS = 300.0
RUNS = 3
"""Capture runs, each with other intervals for the phases at which the program held what no probe can."""

_DUMPED_STOPPED = 3
_SLOWEST = 20.0
"""A capture run that takes this many times as long as the timing run has missed its markers."""


def capture(
    profile: Profile,
    plans: list[RegionPlan],
    *,
    criu: Criu,
    folder: Path,
    streams: Streams,
    expected_seconds: float,
    cpu: int | None = None,
    progress: Callable[[int], None] | None = None,
    on_dump: Callable[[RegionPlan, CheckpointImages], Mapping[str, Path]],
    unfit: dict[int, list[str]] | None = None,
) -> list[CapturedPhase]:
    """Run the program once and dump every planned phase below `folder`. `progress` gets the phases done.

    `on_dump` is called while the process stands at a phase, and returns the copies it made of files being written.
    `unfit` gets, by phase, what a probe cannot hold and the program held there; without it, that is an error.

    Raises Diverged where a marker is not reached, ProgramUnsupported for state that no probe can hold,
    CriuError, StorageError. The run is ended after the last dump, but for a wrapper's.
    """
    faults: dict[int, list[str]] = {}
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
        run = _CaptureRun(tracee, wanted)
        waiting = dict(stops)
        run.arm()
        tracee.resume()
        while waiting:
            occurrence = tracee.wait(max(0.0, deadline - time.monotonic()))
            if occurrence.what in (What.TIMEOUT, What.ENDED, What.EXITING):
                raise _never_reached(profile, waiting, occurrence.what)
            if occurrence.what is What.STOPPED and (reached := run.stopped_at(waiting)) is not None:
                for plan in waiting.pop(reached):
                    try:
                        captured.append(run.dump(plan, criu, folder, on_dump))
                    except _Unfit as error:
                        faults[plan.phase] = error.faults
                    if progress:
                        progress(len(captured) + len(faults))
                if waiting:
                    tracee.continue_from_stop()
                continue
            if occurrence.what is What.EXECUTED:
                tracee.run_to_entry()
                run = _CaptureRun(tracee, wanted)
                run.arm()
            elif occurrence.what is What.BREAKPOINT:
                run.libraries_changed()
            tracee.resume()
        if profile.program.worker is not None:
            run.watch.disarm()
            let_wrapper_end(tracee, deadline)
    if unfit is None and faults:
        raise refusal_of_phases(profile.program.argv[0], faults)
    if unfit is not None:
        unfit.update(faults)
    return captured


class _Unfit(Exception):
    """What a probe cannot hold is there where a phase starts."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def _never_reached(profile: Profile, waiting: Mapping[Place, list[RegionPlan]], what: What) -> Diverged:
    phases = sorted(plan.phase for plans in waiting.values() for plan in plans)
    return Diverged(
        f"{profile.program.argv[0]}: the capture run did not reach the markers of phases {phases} ({what.value}); "
        "its control flow changes between runs (time, random numbers, process number, changed input files?)"
    )


class _CaptureRun:
    """The markers of one program image and the stops they make."""

    def __init__(self, tracee: Tracee, wanted: Mapping[Marker, list[Event]]) -> None:
        self.tracee = tracee
        self.markers = MarkerSet(tracee, wanted)
        self.watch = LoadWatch(tracee)

    def arm(self) -> None:
        self.watch.arm()
        self.markers.install_new(self.watch)

    def libraries_changed(self) -> None:
        self.watch.step_over()
        self.markers.install_new(self.watch)

    def stopped_at(self, waiting: Mapping[Place, list[RegionPlan]]) -> Place | None:
        """The place whose event has just stopped the process."""
        reached = {Place(marker, count) for marker, count in self.markers.due()}
        return next((place for place in waiting if place in reached), None)

    def dump(
        self,
        plan: RegionPlan,
        criu: Criu,
        folder: Path,
        on_dump: Callable[[RegionPlan, CheckpointImages], Mapping[str, Path]],
    ) -> CapturedPhase:
        """Dump the stopped process with the events of `plan` alone; afterwards it is attached and stopped."""
        target = folder / f"phase-{plan.phase}"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(mode=0o700, parents=True)
        if found := outside(self.tracee.pid):
            raise _Unfit(found)
        huge = tuple(huge_ranges(self.tracee.pid))
        region: dict[Marker, list[Event]] = defaultdict(list)
        if plan.start != plan.warm:
            region[plan.start.marker].append(Event(plan.start.count, STAMP))
        region[plan.end.marker].append(Event(plan.end.count, STAMP | STOP_AFTER))
        armed = self.watch.armed
        if armed:
            self.watch.disarm()
        with self.markers.only(region) as addresses:
            warm_event = self.markers.event_address(plan.warm.marker, plan.warm.count)
            counts = {m: sorted(e.count for e in events) for m, events in region.items()}

            def address(place: Place) -> int:
                return addresses[place.marker][counts[place.marker].index(place.count)]

            start_event = warm_event if plan.start == plan.warm else address(plan.start)
            end_event = address(plan.end)
            if self.tracee.attached:
                self.tracee.detach(leave_stopped=True)
            self.tracee.wait_until_stopped()
            criu.dump(
                self.tracee.pid, target, leave_stopped=True, timeout=DUMP_SECONDS, largest_deleted=LARGEST_DELETED
            )
            self.tracee.wait_until_stopped()
            self.tracee.reattach()
        if armed:
            self.watch.arm()
        copies = on_dump(plan, self._checked(target))
        return CapturedPhase(
            phase=plan.phase,
            interval=plan.representative,
            folder=target.name,
            pid=self.tracee.pid,
            warmup=plan.warmup,
            warm_event=warm_event,
            start_event=start_event,
            end_event=end_event,
            written={path: str(copy.relative_to(folder)) for path, copy in copies.items()},
            huge=huge,
        )

    def _checked(self, folder: Path) -> CheckpointImages:
        # A time namespace image makes CRIU enter a new one, for which a restored process has no use.
        for image in folder.glob("timens-*.img"):
            image.unlink()
        with contextlib.suppress(FileNotFoundError):
            (folder / "dump.log").unlink()
        images = read_checkpoint(folder)
        if problems := unsupported(images):
            raise _Unfit(problems)
        if images.state != _DUMPED_STOPPED:
            raise CriuError(f"{folder}: the process was not dumped in its stopped state; use CRIU 4.1 or newer")
        return images


def captured_outputs(folder: Path) -> tuple[str, str]:
    """Files for the output of the capture run whose checkpoints are below `folder`."""
    return str(folder / f"{NAME}.stdout"), str(folder / f"{NAME}.stderr")


def take_checkpoints(
    profile: Profile,
    timed: TimedProfile,
    plans: list[RegionPlan],
    *,
    criu: Criu,
    folder: Path,
    cpu: int | None,
    progress: Callable[[float], None],
    unfit: dict[int, list[str]] | None = None,
) -> list[CapturedPhase]:
    """One capture run: every plan's checkpoint, and copies of the files it was writing, below `folder`.

    `progress` gets the share done; `unfit` as for `capture`. Raises as `capture` does.
    """
    begun = time.time()
    return capture(
        profile,
        plans,
        criu=criu,
        folder=folder,
        streams=output_streams(folder, NAME),
        expected_seconds=timed.wall_seconds,
        cpu=cpu,
        progress=lambda done: progress(done / len(plans)),
        on_dump=lambda plan, images: copy_written_files(
            images, folder / f"written-{plan.phase}", captured_outputs(folder), since=begun
        ),
        unfit=unfit,
    )


def written_copies(folder: Path, phase: CapturedPhase) -> dict[str, Path]:
    """Copies of the files that `phase` had open for writing, by their paths."""
    return {path: folder / copy for path, copy in phase.written.items()}


def restore_job(program: Program, timed: TimedProfile, folder: Path, phase: CapturedPhase, images: str) -> RestoreJob:
    """What it takes to restore `phase`, captured below `folder`, from the folder `images` in it."""
    seconds = timed.seconds[phase.interval - phase.warmup : phase.interval + 1].sum()
    return RestoreJob(
        phase=phase.phase,
        images=folder / images,
        outputs=captured_outputs(folder),
        folders=(program.probed_cwd,),
        binds=(),
        written=[(str(copy), path) for path, copy in written_copies(folder, phase).items()],
        warm_event=phase.warm_event,
        start_event=phase.start_event,
        end_event=phase.end_event,
        expected_seconds=float(seconds),
    )


def checkpoint_files(
    folder: Path,
    program: Program,
    captured: Sequence[CapturedPhase],
    outputs: tuple[str, ...],
    opened: Sequence[str] = (),
) -> list[ContainedFile]:
    """The files that the checkpoints below `folder` map or read, or open (`opened`) while they run."""
    images = [(read_checkpoint(folder / c.folder), c.written) for c in captured]
    return needed_files(images, os.path.realpath(program.probed_executable), outputs, opened)


def run(build: Build, report: Report) -> None:
    """Take every phase's checkpoint: in one run, and where something is held at a phase that a probe cannot hold, with
    another interval of the phase in a further run. Raises as `capture` does."""
    tried = {phase.id: [phase.representative] for phase in build.selection.phases}
    faults: dict[int, list[str]] = {}
    done: list[CapturedPhase] = []
    wanted = set(tried)
    for number in range(RUNS):
        plans = plan_regions(build.profile, build.timed, build.selection, build.warmup.chosen)
        unfit: dict[int, list[str]] = {}
        done += take_checkpoints(
            build.profile,
            build.timed,
            [plan for plan in plans if plan.phase in wanted],
            criu=build.criu,
            folder=build.folder.path,
            cpu=build.cpu,
            progress=report,
            unfit=unfit,
        )
        for phase, found in unfit.items():
            faults[phase] = list(dict.fromkeys([*faults.get(phase, ()), *found]))
        wanted = set(unfit)
        # What all phases hold twice over, others will hold too.
        if not unfit or (number and not done) or not _take_others(build, tried, unfit):
            break
    if sum(p.time_share for p in build.selection.phases if p.id in wanted) > MOST_LEFT_OUT:
        raise refusal_of_phases(build.program.argv[0], faults)
    build.captured = [replace(c, instead=_why(faults.get(c.phase))) for c in sorted(done, key=_place)]
    _leave_out(build)


def _leave_out(build: Build) -> None:
    """Do without phases of which there is no checkpoint."""
    there = {c.phase for c in build.captured}
    for phase in build.selection.phases:
        if phase.id not in there:
            build.warnings.append(
                f"phase {phase.id}, with {phase.time_share:.1%} of the time, is left out: the program held something "
                "that no probe can at every interval tried"
            )
    build.selection = without_phases(build.selection, {p.id for p in build.selection.phases} - there)


def _place(phase: CapturedPhase) -> int:
    return phase.interval


def _why(faults: Sequence[str] | None) -> str:
    return "; ".join(faults or ())


def _take_others(build: Build, tried: dict[int, list[int]], unfit: Collection[int]) -> bool:
    """Let other intervals stand for the phases `unfit`, and note them in `tried`; whether every one has another."""
    rows, seconds = vectors(build.profile, build.timed), interval_times(build.timed, build.reference)
    for phase in build.selection.phases:
        if phase.id in unfit:
            other = another_representative(phase.members, rows, seconds, tried[phase.id])
            if other is None:
                return False
            tried[phase.id].append(other)
    build.selection = with_representatives(build.selection, {phase: found[-1] for phase, found in tried.items()})
    return True


def save(build: Build) -> None:
    build.folder.write_json(_RESULT, [phase.to_json() for phase in build.captured])


def load(build: Build) -> None:
    build.captured = build.folder.read(_RESULT, each(CapturedPhase.from_json))
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
