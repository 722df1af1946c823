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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpoint.capture.direct import capture_process
from checkpoint.capture.stored import read_state
from checkpoint.criu.tool import Criu
from checkpoint.criu.unsupported import unsupported
from checkpoint.errors import CriuError, Diverged, ProgramUnsupported
from checkpoint.event import STAMP, STOP_AFTER, STOP_BEFORE
from checkpoint.flat.convert import flatten
from checkpoint.flat.image import NAME as FLAT_NAME
from checkpoint.flat.image import FlatImage, encode
from checkpoint.process.descriptors import refuse_outside_descriptors
from checkpoint.process.loader import LoadWatch
from checkpoint.process.maps import huge_ranges
from checkpoint.process.program import Program, Streams
from checkpoint.process.tracee import Tracee, What
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.state.process_state import STOPPED, ProcessState
from checkpoint.stubs.encode import Event
from checkpoint.stubs.markers import Marker, MarkerSet
from probe.contents.carried_files import copy_written_files, needed_files, set_apart
from probe.formats.checkpoints import CapturedPhase
from probe.formats.profile import Profile
from probe.formats.selection import Selection
from probe.formats.timing import TimedProfile
from probe.pipeline.outputs import output_streams
from probe.pipeline.stage import Build
from probe.pipeline.validate import marker_of
from probe.pipeline.work_folder import each
from probe.progress import Report
from reducer.archive import ContainedFile

NAME = "capture"
OPTIONS = ("capture",)
FILES = ("captured.json", "phase-*", "written-*")

_RESULT = "captured.json"

DUMP_SECONDS = 300.0
_SLOWEST = 20.0
"""A capture run that takes this many times as long as the timing run has missed its markers."""


@dataclass(frozen=True)
class Place:
    """A boundary as a place in the run: the `count`-th execution of a marker."""

    marker: Marker
    count: int


@dataclass(frozen=True)
class RegionPlan:
    """Where a phase's warm-up starts, its region starts and ends. Without warm-up the first two are one."""

    phase: int
    representative: int
    warmup: int
    warm: Place
    start: Place
    end: Place


def plan_regions(profile: Profile, timed: TimedProfile, selection: Selection, warmup: int) -> list[RegionPlan]:
    """The three places of every phase, in the order of the run. `warmup` in intervals, less near the start."""
    phases = sorted(selection.phases, key=lambda p: p.representative)
    return [plan_region(profile, timed, phase.id, phase.representative, warmup) for phase in phases]


def plan_region(profile: Profile, timed: TimedProfile, phase: int, interval: int, warmup: int) -> RegionPlan:
    """The three places of `interval` as the region of a checkpoint with the number `phase`."""

    def place(boundary: int) -> Place:
        column, count = int(timed.columns[boundary - 1]), int(timed.executions[boundary - 1])
        return Place(marker_of(profile, column), count)

    length = min(warmup, interval - 1)
    return RegionPlan(phase, interval, length, place(interval - length), place(interval), place(interval + 1))


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
    on_dump: Callable[[RegionPlan, ProcessState], Mapping[str, Path]],
) -> list[CapturedPhase]:
    """Run the program once and capture every planned phase below `folder`. `progress` gets the phases done.

    `criu` takes the checkpoints; without it they are captured directly, as any user. `on_dump` is called while the
    process stands at a phase, and returns the copies it made of files being written.

    Raises Diverged where a marker is not reached, ProgramUnsupported for state that no probe can hold,
    CriuError, StorageError. The run is ended after the last dump.
    """
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
                    captured.append(run.dump(plan, criu, folder, on_dump))
                    if progress:
                        progress(len(captured))
                if waiting and criu is not None:
                    tracee.continue_from_stop()
                elif waiting:
                    tracee.resume()
                continue
            if occurrence.what is What.EXECUTED:
                tracee.run_to_entry()
                run = _CaptureRun(tracee, wanted)
                run.arm()
            elif occurrence.what is What.BREAKPOINT:
                run.libraries_changed()
            tracee.resume()
    return captured


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
        criu: Criu | None,
        folder: Path,
        on_dump: Callable[[RegionPlan, ProcessState], Mapping[str, Path]],
    ) -> CapturedPhase:
        """Capture the stopped process with the events of `plan` alone; afterwards it is attached and stopped."""
        target = folder / f"phase-{plan.phase}"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(mode=0o700, parents=True)
        refuse_outside_descriptors(self.tracee.pid, self.tracee.program.argv[0])
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
            if criu is not None:
                huge = tuple(huge_ranges(self.tracee.pid))
                state = self._dumped(criu, target)
            else:
                done = capture_process(self.tracee, target, f"phase {plan.phase}")
                state, huge = done.state, done.huge
        if armed:
            self.watch.arm()
        self._refuse_unsupported(state)
        copies = on_dump(plan, state)
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

    def _dumped(self, criu: Criu, folder: Path) -> ProcessState:
        if self.tracee.attached:
            self.tracee.detach(leave_stopped=True)
        self.tracee.wait_until_stopped()
        criu.dump(self.tracee.pid, folder, leave_stopped=True, timeout=DUMP_SECONDS)
        self.tracee.wait_until_stopped()
        self.tracee.reattach()
        # A time namespace image makes CRIU enter a new one, for which a restored process has no use.
        for image in folder.glob("timens-*.img"):
            image.unlink()
        with contextlib.suppress(FileNotFoundError):
            (folder / "dump.log").unlink()
        state = read_state(folder)
        if not unsupported(state) and state.state != STOPPED:
            raise CriuError(f"{folder}: the process was not dumped in its stopped state; use CRIU 4.1 or newer")
        return state

    def _refuse_unsupported(self, state: ProcessState) -> None:
        if problems := unsupported(state):
            raise ProgramUnsupported(
                f"{self.tracee.program.argv[0]}: a probe cannot hold {'; '.join(problems)}. "
                "Close it before the computation starts, or probe the computing program by itself."
            )


def captured_outputs(folder: Path) -> tuple[str, str]:
    """Files for the output of the capture run whose checkpoints are below `folder`."""
    return str(folder / f"{NAME}.stdout"), str(folder / f"{NAME}.stderr")


def take_checkpoints(
    profile: Profile,
    timed: TimedProfile,
    plans: list[RegionPlan],
    *,
    criu: Criu | None,
    folder: Path,
    cpu: int | None,
    progress: Callable[[float], None],
) -> list[CapturedPhase]:
    """One capture run: every plan's checkpoint, and copies of the files it was writing, below `folder`.

    `progress` gets the share done. Raises as `capture` does.
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
        folders=(program.cwd,),
        binds=(),
        written=[(str(copy), path) for path, copy in written_copies(folder, phase).items()],
        warm_event=phase.warm_event,
        start_event=phase.start_event,
        end_event=phase.end_event,
        expected_seconds=float(seconds),
    )


def write_flat_image(
    job: RestoreJob, state: ProcessState, huge: Sequence[tuple[int, int]], touched: Sequence[int] = ()
) -> FlatImage:
    """Put the flat image of a phase into the folder of its images. Raises NotFlat, ValueError."""
    flat = flatten(
        state,
        (job.warm_event, job.start_event, job.end_event),
        outputs=job.outputs,
        written=[path for _, path in job.written],
        huge=huge,
        touched=touched,
    )
    (job.images / FLAT_NAME).write_bytes(encode(flat))
    return flat


def checkpoint_files(
    folder: Path,
    program: Program,
    captured: Sequence[CapturedPhase],
    outputs: tuple[str, ...],
    opened: Sequence[str] = (),
) -> list[ContainedFile]:
    """The files that the checkpoints below `folder` map or read, or open (`opened`) while they run."""
    images = [(read_state(folder / c.folder), c.written) for c in captured]
    return needed_files(images, os.path.realpath(program.executable), outputs, opened)


def run(build: Build, report: Report) -> None:
    """Take every phase's checkpoint in one run. Raises as `capture` does."""
    build.captured = take_checkpoints(
        build.profile,
        build.timed,
        plan_regions(build.profile, build.timed, build.selection, build.warmup.chosen),
        criu=build.criu,
        folder=build.folder.path,
        cpu=build.cpu,
        progress=report,
    )


def save(build: Build) -> None:
    build.folder.write_json(_RESULT, [phase.to_json() for phase in build.captured])


def load(build: Build) -> None:
    build.captured = build.folder.read(_RESULT, each(CapturedPhase.from_json))


def doubts(build: Build) -> list[str]:
    """None; but a wrong name in `--external` must not end the build at its very end. Raises ProbeError."""
    if build.options.external:
        outputs = captured_outputs(build.folder.path)
        set_apart(checkpoint_files(build.folder.path, build.program, build.captured, outputs), build.options.external)
    return []
