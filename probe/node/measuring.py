# SPDX-License-Identifier: Apache-2.0
"""Restoring and timing the phases of a probe on this machine, one after the other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from checkpoint.criu.tool import Criu
from checkpoint.errors import NodeUnfit, PhaseFailed, ProbeError
from checkpoint.restore.criu_restore import CriuAgent, PhaseAgent, RegionTime, RestoreJob
from checkpoint.restore.direct_restore import DirectAgent, DirectRefused
from probe.formats.phase_record import CRIU, DIRECT
from probe.node.facts import granted_processors
from probe.node.yardsticks import Yardsticks

DEFAULT_REPEATS = 5
"""Repeats of each phase that a prediction rests on."""

GROUP_BYTES = 1 << 30
"""Unpacked phases that are on disk at the same time."""

OTHER_WORK, ARRIVING = "disturbed", "arriving"
"""Why a repeat does not count: others had the processor, or the probe was still being received."""

LEAST_UNDISTURBED = 3
"""Repeats that must have been left alone for the disturbed ones not to count."""


@dataclass(frozen=True)
class MeasuredPhase:
    """Repeats of one phase; none where it failed, `failure` says why. `restorer` is what restored it (DIRECT, CRIU)."""

    phase: int
    times: tuple[RegionTime, ...]
    failure: str = ""
    error: ProbeError | None = None
    restorer: str = CRIU
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Restorers:
    """What phases are restored with here: the direct restorer's file, CRIU, or both; how they are confined."""

    direct: Path | None = None
    criu: Criu | None = None
    only_recorded_calls: bool = False
    touch_in_order: bool = False

    def start(self, restorer: str, job: RestoreJob, scratch: Path, cpu: int | None) -> PhaseAgent:
        """An agent for one phase. Raises as CriuAgent and DirectAgent do."""
        if restorer == DIRECT:
            assert self.direct is not None
            return DirectAgent(
                job, self.direct, scratch=scratch, cpu=cpu, only_recorded_calls=self.only_recorded_calls,
                touch_in_order=self.touch_in_order,
            )  # fmt: skip
        assert self.criu is not None
        return CriuAgent(job, self.criu, scratch=scratch, cpu=cpu)


def measuring_cpu() -> int | None:
    """The processor to pin measured processes to: the last one allowed, None on a single-processor machine."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[-1] if len(allowed) > 1 else None


_OPENMP = "OMP_NUM_THREADS"
_FEWER = {name: "node --v8-pool-size=0 --single-threaded" for name in ("node", "nodejs")}
"""How programs by these names are given fewer threads, and most others."""


def check_processors(name: str, threads: int, cpu: int | None) -> None:
    """Raise NodeUnfit where fewer processors are allowed here than `threads` threads need at the same time, or the time
    of fewer. `cpu`: one that this process keeps off; `name` stands in the message."""
    mask = os.sched_getaffinity(0) | ({cpu} if cpu is not None else set())
    allowed = max(1, int(min(len(mask), granted_processors())))
    if threads > allowed:
        raise NodeUnfit(
            f"{name}: {threads} threads, but {allowed} processors allowed here (taskset, cgroup, --cpus-per-task): run "
            f"it where there are more, or build the probe with fewer threads ({_FEWER.get(Path(name).name, _OPENMP)})"
        )


@contextmanager
def away_from(cpu: int | None) -> Iterator[None]:
    """Keep this process off the processor that is measured on."""
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before - {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Judge(Protocol):
    """Tells the repeats that count from those that something else disturbed."""

    def begin(self) -> None:
        """The next repeat is about to be made."""

    def why_not(self, phase: int, restorer: str, time: RegionTime) -> str:
        """OTHER_WORK, ARRIVING, or "" if the repeat just made, of this phase by this restorer, was left alone."""


@dataclass(frozen=True)
class PhaseToMeasure:
    """A phase and how its images come to be where the job says (`unpack`; None: they are there already), which
    takes about `size` bytes while it is measured. `fall_back`: CRIU takes over where the direct restorer refuses.
    `there`: as long as that lasts all its images are there; each repeat begins and ends it."""

    job: RestoreJob
    restorer: str = CRIU
    fall_back: bool = False
    unpack: Callable[[Path], None] | None = None
    size: int = 0
    there: Callable[[], AbstractContextManager[None]] = nullcontext


def measure_phases(
    phases: Sequence[PhaseToMeasure],
    restorers: Restorers,
    *,
    repeats: int,
    scratch: Path,
    cpu: int | None,
    progress: Callable[[float], None],
    after_round: Callable[[int], None] | None = None,
    judge: Judge | None = None,
    finished: Callable[[MeasuredPhase], None] | None = None,
    least: int = LEAST_UNDISTURBED,
    yardsticks: Yardsticks | None = None,
) -> list[MeasuredPhase]:
    """Time every phase `repeats` times, in rounds: all phases once, then all again.

    A node's speed changes for seconds at a time (clock, neighbours). Repeats made one after the other would all meet
    the same speed, and a phase would seem slow; in rounds a slow stretch costs each phase one repeat, which the median
    drops. `after_round` gets the number of rounds made. Repeats that `judge` finds disturbed are made again, in at
    most `repeats` + 1 extra rounds; where fewer than `least` were left alone the others count too, but for those
    ARRIVING; 0 for what is added to repeats that there are. Phases that are unpacked first are taken in groups of at
    most GROUP_BYTES; `finished` gets each phase's result when its group is done. A phase that fails does not stop the
    others; what is wrong with this machine (no privilege, no CRIU) does. `yardsticks` are read after each repeat: the
    next phase is restored and warmed up before it is timed, in caches of its own.
    """
    results: list[MeasuredPhase] = []
    most = repeats if judge is None else 2 * repeats + 1
    for group in _groups(phases):
        with ExitStack() as cleanup:
            measured = [_Measured(phase, restorers, scratch, cpu, cleanup, yardsticks) for phase in group]
            for number in range(most):
                for position, one in enumerate(measured):
                    one.repeat(repeats, judge)
                    share = min(number + (position + 1) / len(group), repeats) / repeats
                    progress((len(results) + share * len(group)) / len(phases))
                if after_round is not None:
                    after_round(number + 1)
                if all(one.is_done(repeats) for one in measured):
                    break
            done = [one.result(min(repeats, least)) for one in measured]
        results += done
        if finished is not None:
            for one_result in done:
                finished(one_result)
    return results


def _groups(phases: Sequence[PhaseToMeasure]) -> Iterator[list[PhaseToMeasure]]:
    group: list[PhaseToMeasure] = []
    for phase in phases:
        if group and sum(p.size for p in group) + phase.size > GROUP_BYTES:
            yield group
            group = []
        group.append(phase)
    if group:
        yield group


class _Measured:
    """One phase while its group is measured. What it starts and unpacks, `cleanup` takes away."""

    def __init__(
        self,
        phase: PhaseToMeasure,
        restorers: Restorers,
        scratch: Path,
        cpu: int | None,
        cleanup: ExitStack,
        yardsticks: Yardsticks | None,
    ) -> None:
        self._phase, self._restorers, self._scratch, self._cpu = phase, restorers, scratch, cpu
        self._restorer = phase.restorer
        self._times: list[RegionTime] = []
        self._disturbed: list[RegionTime] = []
        self._error: ProbeError | None = None
        self._cleanup, self._yardsticks = cleanup, yardsticks
        self._agent: PhaseAgent | None = None
        if phase.unpack is not None:
            cleanup.callback(shutil.rmtree, phase.job.images, ignore_errors=True)

    def is_done(self, repeats: int) -> bool:
        return self._error is not None or len(self._times) >= repeats

    def repeat(self, repeats: int, judge: Judge | None) -> None:
        if self.is_done(repeats):
            return
        try:
            with self._phase.there():
                self._once(judge)
        except PhaseFailed as error:
            self._error = error
        except DirectRefused as error:
            self._error = error
            if self._phase.fall_back and not self._times and not self._disturbed:
                self._restorer, self._agent, self._error = CRIU, None, None
                self.repeat(repeats, judge)

    def _once(self, judge: Judge | None) -> None:
        if self._agent is None:
            if self._phase.unpack is not None and not self._phase.job.images.exists():
                self._phase.unpack(self._phase.job.images)
            self._agent = self._restorers.start(self._restorer, self._phase.job, self._scratch, self._cpu)
            self._cleanup.callback(self._agent.close)
        if judge is not None:
            judge.begin()
        time = self._agent.repeat()
        why_not = judge.why_not(self._phase.job.phase, self._restorer, time) if judge is not None else ""
        if self._yardsticks is not None:
            time = replace(time, yardsticks=self._yardsticks.read())
        if why_not != ARRIVING:
            (self._disturbed if why_not else self._times).append(time)

    def result(self, least: int) -> MeasuredPhase:
        phase = self._phase.job.phase
        if self._error is not None:
            return MeasuredPhase(phase, (), str(self._error), self._error, self._restorer)
        warnings = set(self._agent.warnings) if self._agent is not None else set()
        times = list(self._times)
        if len(times) < least:
            times += self._disturbed
            warnings.add("other work ran on this node all the time: repeats that it disturbed had to be used")
        return MeasuredPhase(phase, tuple(times), restorer=self._restorer, warnings=tuple(sorted(warnings)))
