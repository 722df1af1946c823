# SPDX-License-Identifier: Apache-2.0
"""Warn about unreliable probes and predictions, or refuse them: every limit is in LIMITS.

Runs that differ are judged where they are compared (probe/pipeline/validate.py, probe/pipeline/outputs.py).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from checkpoint.errors import Diverged, ProbeError, ProgramTooShort, Unpredictable
from probe.formats.arrays import FloatArray
from probe.formats.choices import RANDOM
from probe.formats.manifest import Manifest
from probe.formats.phase_record import DIRECT, PhaseRecord
from probe.formats.reference import Reference
from probe.formats.selection import Selection
from probe.node.measuring import DEFAULT_REPEATS, MeasuredPhase
from probe.node.quietness import DISTURBED
from probe.prediction.inputs import scatter_of
from probe.prediction.sharing import Sharing

if TYPE_CHECKING:
    import scipy.sparse as sp


@dataclass(frozen=True)
class Limit:
    """Values above `warn` are worth a warning; above `refuse` there is no prediction."""

    warn: float
    refuse: float


@dataclass(frozen=True)
class Limits:
    """All limits (docs/limits.md, "When there is no prediction"). Shares are of the run's time.

    asleep: the run's wall time in which the program slept: waited for disks, networks, timers.
    waited: full reference runs' wall time in which something else had the processor.
    outside: time in processes that the program starts, or in its wrapper: other than that with the phases.
    stubbed: how much longer the program takes with stubs beside it than without, whatever they execute.
    unlike: intervals that have less than half of their counted instructions in common with their representative.
    single: phases of one interval, which the rest of the run does not repeat.
    held_out: error of the estimate for intervals that selection did not see: same code, other times.
    restore: median error of restored regions against the same regions in the timing run.
    cost: seconds of one `probe run` over those of the program.
    stretch: wall over CPU time of a phase's repeats, over what is usual for it; judged for half the time.
    judged: intervals from which on `unlike`, `single` and `held_out` refuse: of fewer they say little.
    """

    asleep: Limit = Limit(0.05, 0.5)
    waited: Limit = Limit(0.2, 0.95)
    outside: Limit = Limit(0.1, 0.9)
    stubbed: Limit = Limit(0.3, 1.0)
    drawn: Limit = Limit(0.3, 0.5)
    unlike: Limit = Limit(0.1, 0.5)
    single: Limit = Limit(0.3, 0.9)
    held_out: Limit = Limit(0.1, 0.5)
    restore: Limit = Limit(0.1, 0.5)
    cost: Limit = Limit(1.0, 50.0)
    stretch: Limit = Limit(1.0 + DISTURBED, 20.0)
    judged: int = 30


LIMITS = Limits()

HANDED_OUT = 0.3
"""In place of the limit `restore.refuse` where one thread hands out the work: such regions are other pieces of it."""

EXCUSED = 2.0
"""Standard deviations of full runs: regions may be off by as much more where equal runs of the program differ so."""

HALF = 0.5
"""Shared part of two intervals' instructions; below this shared part, they are no repetition."""


def doubts_of_reference(reference: Reference) -> list[str]:
    """Warnings from the full runs. Raises Unpredictable."""
    return [
        *_judged(
            reference.blocked_share, LIMITS.asleep,
            f"the program sleeps for {reference.blocked_share:.0%} of its run: it waits for disks, networks or timers; "
            "its phases cannot show how long it would wait elsewhere",
        ),
        *_judged(
            reference.waited_share, LIMITS.waited,
            f"something else had the processor for {reference.waited_share:.0%} of the reference runs: build on an "
            "idle node",
        ),
    ]  # fmt: skip


def doubts_of_outside(share: float, commands: Sequence[str]) -> list[str]:
    """Warnings from the share of the run in other processes, which execute `commands`. Raises Unpredictable."""
    return _judged(
        share, LIMITS.outside,
        f"{share:.0%} of the run's time is that of other processes ({', '.join(list(dict.fromkeys(commands))[:3])}): "
        "no phase shows how long they would take elsewhere",
    )  # fmt: skip


def doubts_of_stubs(reference: Reference, stubbed: float) -> list[str]:
    """Warnings where runs with a few stubs, of which the fastest took `stubbed` seconds by the program's clock, took
    longer than the plain ones. Raises Diverged.

    Some programs take as much memory as they find, and stubs take addresses: what is traced is then another run.
    """
    apart = stubbed / reference.early_seconds - 1.0
    return _judged(
        apart, LIMITS.stubbed,
        f"the program takes {apart + 1.0:.1f} times as long where our stubs have some of its addresses ({stubbed:.2g} "
        f"s for {reference.early_seconds:.2g} s): what it does may depend on how much memory it finds behind its heap; "
        "fix the size that it takes, by its own option",
        refuse=apart > LIMITS.stubbed.refuse + _excused(reference),
        error=Diverged,
    )  # fmt: skip


def doubts_of_draws(reference: Reference, same: float) -> list[str]:
    """Warnings where plain runs, each with random numbers of its own, and the fastest run with the build's, of `same`
    seconds by the program's clock, took unlike times. Raises Diverged."""
    plain = reference.early_wall if reference.clock == "wall" else reference.early_cpu
    least, most = min(same, *plain), max(same, *plain)
    return _judged(
        most / least - 1.0, LIMITS.drawn,
        f"the program takes {least:.2g} to {most:.2g} s, by the random numbers that it draws: any other run may take "
        "as much more or less; fix its seed",
        error=Diverged,
    )  # fmt: skip


def _blurred(reference: Reference) -> bool:
    """Whether what other load did is in the times, and cannot be told from what the program did."""
    return reference.clock == "wall" and reference.waited_share > LIMITS.waited.warn


def doubts_of_selection(
    selection: Selection, vectors: sp.csr_array, times: FloatArray, reference: Reference
) -> list[str]:
    """Warnings from phases that stand for what is not like them. Raises Unpredictable.

    vectors: of the intervals, M x B; times: their seconds, (M,).
    """
    many = len(times) >= LIMITS.judged
    found = doubts_of_code(selection, vectors, times)
    alone = sum(phase.time_share for phase in selection.phases if len(phase.members) == 1)
    found += _judged(
        alone, LIMITS.single,
        f"phases with {alone:.0%} of the time occur once: a shorter --interval or a longer run shows whether they "
        "repeat",
        refuse=many and not _blurred(reference),
    )  # fmt: skip
    if selection.held_out_error is not None:
        found += _judged(
            selection.held_out_error, LIMITS.held_out,
            f"the phases miss the time of intervals held out by {selection.held_out_error:.0%}: equal code takes "
            "different times, by its data; allow more --max-phases, or a shorter --interval",
            # All of a program of one phase is alike: whichever interval stands for it, its ratio is the program's.
            refuse=many and selection.k_bic > 1 and not _blurred(reference),
        )  # fmt: skip
    return found


TRACED_UNLIKE = Limit(0.1, 0.65)
"""The limits of `unlike` by times of the traced run, which the stubs made: cold code with many of them is slowest."""


def doubts_of_code(
    selection: Selection, vectors: sp.csr_array, times: FloatArray, limit: Limit | None = None
) -> list[str]:
    """Warnings from intervals that execute other code than those that stand for them. `limit`: else that of `unlike`.
    Raises Unpredictable."""
    if selection.options.method == RANDOM:
        return []
    apart = unlike_share(selection, vectors, times)
    return _judged(
        apart, limit or LIMITS.unlike,
        f"intervals with {apart:.0%} of the time execute mostly other code than those that stand for them: the run "
        "repeats itself too little; allow more --max-phases",
        refuse=len(times) >= LIMITS.judged,
    )  # fmt: skip


def unlike_share(selection: Selection, vectors: sp.csr_array, times: FloatArray) -> float:
    """Share of the time in intervals less than half of whose instructions are their representative's.

    Intervals in which nothing was counted cannot be told, and are not among them.
    """
    totals = np.asarray(vectors.sum(axis=1), dtype=np.float64).ravel()
    unlike = 0.0
    for phase in selection.phases:
        own = vectors[[phase.representative]].toarray().ravel() / max(totals[phase.representative], 1.0)
        if not own.any():
            continue
        members = phase.members[totals[phase.members] > 0]
        rows = vectors[members]
        row = np.repeat(np.arange(len(members)), np.diff(rows.indptr))
        common = np.minimum(rows.data / totals[members][row], own[rows.indices])
        shared = np.bincount(row, weights=common, minlength=len(members))
        unlike += float(times[members[shared < HALF]].sum())
    return unlike / float(times.sum())


def doubts_of_phases(
    phases: Sequence[PhaseRecord],
    reference: Reference,
    measured: Sequence[MeasuredPhase],
    sharing: Sharing | None = None,
) -> list[str]:
    """Warnings from restored phases: their times, and what one `probe run` of them costs. Raises Unpredictable,
    ProgramTooShort; Diverged where `sharing` says that one thread hands out the work, and regions do differ."""
    found = []
    asleep = [p.id for p in phases if p.in_run.wall > 0 and 1.0 - p.in_run.cpu / p.in_run.wall > LIMITS.asleep.refuse]
    # By the CPU clock the program never sleeps: then something else had the processor, as it may have had here.
    if asleep and reference.clock == "wall" and not _blurred(reference):
        found.append(
            f"the regions of phases {asleep} mostly wait for disks, networks or timers: their times are those of this "
            "node's, and elsewhere of what is there"
        )
    errors = [abs(e) for p in phases if (e := p.restore_error(reference.clock)) is not None]
    if errors:
        error = statistics.median(errors)
        # Other load does not excuse these: the regions would be other pieces of work on a quiet machine, too.
        if sharing is not None and sharing.hands_out and error > HANDED_OUT:
            raise Diverged(
                f"restored regions take {error:.0%} more or less than in the run, in the median: the thread that tells "
                f"places does {sharing.marking:.2%} of the work and hands out the rest, so that each time the others "
                "are at another piece of it; build the probe with one thread, or where each thread has its own part "
                "of the work and all meet after each step"
            )
        found += _judged(
            error, LIMITS.restore,
            f"restored regions take {error:.0%} more or less than in the run, in the median: try --warmup auto, or a "
            "longer --interval",
            refuse=not _blurred(reference) and error > LIMITS.restore.refuse + _excused(reference),
        )  # fmt: skip
    cost = probing_seconds(measured)
    return found + _judged(
        cost / statistics.median(reference.wall), LIMITS.cost,
        f"running the probe takes {cost:.2g} s, the program itself {statistics.median(reference.wall):.2g} s: run the "
        "program, or give it more work",
        error=ProgramTooShort,
    )  # fmt: skip


def _excused(reference: Reference) -> float:
    """By how much regions may be off besides, where equal runs of the program are."""
    scatter = scatter_of(reference.all_runs)
    return 0.0 if scatter is None else EXCUSED * math.sqrt(scatter.variance)


def probing_seconds(measured: Sequence[MeasuredPhase]) -> float:
    """What DEFAULT_REPEATS of each phase take, restored directly where that was measured."""
    seconds: dict[int, float] = {}
    for one in sorted(measured, key=lambda m: m.restorer == DIRECT):
        if one.times:
            seconds[one.phase] = statistics.median(t.restore + t.warm + t.wall for t in one.times)
    return DEFAULT_REPEATS * sum(seconds.values())


def doubts_of_run(manifest: Manifest, measured: Sequence[MeasuredPhase], seconds: float) -> list[str]:
    """Warnings from the repeats of one `probe run` that predicted `seconds`. Raises Unpredictable where other work had
    most of the processor."""
    found = []
    by_id = {phase.id: phase for phase in manifest.phases}
    known = [(by_id[m.phase], m) for m in measured if m.times]
    # More repeats than usual were asked for, or what a budget was there for.
    took = sum(
        min(1.0, DEFAULT_REPEATS / len(m.times)) * sum(t.restore + t.warm + t.wall for t in m.times) for _, m in known
    )
    if took > LIMITS.cost.warn * seconds:
        found.append(
            f"timing the phases took {took:.2g} s, the program itself would take {seconds:.2g} s: run the program"
        )
    whole = sum(phase.time_share for phase, _ in known)
    starved = sum(p.time_share for p, m in known if _stretch(p, m, manifest.reference) > LIMITS.stretch.refuse)
    if whole and starved > whole / 2:
        raise Unpredictable(
            f"other work had the processor: phases with {starved:.0%} of the time took over {LIMITS.stretch.refuse:g} "
            "times as long as their CPU time; run the probe when this node is idle"
        )
    return found


def said_once(of_run: Sequence[str], of_build: Sequence[str]) -> tuple[str, ...]:
    """Warnings of a run, then those of its probe's build: but not twice that running the program is better."""
    if any(said.startswith("timing the phases took") for said in of_run):
        of_build = [said for said in of_build if not said.startswith("running the probe takes")]
    return tuple(dict.fromkeys([*of_run, *of_build]))


def _stretch(phase: PhaseRecord, measured: MeasuredPhase, reference: Reference) -> float:
    """Wall over CPU time of the median repeat, over what that was on the reference node where programs may sleep."""
    here = statistics.median(t.wall / max(t.cpu, 1e-9) for t in measured.times)
    if reference.clock == "cpu":
        return here
    there = phase.restored(measured.restorer)
    return here / max(1.0, statistics.median(w / max(c, 1e-9) for w, c in zip(there.wall, there.cpu, strict=True)))


def _judged(
    value: float, limit: Limit, sentence: str, *, refuse: bool = True, error: type[ProbeError] = Unpredictable
) -> list[str]:
    if refuse and value > limit.refuse:
        raise error(sentence)
    return [sentence] if value > limit.warn else []
