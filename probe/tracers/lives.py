# SPDX-License-Identifier: Apache-2.0
"""Tell the time of a program from that of the processes it starts, and refuse where they leave none for phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkpoint.errors import ProgramUnsupported
from checkpoint.process.children import Child, Children
from probe.formats.arrays import BoolArray, FloatArray

EARLY_SECONDS = 10.0
"""Within which a user is to be told of a refusal that the beginning of a run shows."""

_BEFOREHAND = 2.0
"""Of these, what the tool's start takes, and a traced run that showed a launcher."""

JUDGED_SECONDS = EARLY_SECONDS - _BEFOREHAND
"""From when on a run under way is judged by what it has shown, from the start of its process."""

MOST_OUTSIDE = 0.5
"""Share of the run that may pass in processes that no phase shows."""

_ALWAYS = 0.9
"""Share of the run beside a child from which on it counts as never ending, while the run is under way."""

_MOST_WITH_THREADS = 0.8
"""Share of the intervals in which other threads ran, from which on they are taken to run by themselves."""

_NAMED = 3
_SHORTEST = 1e-9

ADVICE = "probe the program that does the work by itself, or name it with --program"


class WorkedByChildren(ProgramUnsupported):
    """Processes that the program starts do most of its work. `so_far`: only the beginning of the run tells so."""

    def __init__(self, message: str, *, so_far: bool = False) -> None:
        super().__init__(message)
        self.so_far = so_far


@dataclass(frozen=True)
class Lives:
    """Stretches of time in which children lived, seconds of the monotonic clock, apart and in order, K x 2.

    `lived`: until the last of them had ended. `present`: those, and when the program waited for one that had ended.
    A checkpoint holds the program without its children, so that none may live then, and the region waits for none. One
    that has ended before, and is waited for behind it, is missed by nobody.
    """

    lived: FloatArray
    present: FloatArray

    @staticmethod
    def of(children: Sequence[Child], now: float) -> Lives:
        """`now` stands for an end that was not seen yet."""
        lived = [(c.began, now if c.ended is None else c.ended) for c in children]
        waited = [(c.kept or c.ended or c.began, c.gone) for c in children if c.gone is not None]
        return Lives(_union(lived), _union([*lived, *waited]))

    def beside(self, edges: FloatArray) -> BoolArray:
        """Which of the M intervals between M + 1 `edges` have a child in them."""
        return covered(self.present, edges) > 0

    def beside_threads(self, active: Sequence[tuple[float, float]], edges: FloatArray) -> BoolArray:
        """Those, and the intervals in which another thread of the program ran, where it does not in nearly all.

        What the first thread waits for there would not come in a probe. A thread that runs all the time, by a clock, is
        nothing that the first waits for.
        """
        beside = self.beside(edges)
        ran: BoolArray = covered(_union(active), edges) > 0
        return beside | ran if ran.mean() < _MOST_WITH_THREADS else beside

    def own_seconds(self, edges: FloatArray, cpu: FloatArray) -> FloatArray:
        """Seconds of each interval that were the program's own, (M,); `cpu`: what it computed itself in them.

        While children live it waits for them, but for what it computes.
        """
        whole = np.diff(edges)
        own = np.maximum(whole - covered(self.lived, edges), cpu)
        return np.clip(own, np.minimum(_SHORTEST, whole), whole)


def starting(name: str, starts: Sequence[float], edges: FloatArray) -> BoolArray:
    """Which of the intervals between `edges` have a start of a thread in them, whose threads share the work.

    No phase lies there: nobody would give the thread counters of its own. Raises ProgramUnsupported where nothing else
    is left.
    """
    found = np.zeros(len(edges) - 1, dtype=bool)
    if starts:
        at = np.searchsorted(edges, np.array(starts), side="right") - 1
        found[np.clip(at, 0, len(found) - 1)] = True
        if found[1:-1].all():
            raise ProgramUnsupported(
                f"{name}: threads were started {len(starts)} times, in each of its {len(found)} intervals: use its "
                "thread pool, a shorter --interval, or one thread"
            )
    return found


def _union(stretches: Sequence[tuple[float, float]]) -> FloatArray:
    merged: list[list[float]] = []
    for began, ended in sorted(stretches):
        if merged and began <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], ended)
        else:
            merged.append([began, ended])
    return np.array(merged, dtype=np.float64).reshape(-1, 2)


def covered(stretches: FloatArray, edges: FloatArray) -> FloatArray:
    """Seconds of each interval between `edges` that lie in one of the stretches (apart, in order)."""
    if not len(stretches):
        return np.zeros(len(edges) - 1)
    sums = np.cumsum(stretches[:, 1] - stretches[:, 0])
    so_far = np.stack([np.concatenate([[0.0], sums[:-1]]), sums], axis=1)
    return np.diff(np.interp(edges, stretches.ravel(), so_far.ravel()))


def longest_first(children: Sequence[Child]) -> list[str]:
    """Their commands, that of the one that lived longest first."""
    return [c.command for c in sorted(children, key=lambda c: c.began - (c.ended or float("inf")))]


def named(commands: Sequence[str]) -> str:
    """How many processes there are and what they execute, for a sentence."""
    distinct = list(dict.fromkeys(commands))
    more = f" and {len(distinct) - _NAMED} others" * (len(distinct) > _NAMED)
    return f"{len(commands)}: " + ", ".join(distinct[:_NAMED]) + more


def share_of(children: Children, own_cpu: float) -> float:
    """Of the CPU time so far, what children had; `own_cpu`: CPU seconds of the program itself."""
    return children.cpu() / max(children.cpu() + own_cpu, _SHORTEST)


def worked_by(name: str, processes: Sequence[Child], share: float, *, so_far: bool = False) -> WorkedByChildren:
    """The refusal of a program whose children have this share of the CPU time."""
    return WorkedByChildren(
        f"{name}: {share:.0%} of its CPU time is that of processes it starts ({named(longest_first(processes))}); "
        f"{ADVICE}",
        so_far=so_far,
    )


def refuse_by_time(name: str, children: Children, began: float, now: float, own_cpu: float) -> None:
    """Raise ProgramUnsupported where children had most of the time from `began` to `now`, or lived nearly all of it.

    `own_cpu`: CPU seconds of the program itself so far.
    """
    processes = children.processes()
    if not processes or now <= began:
        return
    commands, share = longest_first(processes), share_of(children, own_cpu)
    if share > MOST_OUTSIDE:
        raise worked_by(name, processes, share)
    present = float(covered(Lives.of(processes, now).present, np.array([began, now]))[0])
    if present > _ALWAYS * (now - began):
        raise ProgramUnsupported(
            f"{name}: processes it starts live beside it nearly all the time ({named(commands)}), and no checkpoint "
            f"can be taken then; switch them off, or {ADVICE}"
        )


def refuse_outliving(name: str, living: Sequence[Child]) -> None:
    """Raise ProgramUnsupported where processes live on after the program has ended."""
    if living:
        raise ProgramUnsupported(
            f"{name}: ended, and processes that it started go on ({named(longest_first(living))}): what they "
            f"take cannot be told; keep it in the foreground (an option of its own), or {ADVICE}"
        )


def refuse_without_room(name: str, commands: Sequence[str], intervals: int) -> None:
    """Refuse a program in each of whose intervals one of these processes lives. Raises ProgramUnsupported."""
    raise ProgramUnsupported(
        f"{name}: in each of its {intervals} intervals lives a process that it started ({named(commands)}), and no "
        f"checkpoint can be taken then; choose a shorter --interval, or {ADVICE}"
    )
