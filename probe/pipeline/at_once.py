# SPDX-License-Identifier: Apache-2.0
"""Take checkpoints in the timing run, of a program whose runs are long: one run does for both.

Phases are chosen twice: by the traced run, whose intervals have times already, to know where to stop; and by the
timing run, among the intervals of which there is a checkpoint then. Where that choice is worse than one among all
intervals the checkpoints are taken in a run of their own, as those of short programs are.
"""

from __future__ import annotations

import copy
import shutil
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from checkpoint.errors import Diverged, ProgramUnsupported, StorageError
from checkpoint.process.waiting import peak_resident
from probe.contents.captured_files import touched_file
from probe.formats.arrays import BoolArray, FloatArray, IntArray
from probe.formats.checkpoints import CapturedPhase, EarlyCheckpoints
from probe.formats.intervals import vectors
from probe.formats.selection import Selection
from probe.formats.timing import LEAST_SECONDS, TimedProfile, join_intervals
from probe.pipeline.reduce import reduced_at_once, room_sentence
from probe.pipeline.runs.boundaries import Candidate, Place, RegionPlan, StampedRun, marker_of, plan_region, site_counts
from probe.pipeline.runs.sound_boundaries import merge_bad_boundaries
from probe.pipeline.runs.standing import MarkedRun, Unfit, copies_of_written
from probe.pipeline.stage import Build
from probe.selection.substitute import another_representative
from reducer.kept_pages import remove_kept

FIRST_NUMBER = 1000
"""Number of the first checkpoint in the work folder that stands for no phase yet."""

MORE = 0.5
"""Intervals that are captured beyond the phases that the traced run shows, as a share of those phases: a choice for
the phases that the timing run shows."""

_BEFORE, _COLD = 0.001, 0.02
"""Seconds around a halt in which the program is not its usual self: it finds the caches cold."""

_GROWN = 1.1
"""Times as much memory as was said before, of which more is said."""

_ENOUGH = 3
"""Intervals from which a phase tells how much slower the traced run was."""


def most_captured(phases: int) -> int:
    """How many intervals are captured at most where the traced run shows so many phases."""
    return phases + round(MORE * phases)


class EarlyCapture:
    """The halts of a timing run, and the checkpoint of the interval that begins behind each."""

    def __init__(self, build: Build, wanted: Sequence[Candidate], selected: tuple[int, Selection]) -> None:
        """`build`: as the traced run shows it (`as_traced`), where `selected` are the phases."""
        self.together, self._selection = selected
        self._traced = build.timed
        self._build = copy.copy(build)
        self._build.profile = replace(build.profile, interval=build.profile.interval * self.together)
        self._build.timed = join_intervals(build.timed, self.together)
        self._began = time.time()
        self._waiting: dict[Place, list[RegionPlan]] = defaultdict(list)
        self._plans: dict[int, RegionPlan] = {}
        self._captured: list[CapturedPhase] = []
        self._said = 0.0
        _remove_all(build.folder.path)
        for number, interval in enumerate(self._intervals(), FIRST_NUMBER):
            plan = plan_region(build.profile, self._build.timed, number, interval, build.warmup.chosen)
            self._plans[number] = plan
            self._waiting[plan.warm].append(plan)
        self.places: Collection[Place] = frozenset(self._waiting)
        ends = {place for plan in self._plans.values() for place in (plan.warm, plan.start, plan.end)}
        self.candidates = [c for c in wanted if self._kept(c, ends)]

    def _intervals(self) -> list[int]:
        """Those to capture, in the order of the run: of each phase its representative, of the largest another one."""
        phases = sorted(self._selection.phases, key=lambda p: -p.time_share)
        chosen = [p.representative for p in phases]
        rows, seconds = vectors(self._build.profile, self._build.timed), self._build.timed.seconds
        for phase in phases[: most_captured(len(phases)) - len(phases)]:
            other = another_representative(phase.members, rows, seconds, [phase.representative])
            chosen += [] if other is None else [other]
        return sorted(set(chosen))

    def _kept(self, candidate: Candidate, ends: Collection[Place]) -> bool:
        """Whether to stamp it: where a captured interval begins or ends, its own marker alone is the boundary."""
        profile, timed = self._build.profile, self._traced
        at = int(np.searchsorted(timed.first_row, candidate.boundary))
        if timed.first_row[at] != candidate.boundary:
            return True
        own = Place(marker_of(profile, int(timed.columns[at - 1])), int(timed.executions[at - 1]))
        return own not in ends or Place(marker_of(profile, candidate.column), candidate.count) == own

    def reached(self, run: MarkedRun) -> bool:
        """Capture what begins where the run stands, if anything does. An interval that cannot be captured is none to
        choose from; where the disk is full, nor are those behind it. Raises ProgramFailed, CriuError."""
        place = run.stopped_at(self._waiting)
        if place is None:
            return False
        folder, stood = self._build.folder.path, time.monotonic()
        self._tell_room(peak_resident(run.tracee.pid))
        for plan in self._waiting.pop(place):
            try:
                phase = run.dump(plan, None, folder, copies_of_written(folder, self._began))
                phase = reduced_at_once(self._build, phase, folder)
                self._captured.append(replace(phase, standing=time.monotonic() - stood))
            except StorageError:
                # What there is may do; else a run of its own says what it needs.
                remove_checkpoint(folder, plan.phase)
                self._waiting.clear()
            except (Unfit, Diverged, ProgramUnsupported, OSError):
                remove_checkpoint(folder, plan.phase)
        return True

    def _tell_room(self, resident: int) -> None:
        self._build.timed = replace(self._build.timed, resident=resident)
        if resident > _GROWN * self._said:
            self._said = resident
            self._build.display.note(room_sentence(self._build.folder.path, len(self._plans), resident))

    def checkpoints(self, timed: TimedProfile) -> EarlyCheckpoints:
        """Those whose boundaries held in the timing run, by the intervals of `timed` joined as the phases were."""
        joined, found = join_intervals(timed, self.together), []
        rows = self._build.timed.first_row
        for one in self._captured:
            known = rows[[one.interval - one.warmup, one.interval, one.interval + 1]]
            at = int(np.searchsorted(joined.first_row, known[1]))
            places = at - one.warmup, at, at + 1
            if places[0] >= 0 and places[-1] < len(joined.first_row) and (joined.first_row[[*places]] == known).all():
                found.append(replace(one, interval=at))
            else:
                remove_checkpoint(self._build.folder.path, one.phase)
        return EarlyCheckpoints(self.together, tuple(found))

    def undisturbed(self, timed: TimedProfile, run: StampedRun) -> TimedProfile:
        """`timed` with what intervals around the halts would have taken, by how much slower their phase was traced."""
        edges = run.started + np.concatenate([[0.0], np.cumsum(timed.seconds)])
        disturbed = np.zeros(timed.intervals, dtype=bool)
        for at in run.halts:
            disturbed |= (edges[1:] > at - _BEFORE) & (edges[:-1] < at + _COLD)
        traced = np.add.reduceat(self._build.profile.seconds, timed.first_row[:-1])
        joined = np.searchsorted(self._build.timed.first_row, timed.first_row[:-1], side="right") - 1
        labels = self._selection.labels[joined]
        wall, cpu = (_usual(own, traced, labels, disturbed) for own in (timed.seconds, timed.cpu))
        whole = timed.wall_seconds - float((timed.seconds - wall).sum())
        # Until we saw that it had stopped, it seemed to sleep.
        asleep = float(np.maximum((timed.seconds - timed.cpu) - (wall - cpu), 0.0).sum())
        blocked = max(0.0, timed.blocked_share * timed.wall_seconds - asleep) / max(whole, LEAST_SECONDS)
        return replace(timed, seconds=wall, cpu=cpu, wall_seconds=whole, blocked_share=min(1.0, blocked))


def _usual(own: FloatArray, traced: FloatArray, labels: IntArray, disturbed: BoolArray) -> FloatArray:
    """The times `own`, but for those disturbed the traced run's, as much shorter as their phase's fellows are."""
    ratio, usual = own / np.maximum(traced, LEAST_SECONDS), np.array(own)
    for label in np.unique(labels[disturbed]):
        fellows = ratio[(labels == label) & ~disturbed]
        known = fellows if len(fellows) >= _ENOUGH else ratio[~disturbed]
        if len(known):
            mine = (labels == label) & disturbed
            # Not the smaller of both, which would be too small by what times vary.
            usual[mine] = traced[mine] * float(np.median(known))
    return usual


def as_traced(build: Build, wanted: Sequence[Candidate]) -> Build:
    """The build as if the traced run had been the timing run: its times, and of each boundary the busiest candidate,
    whose next execution is the nearest."""
    profile, traced = build.profile, copy.copy(build)
    counts = site_counts(profile)
    ends = np.cumsum(profile.seconds)
    behind = [profile.seconds[c.boundary] / (2.0 + float(counts[c.boundary, c.column])) for c in wanted]
    wall = np.array([ends[c.boundary - 1] for c in wanted]) + np.array(behind)
    columns = sorted({c.column for c in wanted})
    executed = np.asarray(counts[:, columns].sum(axis=0)).ravel()
    run = StampedRun(
        wall=wall,
        cpu=wall,
        started=0.0,
        ended=float(ends[-1]),
        ended_cpu=float(ends[-1]),
        totals=dict(zip(columns, (int(n) for n in executed), strict=True)),
    )
    traced.timed = merge_bad_boundaries(profile, list(wanted), run)
    return traced


def taken(build: Build) -> list[CapturedPhase]:
    """The checkpoints of the chosen phases from the timing run, by the phases' numbers; those of others are removed.
    None where there is not one for every phase."""
    early, folder = build.early, build.folder.path
    found: dict[int, CapturedPhase] = {}
    if early is not None and early.together == build.joined:
        of = {one.interval: one for one in early.captured}
        found = {p.id: of[p.representative] for p in build.selection.phases if p.representative in of}
    if len(found) < len(build.selection.phases):
        found = {}
        remove_kept(folder)
    for one in early.captured if early is not None else ():
        if one.phase not in {kept.phase for kept in found.values()}:
            remove_checkpoint(folder, one.phase)
    return [_renumbered(one, phase, folder) for phase, one in found.items()]


def _renumbered(one: CapturedPhase, phase: int, folder: Path) -> CapturedPhase:
    before, after = f"phase-{one.phase}", f"phase-{phase}"
    target = one.folder.replace(before, after, 1)
    for old, new in (
        (folder / one.folder, folder / target),
        (touched_file(folder, one.phase), touched_file(folder, phase)),
        (folder / f"written-{one.phase}", folder / f"written-{phase}"),
    ):
        if old.exists():
            shutil.rmtree(new, ignore_errors=True)
            old.rename(new)
    reduced = one.reduced and replace(
        one.reduced,
        phase=phase,
        folder=target,
        whole=one.reduced.whole.replace(f"phase {one.phase}", f"phase {phase}"),
    )
    written = {
        path: copied.replace(f"written-{one.phase}", f"written-{phase}", 1) for path, copied in one.written.items()
    }
    return replace(one, phase=phase, folder=target, written=written, reduced=reduced)


def there(early: EarlyCheckpoints, folder: Path) -> EarlyCheckpoints:
    """Those whose files are still below `folder`: stages behind this one take them, and remove them."""
    return replace(early, captured=tuple(one for one in early.captured if (folder / one.folder).exists()))


def _remove_all(folder: Path) -> None:
    """What an interrupted timing run left."""
    remove_kept(folder)
    for path in folder.glob("phase-*"):
        number = path.name.removeprefix("phase-").removesuffix("-reduced")
        if number.isdecimal() and int(number) >= FIRST_NUMBER:
            remove_checkpoint(folder, int(number))


def remove_checkpoint(folder: Path, number: int) -> None:
    """Remove all that was kept of a checkpoint below `folder`."""
    for path in (folder / f"phase-{number}", folder / f"phase-{number}-reduced", folder / f"written-{number}"):
        shutil.rmtree(path, ignore_errors=True)
    touched_file(folder, number).unlink(missing_ok=True)
