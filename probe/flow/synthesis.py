# SPDX-License-Identifier: Apache-2.0
"""Replace what a phase's time does not depend on, and verify that it executes the same as with its own data."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from checkpoint.errors import NodeUnfit, PhaseFailed
from checkpoint.flat.image import NAME as IMAGE_NAME
from checkpoint.flat.image import OF_OBJECT, FlatImage, Header, encode
from checkpoint.flow.comparing import Difference, compare
from checkpoint.flow.flow import Flow, Plan
from checkpoint.flow.points import choose_points
from checkpoint.flow.watching import FlowWatcher
from checkpoint.linux import PAGE_SIZE
from checkpoint.private_file import write_private
from checkpoint.restore.criu_restore import RegionTime, RestoreJob
from checkpoint.restore.direct_restore import DirectAgent
from probe.flow.both_flows import watch_both
from probe.flow.memory import BY_WORD, KEPT, PATTERNS, WHOLE, Known, Modes, PhaseMemory
from probe.flow.search import Judge, search
from probe.flow.times import Compared, OtherTime, PairedTimes, Repeats, judge_together, look_first
from probe.formats.phase_record import ReplacedMapping, Synthetic
from probe.work_folder import link_or_copy

POINTS, STEPS = 22, 20_000
"""Where the addresses of a phase are compared before its data are left out, and how many steps there."""
LEAST_POINTS, LEAST_STEPS = 20, 200_000
_MOST_UNKNOWN = 1e-3
"""Share of the steps of which nobody may know the address: gathers."""

_SEEN, _ENOUGH = 0.5, 0.95
"""Of the pages full of numbers: those of other phases among them, and the share of these that was replaced there, from
which on an answer is verified at once."""

_READ_AT_ONCE = 1 << 20

_LEAST_SHARE = 0.01
"""A phase with a smaller share of replaced words keeps all its data."""


@dataclass(frozen=True)
class Answer:
    """What can be replaced in one phase: `modes` of its pages, by `pattern`. `known`, with what is known of earlier
    phases: carried over to the next phase first."""

    memory: PhaseMemory
    modes: Modes
    pattern: str
    known: Known


@dataclass(frozen=True)
class PhaseToSynthesize:
    """A flattened phase, its recorded flow, and the folder where its images with replaced pages go. `following`: the
    pages of the phase that comes next, read ahead while this one is watched."""

    job: RestoreJob
    flat: FlatImage
    pages: Path
    restorer: Path
    flow: Flow
    folder: Path
    following: Path | None = None


@dataclass(frozen=True)
class Proved:
    """A phase that executes the same with its images in `folder`; its time is not clearly another one. `record` lacks
    how the times compare, `kept` says why it keeps its data after all."""

    record: Synthetic
    kept: Synthetic
    folder: Path
    times: PairedTimes


class _Refused(Exception):
    """An answer that a check did not pass."""


def synthesize_phase(
    phase: PhaseToSynthesize,
    *,
    seconds: float,
    scratch: Path,
    cpu: int | None,
    before: Answer | None = None,
    others: Sequence[Proved] = (),
) -> tuple[Proved | Synthetic, Answer | None]:
    """Find and verify what can be replaced within about `seconds`, and put the images there: `settle` decides on its
    time. Where nothing can be replaced, the record says why, and there is no folder. `before`: the answer of another
    phase, tried first; `others`: phases that were proved, whose pairs tell how much times spread."""
    doing = _Synthesis(phase, scratch, cpu, time.monotonic() + seconds, [one.times for one in others])
    try:
        return doing.made(before)
    except _Refused as error:
        reason = str(error)
    except (PhaseFailed, NodeUnfit) as error:
        reason = str(error)
    shutil.rmtree(phase.folder, ignore_errors=True)
    return doing.record(None, reason), None


def settle(proved: Sequence[Proved], until: float, judged: Sequence[Proved] = ()) -> list[Synthetic]:
    """The records of these phases, whose times are compared together, and with those `judged` before; some more repeats
    are made until time.monotonic() is about `until`. The folders of those whose time is another one, or open, are gone.
    """
    records = []
    times = judge_together([one.times for one in proved], until, [one.times for one in judged])
    for one, found in zip(proved, times, strict=True):
        if isinstance(found, Compared):
            records.append(replace(one.record, time_ratio=found.ratio, time_error=found.error))
        else:
            shutil.rmtree(one.folder, ignore_errors=True)
            records.append(replace(one.kept, refused=str(found)))
    return records


def unchanged(reason: str) -> Synthetic:
    """The record of a phase that keeps its data, before anything was looked at."""
    return Synthetic(0, 0, 0, 0, 0, (), "", 0, 0, 0, 0, 0, 0, 0, None, None, reason)


class _Synthesis:
    def __init__(
        self, phase: PhaseToSynthesize, scratch: Path, cpu: int | None, until: float, others: Sequence[PairedTimes]
    ) -> None:
        self._phase, self._scratch, self._cpu, self._until, self._others = phase, scratch, cpu, until, others
        self._memory = PhaseMemory(phase.flat, phase.pages)
        self._watcher = FlowWatcher(
            phase.job, phase.flat, phase.pages, phase.restorer, scratch=scratch, cpu=cpu
        )  # fmt: skip
        self._written, self._following = phase.flat, phase.following
        self._trials, self._patterns = 0, 0

    def made(self, before: Answer | None) -> tuple[Proved, Answer]:
        if not self._memory.may.any():
            raise _Refused("it holds no page that may be replaced")
        said = ""
        for pattern in PATTERNS:
            if self._patterns and time.monotonic() > self._until:
                raise _Refused(f"{said}; the time for it is used up")
            self._patterns += 1
            try:
                return self._with(pattern, before.known if before else None)
            except _Refused as error:
                said = said or str(error)
        raise _Refused(said)

    def _with(self, pattern: str, known: Known | None) -> tuple[Proved, Answer]:
        own = Flow(self._phase.flow.counts, self._phase.flow.calls)

        def judge(modes: Modes) -> bool:
            self._trials += 1
            try:
                flow = self._watcher.watch(Plan(contents=lambda: self._memory.contents(modes, pattern)))
            except PhaseFailed:
                return False
            return compare(Flow(flow.counts, flow.calls), own).none

        said = ""
        for modes in _distinct(self._answers(judge, known)):
            modes = self._no_larger(modes, pattern)
            if self._share(modes) < _LEAST_SHARE:
                break
            try:
                difference = self._verified(modes, pattern)
                times = PairedTimes(partial(_repeats, self._phase, self._written, self._scratch, self._cpu))
                look_first(times, self._others)
            except (_Refused, OtherTime) as refused:
                said = said or str(refused)
                continue
            except PhaseFailed as failure:
                said = said or f"with other contents {failure}"
                continue
            record = self.record(_Checked(modes, pattern, difference), "")
            proved = Proved(record, self.record(None, ""), self._phase.folder, times)
            return proved, Answer(self._memory, modes, pattern, self._memory.known(modes, known))
        raise _Refused(said or "hardly anything in it can be replaced without a change of what it executes")

    def _answers(self, judge: Judge, known: Known | None) -> Iterator[Modes]:
        """What may pass all checks, largest first. Where hardly a page full of numbers had to be kept in other phases,
        it needs no search."""
        guess: Modes | None = None
        if known is not None:
            guess, there = self._memory.carried_over(known)
            numbers = self._memory.mostly_numbers
            seen = numbers & there
            if seen.sum() >= _SEEN * numbers.sum() > 0 and (guess[seen] != KEPT).mean() >= _ENOUGH:
                self._trials += 1
                yield np.where(numbers & (guess == KEPT), WHOLE, guess).astype(np.uint8)
        left = self._until - time.monotonic()
        found = search(self._memory, judge, seconds=max(0.0, left) / 2, guess=guess)
        yield from (found.modes, *found.smaller)

    def _no_larger(self, modes: Modes, pattern: str) -> Modes:
        """Without the pages by word that would take more room than with their own data."""
        found: Modes = modes.copy()
        pages = self._memory.pages()
        for row in np.flatnonzero(modes == BY_WORD).tolist():
            old, new = np.asarray(pages[row]), self._memory.replaced(slice(row, row + 1), modes, pattern)
            if len(zlib.compress(new.tobytes(), 1)) > len(zlib.compress(old.tobytes(), 1)):
                found[row] = KEPT
        return found

    def _share(self, modes: Modes) -> float:
        return float(self._memory.replaced_words(modes).sum()) / max(1, int(self._memory.filled.sum()))

    def _verified(self, modes: Modes, pattern: str) -> Difference:
        """Compare classes of numbers, blocks, calls and addresses with those of the program's own data. Makes the
        folder."""
        memory = self._memory
        own, other = memory.classes(modes), memory.classes_replaced(modes, pattern)
        if said := other.differing(own):
            raise _Refused(f"at the begin {said}")
        plan = Plan(choose_points(self._phase.flow, POINTS), STEPS, numbers=memory.spans(modes), in_copies=True)
        with _ReadAhead(self._following) as ahead:

            def meanwhile() -> None:
                ahead.begin()
                self._write(modes, pattern)

            real, other_flow = watch_both(
                self._watcher, plan, lambda: memory.contents(modes, pattern), cpu=self._cpu,
                size=len(memory) * PAGE_SIZE, check=self._as_recorded, meanwhile=meanwhile,
            )  # fmt: skip
        self._following = None
        found = compare(other_flow, real)
        if not found.none:
            if not compare(self._watcher.watch(replace(plan, in_copies=real.in_copies)), real).none:
                raise _Refused("two runs with its own data are not the same")
            raise _Refused(found.sentence())
        if found.unknown > _MOST_UNKNOWN * max(1, found.steps):
            raise _Refused(f"the addresses of {found.unknown} of {found.steps} steps are not known (gathers)")
        if found.points < LEAST_POINTS or found.steps < LEAST_STEPS:
            raise _Refused(f"its addresses were compared in {found.steps} steps at {found.points} points alone")
        return found

    def _as_recorded(self, real: Flow) -> None:
        """Compare a run whose steps were noted with the recorded one: copies must not change what is executed. More is
        mapped in it, so addresses among the arguments of system calls may differ."""
        own = self._phase.flow
        differing = compare(Flow(real.counts, own.calls), Flow(own.counts, own.calls)).sentence()
        mine, theirs = (flow.calls for flow in (real, own))
        called = np.array_equal(mine.first[:, 0], theirs.first[:, 0])
        if mine.complete and theirs.complete:
            called &= mine.made == theirs.made
        if differing or not called:
            raise _Refused(f"noting its steps changes what it executes: {differing or 'its system calls differ'}")

    def _write(self, modes: Modes, pattern: str) -> None:
        phase = self._phase
        self._written = write_images(phase.job.images, phase.folder, self._memory, phase.pages, modes, pattern)

    def record(self, found: _Checked | None, reason: str) -> Synthetic:
        """What the manifest says of the phase."""
        memory = self._memory
        modes = found.modes if found else np.zeros(len(memory), dtype=np.uint8)
        words = memory.replaced_words(modes)
        difference = found.difference if found else None
        return Synthetic(
            pages=int((modes == WHOLE).sum()),
            pages_by_word=int((modes == BY_WORD).sum()),
            kept_pages=int((modes == KEPT).sum()),
            words=int(words.sum()),
            all_words=int(memory.filled.sum()),
            mappings=tuple(_by_mapping(memory, words)),
            pattern=found.pattern if found else "",
            patterns_tried=self._patterns,
            trials=self._trials,
            blocks=len(self._phase.flow.counts),
            executions=self._phase.flow.executions,
            points=difference.points if difference else 0,
            address_steps=difference.steps if difference else 0,
            unknown_steps=difference.unknown if difference else 0,
            time_ratio=None,
            time_error=None,
            refused=reason,
        )


@dataclass(frozen=True)
class _Checked:
    modes: Modes
    pattern: str
    difference: Difference


@contextlib.contextmanager
def _repeats(phase: PhaseToSynthesize, written: FlatImage, scratch: Path, cpu: int | None) -> Iterator[Repeats]:
    """CPU seconds of warm-up and region with its own data, and with those in the folder, whose flat image this is."""
    with contextlib.ExitStack() as stack:
        agents = []
        for images, flat in ((phase.job.images, phase.flat), (phase.folder, written)):
            job = replace(phase.job, images=images)
            agent = DirectAgent(job, phase.restorer, scratch=scratch, cpu=cpu, flat=flat)
            agents.append(stack.enter_context(agent))
        yield [lambda agent=agent: seconds_of(agent.repeat()) for agent in agents]  # type: ignore[misc]


def seconds_of(time: RegionTime) -> float:
    """CPU seconds of warm-up and region: both execute the same, and twice as long a time spreads less."""
    assert time.warm_cpu is not None, "of this version's agents"
    return time.warm_cpu + time.cpu


def write_images(images: Path, target: Path, memory: PhaseMemory, pages: Path, modes: Modes, pattern: str) -> FlatImage:
    """Put the phase's images into the folder `target`: pages with some replaced, the flat image for them, and the
    others as links. CRIU, where it has images of the phase, knows no page that stands for others. Gives the flat image.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(mode=0o700)
    for_criu = any(images.glob("pagemap-*.img"))
    for entry in images.iterdir():
        if entry.name != pages.name and (for_criu or (entry.suffix == ".img" and entry.name != IMAGE_NAME)):
            link_or_copy(entry, target / entry.name)
    runs = memory.write(target / pages.name, modes, pattern, repeated=not for_criu)
    if for_criu:
        return memory.flat
    try:
        encoded = encode(replace(memory.flat, runs=runs))
    except ValueError as error:
        raise _Refused(f"its image would not be taken: {error}") from error
    write_private(target / IMAGE_NAME, encoded)
    return replace(memory.flat, runs=runs, header=Header.from_buffer_copy(encoded))


class _ReadAhead:
    """Reads a file into the page cache, from `begin` until the block is left: reading it does that for certain, advice
    for its begin alone. A process with such a thread must not fork."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._left = path, threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> _ReadAhead:
        return self

    def begin(self) -> None:
        if self._path is not None:
            self._thread = threading.Thread(target=self._read, args=(self._path,), daemon=True)
            self._thread.start()

    def _read(self, path: Path) -> None:
        buffer = bytearray(_READ_AT_ONCE)
        with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
            while file.readinto(buffer) and not self._left.is_set():
                pass

    def __exit__(self, *_: object) -> None:
        self._left.set()
        if self._thread is not None:
            self._thread.join()


def _distinct(answers: Iterable[Modes]) -> Iterator[Modes]:
    last: Modes | None = None
    for modes in answers:
        if last is None or not np.array_equal(last, modes):
            yield modes
        last = modes


def _by_mapping(memory: PhaseMemory, words: np.ndarray) -> Iterator[ReplacedMapping]:
    """Mappings with the same name together, those with most that is real first."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for number in np.unique(memory.mapping).tolist():
        mine = memory.mapping == number
        one = sums[_name(memory.flat, number)]
        one[0] += int(mine.sum())
        one[1] += int(memory.filled[mine].sum())
        one[2] += int(words[mine].sum())
    for name, (pages, all_words, replaced) in sorted(sums.items(), key=lambda item: item[1][2] - item[1][1]):
        yield ReplacedMapping(name, pages, all_words, replaced)


def _name(flat: FlatImage, number: int) -> str:
    if number < 0:
        return "other"
    mapping, mm = flat.mappings[number], flat.header.mm
    if mapping.file & OF_OBJECT:
        return "[shared]"
    if mapping.file:
        return str(flat.files[mapping.file - 1])
    if mapping.start <= flat.header.registers.sp < mapping.end:
        return "[stack]"
    return "[heap]" if mapping.start < mm.brk and mm.start_brk < mapping.end else "[anonymous]"
