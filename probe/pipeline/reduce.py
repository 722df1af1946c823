# SPDX-License-Identifier: Apache-2.0
"""Reduce every phase to the pages that it touches, and try it once without the others.

Phases are reduced while the program still stands where they begin: of all their whole copies no more than one is on the
disk at a time. Where memory is short this stage reduces them after the run.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from mmap import MAP_PRIVATE, PROT_WRITE
from pathlib import Path
from typing import Protocol

import numpy as np

from checkpoint.binary.syscall_names import call_number
from checkpoint.capture.stored import NAME as STATE_NAME
from checkpoint.capture.stored import read_state
from checkpoint.compiled import restorer
from checkpoint.criu.tool import Criu
from checkpoint.errors import CriuError, NodeUnfit, PhaseFailed
from checkpoint.flat.convert import uses_protection_keys
from checkpoint.flat.descriptors import NotFlat
from checkpoint.flat.image import FlatImage
from checkpoint.linux import PAGE_SIZE
from checkpoint.process.descriptors import ONLY_CRIU
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.flat_image import write_flat_image
from checkpoint.restore.watched_phase import NeverEnds
from checkpoint.state.process_state import ProcessState
from probe.contents.captured_files import restore_job, touched_file, written_copies
from probe.contents.flat_phase import flat_phase
from probe.formats.checkpoints import CapturedPhase, ReducedPhase
from probe.node.facts import available_memory
from probe.pipeline.runs.plan import FullRuns
from probe.pipeline.runs.standing import Unfit
from probe.pipeline.stage import Build
from probe.progress import Report
from probe.work_folder import each
from reducer.choices import Reduction
from reducer.kept_pages import KeptPages
from reducer.packed_image import pages_in_place
from reducer.reduction import Reduced, reduce_checkpoint
from reducer.touched_set import (
    TouchedSet,
    check_reduced,
    check_reduced_directly,
    pages_to_keep,
    record_touched_directly,
    record_touched_set,
)

NAME = "reduce"
OPTIONS: tuple[str, ...] = ()
"""None of its own: what is captured is reduced at once, and its whole copies are gone."""

FILES = ("reduced.json", "phase-*-reduced", "touched-*.bin")

_RESULT = "reduced.json"

_HARMLESS = (PhaseFailed, CriuError, NodeUnfit)
"""What costs a phase its reduction, but not the probe: the self-check says whether it restores at all."""


_ENDLESS = "a wait that has no end, such as for a thread that is not restored with it"

_MUCH_WRITTEN = 1 << 20
"""Bytes of written files from which on a phase is restored once more at once, to see what it reads of them."""

_MEMORY_SLACK = 64 << 20
"""Bytes for what restores and watches a phase."""

_IN_GROUPS = "this kernel shows touched pages in groups of 16: phases are larger than needed"
_REFUSED = (
    "userfaultfd is refused here (a container's filter?): without it the kernel shows touched pages in groups of 16: "
    "phases are larger than needed"
)
_USER_MODE_ONLY = 1
_OVERCOMMIT, _STRICTLY = Path("/proc/sys/vm/overcommit_memory"), "2"
_MEMORY = Path("/proc/meminfo")

_libc = ctypes.CDLL(None, use_errno=True)


def reduce_phase(
    phase: PhaseToReduce, criu: Criu | None, *, how: Reduction, folder: Path, has_others: bool = False
) -> ReducedPhase:
    """Reduce one phase, observed by `criu`, or directly without it.

    A phase that fails while it is observed, or asks for a page that was taken out, is kept whole and says why. Raises
    Unfit where others can stand in for it (`has_others`), and it waits for ever for what is not restored.
    """
    job = phase.job
    images = read_state(job.images)
    raw = sum(path.stat().st_size for path in job.images.glob("*.img"))
    whole = ReducedPhase(job.phase, job.images.name, raw, images.pages, images.pages, 0, "as asked (--reduce none)")
    if how == "none":
        return whole
    target = folder / f"{job.images.name}-reduced"
    shutil.rmtree(target, ignore_errors=True)
    observer = _ByCriu(criu, folder) if criu is not None else _Directly(phase, folder)
    try:
        touched = observer.touched(job, images, phase.seconds)
    except _HARMLESS as error:
        if has_others and isinstance(error, NeverEnds):
            raise Unfit([_ENDLESS]) from error
        return replace(whole, whole=f"its touched set could not be recorded: {error}")
    touched_file(folder, job.phase).write_bytes(touched.address.astype("<u8").tobytes())
    keep = pages_to_keep(images, touched)
    reduced = reduce_checkpoint(images, keep, target, how)
    try:
        observer.check(replace(job, images=target), reduced)
    except _HARMLESS as error:
        shutil.rmtree(target, ignore_errors=True)
        return replace(whole, touched=len(touched), whole=f"it failed without its untouched pages: {error}")
    kept = int(np.count_nonzero(keep))
    return ReducedPhase(job.phase, target.name, raw, images.pages, kept, len(touched), "", touched.in_groups)


@dataclass(frozen=True)
class PhaseToReduce:
    """A phase, its region's seconds, and the address ranges that had huge pages."""

    job: RestoreJob
    seconds: float
    huge: Sequence[tuple[int, int]] = ()


class _Observer(Protocol):
    def touched(self, job: RestoreJob, images: ProcessState, seconds: float) -> TouchedSet:
        """What the phase touches."""

    def check(self, job: RestoreJob, reduced: Reduced) -> None:
        """Raises what costs the phase its reduction where it needs a dropped page."""


@dataclass(frozen=True)
class _ByCriu:
    criu: Criu
    scratch: Path

    def touched(self, job: RestoreJob, images: ProcessState, seconds: float) -> TouchedSet:
        return record_touched_set(job, images, self.criu, scratch=self.scratch, region_seconds=seconds)

    def check(self, job: RestoreJob, reduced: Reduced) -> None:
        check_reduced(job, read_state(job.images), reduced.dropped, self.criu, scratch=self.scratch)


@dataclass(frozen=True)
class _Directly:
    phase: PhaseToReduce
    scratch: Path

    def touched(self, job: RestoreJob, images: ProcessState, seconds: float) -> TouchedSet:
        flat = self._flat(job, images)
        return record_touched_directly(job, images, flat, restorer(), scratch=self.scratch, region_seconds=seconds)

    def check(self, job: RestoreJob, reduced: Reduced) -> None:
        images = read_state(job.images)
        flat = self._flat(job, images)
        check_reduced_directly(job, images, flat, restorer(), reduced.dropped, scratch=self.scratch)

    def _flat(self, job: RestoreJob, images: ProcessState) -> FlatImage:
        try:
            return write_flat_image(job, images, self.phase.huge)
        except NotFlat as error:
            raise NodeUnfit(str(error)) from error


def reduces_at_once(resident: float, times: int = 2) -> bool:
    """Whether phases can be reduced beside a program of so many bytes: there is memory for it so many times over."""
    available = available_memory()
    return available is None or available > times * resident + _MEMORY_SLACK


def may_commit(images: Path) -> bool:
    """Whether the kernel promises a copy its memory while the program itself still has it: with vm.overcommit_memory=2
    it promises all processes together no more than there is. `images`: the checkpoint's, read there alone."""
    with contextlib.suppress(OSError, KeyError, ValueError):
        if _OVERCOMMIT.read_text().strip() == _STRICTLY:
            said = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
            limit, committed = (int(said[name].split()[0]) << 10 for name in ("CommitLimit", "Committed_AS"))
            vmas = read_state(images).vmas
            wanted = sum(vma.end - vma.start for vma in vmas if vma.prot & PROT_WRITE and vma.flags & MAP_PRIVATE)
            return wanted + _MEMORY_SLACK < limit - committed
    return True


def most_copies(phases: int, resident: float) -> int:
    """How many copies of a program's memory, of so many bytes, lie in the work folder at most."""
    return phases + 1 if reduces_at_once(resident) else 2 * phases


def room_sentence(folder: Path, phases: int, resident: float) -> str:
    """How large the work folder becomes at most, before it does."""
    whole = resident / 1e9
    return (
        f"{folder}: grows by {most_copies(phases, resident) * whole:.2f} GB at most (the program has {whole:.2f} GB of "
        f"memory, and there are {phases} phases)"
    )


def reduced_at_once(build: Build, phase: CapturedPhase, folder: Path) -> CapturedPhase:
    """`phase`, below `folder`, with its reduced checkpoint in place of the whole one, where `reduces_at_once`.

    The process that it was taken from may still live. Raises StorageError, and Unfit where the phase was captured
    directly and cannot be restored so, or has no end then.
    """
    if build.criu is None:
        _require_flat(build, phase, folder)
    # In a job with little more memory than the program the kernel would end one of the two.
    if not (reduces_at_once(build.timed.resident, 1) and may_commit(folder / phase.folder)):
        return phase
    reduced = _reduced(build, phase, folder, has_others=build.criu is None)
    if reduced.folder != phase.folder:
        shutil.rmtree(folder / phase.folder)
    if build.criu is None:
        _keep(build, folder / reduced.folder)
    done = replace(phase, folder=reduced.folder, reduced=reduced)
    if sum(copy.stat().st_size for copy in written_copies(folder, done).values()) > _MUCH_WRITTEN:
        _drop_unread(build, done, folder)
    return done


def _drop_unread(build: Build, phase: CapturedPhase, folder: Path) -> None:
    """Let a hole stand for what the program has written and the phase does not read, before the next has as much."""
    job = restore_job(build.program, build.timed, folder, phase, phase.folder)
    with pages_in_place(job.images):
        # What else is found out then, the stage that flattens all phases finds out again.
        flat_phase(job, phase.huge, folder, build.cpu)


def _keep(build: Build, images: Path) -> None:
    """Keep the phase's pages with those of the others. What CRIU has written stays as it is."""
    if build.kept is None or build.kept.folder != images.parent:
        build.kept = KeptPages(images.parent)
    build.kept.pack(images, read_state(images).pages_image)


def _require_flat(build: Build, phase: CapturedPhase, folder: Path) -> None:
    job = restore_job(build.program, build.timed, folder, phase, phase.folder)
    try:
        write_flat_image(job, read_state(job.images), phase.huge)
    except NotFlat as error:
        # Threads are captured directly alone.
        by_criu = "" if build.profile.first is not None or build.profile.helper_threads else f", {ONLY_CRIU}"
        raise Unfit([f"{reason}{by_criu}" for reason in error.reasons]) from error
    except ValueError as error:
        raise Unfit([str(error)]) from error


def _reduced(build: Build, phase: CapturedPhase, folder: Path, *, has_others: bool = False) -> ReducedPhase:
    job = restore_job(build.program, build.timed, folder, phase, phase.folder)
    seconds = float(build.timed.seconds[phase.interval])
    # Which pages threads touch may differ each time.
    how = "none" if build.program.threads > 1 else build.options.reduce
    to_reduce = PhaseToReduce(job, seconds, phase.huge)
    return reduce_phase(to_reduce, build.criu, how=how, folder=folder, has_others=has_others)


def runs(_plan: FullRuns) -> int:
    """None."""
    return 0


def run(build: Build, report: Report) -> None:
    """Reduce all phases that are not yet. Raises StorageError."""
    # From here on no page is added: what tells them apart would take memory until the end.
    build.kept = None
    build.reduced = []
    for phase in build.captured:
        build.reduced.append(phase.reduced or _reduced(build, phase, build.folder.path))
        report(len(build.reduced) / len(build.captured))


def save(build: Build) -> None:
    build.folder.write_json(_RESULT, [phase.to_json() for phase in build.reduced])


def load(build: Build) -> None:
    build.reduced = build.folder.read(_RESULT, each(ReducedPhase.from_json))


def doubts(build: Build) -> list[str]:
    build.notes += _held(build)
    if build.program.threads > 1:
        build.notes.append("its threads may touch other pages each time: phases are kept whole")
        return []
    if build.options.reduce == "none":
        return []
    kept = [f"phase {phase.phase} was kept whole: {phase.whole}" for phase in build.reduced if phase.whole]
    return kept + ([why_in_groups()] if any(phase.in_groups for phase in build.reduced) else [])


def why_in_groups() -> str:
    """What keeps single touched pages from being seen here: an old kernel, or what refuses any user's userfaultfd."""
    descriptor = _libc.syscall(call_number("userfaultfd"), os.O_CLOEXEC | _USER_MODE_ONLY)
    if descriptor >= 0:
        os.close(descriptor)
    elif ctypes.get_errno() == errno.EPERM:
        return _REFUSED
    return _IN_GROUPS


def _held(build: Build) -> list[str]:
    """Notes on shared memory, pending signals and protection keys in the checkpoints."""
    most, signals, keys = 0, set(), False
    for phase in build.reduced:
        folder = build.folder.path / phase.folder
        if (folder / STATE_NAME).exists():
            state = read_state(folder)
            most = max(most, state.shared_pages)
            signals |= {one.number for one in state.queued}
            keys = keys or uses_protection_keys(state)
    held = [f"phases hold up to {most * PAGE_SIZE / 1e6:.1f} MB of shared memory: it is kept whole"] * bool(most)
    held += ["memory is guarded by protection keys: in restored phases it is not, and all of it can be changed"] * keys
    numbers = ", ".join(map(str, sorted(signals)))
    return held + [f"signals are pending where phases start, and are sent again: {numbers}"] * bool(signals)
