# SPDX-License-Identifier: Apache-2.0
"""Watch a phase with its own data and with others: at the same time, where there are processors and memory for both."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

from checkpoint.flow.flow import Contents, Flow, Plan
from checkpoint.flow.watching import FlowWatcher
from probe.node.facts import available_memory

_RUNS_TAKE = 3
"""Two runs together take at most so many times the phase's memory: each as much, and what is written into one of them
is made meanwhile."""


def watch_both(
    watcher: FlowWatcher,
    plan: Plan,
    contents: Contents,
    *,
    cpu: int | None,
    size: int,
    check: Callable[[Flow], None],
    meanwhile: Callable[[], None],
) -> tuple[Flow, Flow]:
    """The flows with its own data and with these contents, their steps noted in the same way.

    `cpu`: the processor that the watcher has runs on; `size`: bytes of the phase. `check` gets the first flow, and
    raises where that is not what was recorded; `meanwhile` is called once, while both run."""
    begin: Callable[[], None] | None = meanwhile
    at_once = _room_for_both(cpu, size)
    while True:
        others = replace(plan, contents=contents)
        if at_once:
            with _on_all(cpu) as second, watcher.begun(plan) as first, watcher.begun(others, cpu=second) as with_others:
                if begin:
                    begin()
                real = first()
                check(real)
                other = with_others()
        else:
            real = watcher.watch(plan)
            check(real)
            other = watcher.watch(replace(others, in_copies=real.in_copies))
            if begin:
                begin()
        begin = None
        if other.in_copies == real.in_copies:
            return real, other
        plan = replace(plan, in_copies=False)


def _room_for_both(cpu: int | None, size: int) -> bool:
    available = available_memory()
    processors = os.sched_getaffinity(0) | ({cpu} if cpu is not None else set())
    return len(processors) > 1 and (available is None or available > _RUNS_TAKE * size)


@contextlib.contextmanager
def _on_all(cpu: int | None) -> Iterator[int | None]:
    """Use `cpu` too, which this process keeps off while something is timed there; another one, for the second run."""
    if cpu is None:
        yield None
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before | {cpu})
    try:
        yield min(before - {cpu}, default=cpu)
    finally:
        os.sched_setaffinity(0, before)
