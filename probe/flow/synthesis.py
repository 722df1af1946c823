# SPDX-License-Identifier: Apache-2.0
"""Replace what a phase's time does not depend on, and verify that it executes the same as with its own data."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from checkpoint.errors import NodeUnfit, PhaseFailed
from checkpoint.flat.image import OF_OBJECT, FlatImage
from checkpoint.flow.comparing import Difference, compare
from checkpoint.flow.flow import Contents, Flow, Plan
from checkpoint.flow.points import choose_points
from checkpoint.flow.watching import FlowWatcher
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.direct_restore import DirectAgent
from probe.flow.memory import BY_WORD, KEPT, PATTERNS, WHOLE, Modes, PhaseMemory
from probe.flow.search import Judge, search
from probe.formats.phase_record import ReplacedMapping, Synthetic

POINTS, STEPS = 22, 20_000
"""Where the addresses of a phase are compared before its data are left out, and how many steps there."""
LEAST_POINTS, LEAST_STEPS = 20, 200_000
_MOST_UNKNOWN = 1e-3
"""Share of the steps of which nobody may know the address: gathers."""

_LOOKS = {7: 2.45, 14: 2.16, 28: 2.05}
"""Repeats after which times are compared, and what Student's distribution has in place of two standard errors there
(95 %). Looking oftener would end at the first chance agreement."""
_CLEARLY = 4.0
"""Standard errors beyond what is allowed from which on another time is refused before the last look."""
_CLOSE = 0.01
_LARGEST_ERROR = 0.01
"""From this standard error on the last look decides nothing."""
_MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean."""
_SPREAD = 0.7413
"""Standard deviation of a normal distribution over the distance of its quartiles."""
_ENOUGH = 0.95
"""Of the pages full of numbers, for the answer of another phase to be verified at once, with the others added."""

_LEAST_SHARE = 0.01
"""A phase with a smaller share of replaced words keeps all its data."""


@dataclass(frozen=True)
class Answer:
    """What can be replaced in one phase: `modes` of its pages, by `pattern`. Carried over to the next phase first."""

    memory: PhaseMemory
    modes: Modes
    pattern: str


@dataclass(frozen=True)
class PhaseToSynthesize:
    """A flattened phase, its recorded flow, and the folder where its images with replaced pages go."""

    job: RestoreJob
    flat: FlatImage
    pages: Path
    restorer: Path
    flow: Flow
    folder: Path


class _Refused(Exception):
    """An answer that a check did not pass."""


def synthesize_phase(
    phase: PhaseToSynthesize, *, seconds: float, scratch: Path, cpu: int | None, before: Answer | None = None
) -> tuple[Synthetic, Answer | None]:
    """Find and verify what can be replaced within about `seconds`, and put the images there. Where nothing can, the
    record says why, and there is no folder. `before`: the answer of another phase, tried first."""
    doing = _Synthesis(phase, scratch, cpu, time.monotonic() + seconds)
    try:
        return doing.made(before)
    except _Refused as error:
        reason = str(error)
    except (PhaseFailed, NodeUnfit) as error:
        reason = str(error)
    shutil.rmtree(phase.folder, ignore_errors=True)
    return doing.record(None, reason), None


def unchanged(reason: str) -> Synthetic:
    """The record of a phase that keeps its data, before anything was looked at."""
    return Synthetic(0, 0, 0, 0, 0, (), "", 0, 0, 0, 0, 0, 0, 0, None, None, reason)


class _Synthesis:
    def __init__(self, phase: PhaseToSynthesize, scratch: Path, cpu: int | None, until: float) -> None:
        self._phase, self._scratch, self._cpu, self._until = phase, scratch, cpu, until
        self._memory = PhaseMemory(phase.flat, phase.pages)
        self._watcher = FlowWatcher(
            phase.job, phase.flat, phase.pages, phase.restorer, scratch=scratch, cpu=cpu
        )  # fmt: skip
        self._trials, self._patterns = 0, 0

    def made(self, before: Answer | None) -> tuple[Synthetic, Answer]:
        if not self._memory.may.any():
            raise _Refused("it holds no page that may be replaced")
        said = ""
        for pattern in PATTERNS:
            if self._patterns and time.monotonic() > self._until:
                raise _Refused(f"{said}; the time for it is used up")
            self._patterns += 1
            guess = self._memory.carried_over(before.memory, before.modes) if before else None
            try:
                return self._with(pattern, guess)
            except _Refused as error:
                said = said or str(error)
        raise _Refused(said)

    def _with(self, pattern: str, guess: Modes | None) -> tuple[Synthetic, Answer]:
        own = Flow(self._phase.flow.counts, self._phase.flow.calls)

        def judge(modes: Modes) -> bool:
            self._trials += 1
            try:
                flow = self._watcher.watch(Plan(contents=lambda: self._memory.contents(modes, pattern)))
            except PhaseFailed:
                return False
            return compare(Flow(flow.counts, flow.calls), own).none

        said = ""
        for modes in _distinct(self._answers(judge, guess)):
            modes = self._no_larger(modes, pattern)
            if self._share(modes) < _LEAST_SHARE:
                break
            try:
                difference = self._verified(modes, pattern)
                ratio, error = self._timed(modes, pattern)
            except (_Refused, PhaseFailed) as refused:
                said = said or str(refused)
                continue
            checked = _Checked(modes, pattern, difference, ratio, error)
            return self.record(checked, ""), Answer(self._memory, modes, pattern)
        raise _Refused(said or "hardly anything in it can be replaced without a change of what it executes")

    def _answers(self, judge: Judge, guess: Modes | None) -> Iterator[Modes]:
        """What may pass all checks, largest first. A guess that replaces nearly all numbers needs no search."""
        if guess is not None:
            numbers = self._memory.mostly_numbers
            if numbers.any() and (guess[numbers] != KEPT).mean() >= _ENOUGH:
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
        """Compare classes of numbers, blocks, calls and addresses with those of the program's own data."""
        memory = self._memory
        own, other = memory.classes(modes), memory.classes_replaced(modes, pattern)
        if said := other.differing(own):
            raise _Refused(f"at the begin {said}")
        plan = Plan(choose_points(self._phase.flow, POINTS), STEPS, numbers=memory.spans(modes), in_copies=True)
        real, other_flow = self._both(plan, lambda: memory.contents(modes, pattern))
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

    def _both(self, plan: Plan, contents: Contents) -> tuple[Flow, Flow]:
        """The flows with its own data and with these contents, their steps noted in the same way."""
        while True:
            real = self._watcher.watch(plan)
            self._as_recorded(real)
            other = self._watcher.watch(replace(plan, contents=contents, in_copies=real.in_copies))
            if other.in_copies == real.in_copies:
                return real, other
            plan = replace(plan, in_copies=False)

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

    def _timed(self, modes: Modes, pattern: str) -> tuple[float, float]:
        """CPU time over that with the program's own data, and its standard error. Makes the folder."""
        job = self._phase.job
        write_images(job.images, self._phase.folder, self._memory, self._phase.pages, modes, pattern)
        with contextlib.ExitStack() as stack:
            agents = [
                stack.enter_context(
                    DirectAgent(replace(job, images=images), self._phase.restorer, scratch=self._scratch, cpu=self._cpu)
                )
                for images in (job.images, self._phase.folder)
            ]
            return compare_times([lambda agent=agent: agent.repeat().cpu for agent in agents])  # type: ignore[misc]

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
            time_ratio=found.ratio if found else None,
            time_error=found.error if found else None,
            refused=reason,
        )


@dataclass(frozen=True)
class _Checked:
    modes: Modes
    pattern: str
    difference: Difference
    ratio: float
    error: float


def compare_times(repeats: Sequence[Callable[[], float]]) -> tuple[float, float]:
    """Time of the second over that of the first, by turns, and its standard error.

    After 7 and 14 repeats these are returned where the ratio and two errors beside it lie within 1 % of 1. After 28 the
    ratio itself must, and its error be at most 1 %: noise lets no ratio pass that would be refused without. Raises
    _Refused where that is not so, earlier where the times clearly differ, and where noise leaves it open."""
    times: list[list[float]] = [[] for _ in repeats]
    ratio = error = 0.0
    for look, errors in _LOOKS.items():
        while len(times[0]) < look:
            for one, repeat in zip(times, repeats, strict=True):
                one.append(repeat())
        ratio, error = _ratio(times[0], times[1])
        if abs(ratio - 1) + errors * error <= _CLOSE:
            return ratio, error
        if abs(ratio - 1) > _CLOSE + _CLEARLY * error:
            break
    else:
        if error > _LARGEST_ERROR:
            raise _Refused(
                f"its time cannot be told: {ratio - 1:+.1%} of that with its own data, give or take {error:.1%}; build "
                "it while the machine does less"
            )
        if abs(ratio - 1) <= _CLOSE:
            return ratio, error
    raise _Refused(f"it takes {ratio - 1:+.1%} of the time with its own data, give or take {error:.1%}")


def _ratio(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    medians, errors = [], []
    for one in (first, second):
        low, median, high = np.percentile(one, (25, 50, 75))
        medians.append(max(float(median), 1e-9))
        errors.append(_MEDIAN_ERROR * _SPREAD * float(high - low) / medians[-1] / float(np.sqrt(len(one))))
    return medians[1] / medians[0], math.hypot(*errors)


def write_images(images: Path, target: Path, memory: PhaseMemory, pages: Path, modes: Modes, pattern: str) -> None:
    """Put the phase's images into the folder `target`, the others as links, and the pages with some replaced."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(mode=0o700)
    for entry in images.iterdir():
        if entry.name != pages.name:
            os.link(entry, target / entry.name)
    memory.write(target / pages.name, modes, pattern)


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
