# SPDX-License-Identifier: Apache-2.0
"""Take the checkpoint of a phase from a run that stands where the phase begins."""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from checkpoint.capture.by_criu import dump_process
from checkpoint.capture.direct import capture_process
from checkpoint.capture.readable import readable
from checkpoint.capture.team import locks_in_use
from checkpoint.criu.tool import Criu
from checkpoint.criu.unsupported import unsupported
from checkpoint.errors import Diverged, ProgramFailed
from checkpoint.event import STAMP, STOP_AFTER
from checkpoint.process.descriptors import outside
from checkpoint.process.loader import LoadWatch
from checkpoint.process.occurrence import ENDED_MEANWHILE
from checkpoint.process.tracee import Tracee
from checkpoint.process.waiting import is_ending
from checkpoint.state.process_state import ProcessState
from checkpoint.stubs.answers import repeat_answers
from checkpoint.stubs.encode import Event
from checkpoint.stubs.markers import Marker, MarkerSet
from probe.contents.captured_files import captured_outputs
from probe.contents.carried_files import copy_written_files
from probe.formats.checkpoints import CapturedPhase
from probe.pipeline.runs.boundaries import Place, RegionPlan

CopyWritten = Callable[[RegionPlan, ProcessState], Mapping[str, Path]]
"""Copies the files that a stopped process was writing; where the copies are, by the files' paths."""


def copies_of_written(folder: Path, since: float) -> CopyWritten:
    """What copies below `folder` the files that a run begun at `since` (time.time) was writing."""
    return lambda plan, state: copy_written_files(
        state, folder / f"written-{plan.phase}", captured_outputs(folder), since=since
    )


class Unfit(Exception):
    """What a probe cannot hold, by its `faults`, is there where a phase starts."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = list(faults)


class MarkedRun:
    """A program image with its markers, and the checkpoint that is taken where one of them stopped it."""

    def __init__(self, tracee: Tracee, wanted: Mapping[Marker, Sequence[Event]]) -> None:
        self.tracee = tracee
        self.markers = MarkerSet(tracee, wanted)
        self.watch = LoadWatch(tracee)

    def arm(self) -> None:
        repeat_answers(self.tracee)
        self.watch.arm()
        self.markers.install_new(self.watch)

    def libraries_changed(self) -> None:
        self.watch.step_over()
        self.markers.install_new(self.watch)

    def stopped_at(self, waiting: Collection[Place]) -> Place | None:
        """The place whose event has just stopped the process."""
        reached = {Place(marker, count) for marker, count in self.markers.due()}
        return next((place for place in waiting if place in reached), None)

    def dump(
        self,
        plan: RegionPlan,
        criu: Criu | None,
        folder: Path,
        on_dump: CopyWritten,
    ) -> CapturedPhase:
        """Capture the stopped process with the events of `plan` alone; afterwards it is attached and stopped.

        Raises Unfit, Diverged, ProgramUnsupported, ProgramFailed where it is killed meanwhile, CriuError, StorageError.
        """
        try:
            return self._dump(plan, criu, folder, on_dump)
        except OSError as error:
            if not is_ending(self.tracee.pid, self.tracee.marking):
                raise
            raise ProgramFailed(f"process {self.tracee.pid}{ENDED_MEANWHILE}") from error

    def _dump(self, plan: RegionPlan, criu: Criu | None, folder: Path, on_dump: CopyWritten) -> CapturedPhase:
        begun = time.monotonic()
        target = folder / f"phase-{plan.phase}"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(mode=0o700, parents=True)
        self.tracee.helpers.settle()
        with readable(self.tracee):
            found = outside(self.tracee.pid, by_criu=criu is not None)
        if self.tracee.team is not None:
            found += locks_in_use(self.tracee, self.tracee.team)
        if found:
            raise Unfit(found)
        region: dict[Marker, list[Event]] = defaultdict(list)
        if plan.start != plan.warm:
            region[plan.start.marker].append(Event(plan.start.count, STAMP))
        region[plan.end.marker].append(Event(plan.end.count, STAMP | STOP_AFTER))
        if absent := self.markers.not_mapped(region):
            raise Unfit([f"a boundary in {name}, which is not loaded where its warm-up begins" for name in absent])
        with self._unwatched(), self.markers.only(region) as addresses:
            warm_event = self.markers.event_address(plan.warm.marker, plan.warm.count)
            counts = {m: sorted(e.count for e in events) for m, events in region.items()}

            def address(place: Place) -> int:
                return addresses[place.marker][counts[place.marker].index(place.count)]

            start_event = warm_event if plan.start == plan.warm else address(plan.start)
            end_event = address(plan.end)
            if criu is not None:
                done = dump_process(self.tracee, target, criu)
            else:
                done = capture_process(self.tracee, target, f"phase {plan.phase}")
        if problems := unsupported(done.state):
            raise Unfit(problems)
        copies = on_dump(plan, done.state)
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
            huge=done.huge,
            copying=time.monotonic() - begun,
        )

    @contextmanager
    def _unwatched(self) -> Iterator[None]:
        """Without the loader's breakpoint, which is back also where the run has strayed: it goes on."""
        armed = self.watch.armed
        if armed:
            self.watch.disarm()
        try:
            yield
        except Diverged:
            if armed:
                self.watch.arm()
            raise
        if armed:
            self.watch.arm()

    def go_on(self, criu: Criu | None) -> None:
        """Let the process run on from a stop at which it was captured."""
        if criu is not None:
            self.tracee.continue_from_stop()
        else:
            # The signal that stopped it was never delivered: nothing is to be continued.
            self.tracee.resume()
