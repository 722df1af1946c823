# SPDX-License-Identifier: Apache-2.0
"""Counts on request: by the processor, call by call, and by a tracer in another run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from probe.emulation.counting.blocks import CountedBlocks
from probe.emulation.counting.calls import Calls, Strace
from probe.emulation.counting.hardware import EVENTS, Counter, Event
from probe.emulation.tree import Tree
from probe.emulation.usage import AMOUNT, LEVEL, Column, Endpoint, Usage
from probe.emulation.watchers import Ended, Watcher
from probe.formats.arrays import FloatArray

NOT_TRACED = "calls are not traced; --trace-calls has strace do so"

_LONGEST_WAIT = 3.0
"""Times the median: an interval of the traced run that took longer has waited for something, and did not compute."""

_BLOCKS = {"block_read": "reading", "block_written": "writing"}
_SOCKETS = ("socket_received", "socket_sent")


class CounterWatcher(Watcher):
    """Instructions and cycles, where the machine counts them; floating-point operations, which nothing counts."""

    def __init__(self, events: Mapping[str, Event] = EVENTS) -> None:
        self._events = events
        self._counters: dict[str, Counter] = {}
        self.columns = {name: Column(AMOUNT, event.unit, "", "not looked for yet") for name, event in events.items()}
        missing = "no counter of this kind is the same on all processors"
        self.columns["flops"] = Column(AMOUNT, "operations", "", missing)

    def begin(self, supervisor: int) -> None:
        for name, event in self._events.items():
            try:
                counter = self._counters[name] = Counter(event, supervisor)
                source = f"perf_event_open, {'user code and kernel' if counter.whole else 'user code alone'}"
                self.columns[name] = Column(AMOUNT, event.unit, source)
            except OSError as error:
                missing = f"this machine does not count them (perf_event_open: {error.strerror})"
                self.columns[name] = Column(AMOUNT, event.unit, "", missing)

    def look(self, tree: Tree) -> Mapping[str, float]:
        return {name: value for name, one in self._counters.items() if (value := one.read()) is not None}

    def finish(self, ended: Ended) -> Mapping[str, float]:
        """The counts of all processes that there were."""
        return self.look(Tree(None, ()))

    def notes(self) -> Sequence[str]:
        shared = sorted(name for name, one in self._counters.items() if one.shared)
        return [f"counted for a part of the time, and extrapolated: {', '.join(shared)}"] if shared else []

    def give_up(self) -> None:
        while self._counters:
            self._counters.popitem()[1].close()


class CallWatcher(Watcher):
    """Sizes of blocks, sample by sample, and bytes of sockets. `trace` False: columns that say why they are empty."""

    def __init__(self, trace: bool) -> None:
        self._trace, self._calls = trace, Calls()
        self._strace: Strace | None = None
        self._looks = 0
        self._name(NOT_TRACED)

    def _name(self, missing: str) -> None:
        source = "" if missing else "strace"
        blocks = {
            name: Column(LEVEL, "B", source and f"{source}: median of the calls {how} in the sample", missing)
            for name, how in _BLOCKS.items()
        }
        sockets = {name: Column(AMOUNT, "B", source and f"{source}: calls on sockets", missing) for name in _SOCKETS}
        self.columns = {**blocks, **sockets}

    def begin(self, supervisor: int) -> None:
        if not self._trace:
            return
        try:
            self._calls.besides = str(supervisor)
            self._strace = Strace(supervisor, self._calls)
            self._name("")
        except OSError as error:
            self._name(str(error))

    def look(self, tree: Tree) -> Mapping[str, float]:
        if self._strace is None:
            return {}
        self._looks += 1
        # The first look is left out of the profile.
        return self._values((math.nan, math.nan) if self._looks == 1 else self._calls.blocks())

    def _values(self, blocks: tuple[float, float]) -> Mapping[str, float]:
        found = dict(zip(_BLOCKS, blocks, strict=True))
        return found | dict(zip(_SOCKETS, map(float, self._calls.socket_totals()), strict=True))

    def finish(self, ended: Ended) -> Mapping[str, float]:
        if self._strace is None:
            return {}
        self._strace.wait()
        return self._values(self._calls.blocks(last=True))

    def notes(self) -> Sequence[str]:
        return [] if self._strace is None else ["calls were traced: the command took longer for it"]

    def give_up(self) -> None:
        if self._strace is not None:
            self._strace.end()

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The other ends of all connections that traced calls moved bytes over."""
        return tuple(Endpoint(end, port, float(got), float(put)) for end, port, got, put in self._calls.endpoints())


def with_counted_blocks(usage: Usage, counted: CountedBlocks) -> Usage:
    """The profile with columns `instructions`, where no hardware counter has them, and `flops`.

    Where the command had several processes the columns say why they are empty. Samples get their parts by CPU time: a
    tracer slows all code down, but not all of it alike, and its own times are those of the wall.
    """
    columns, values = dict(usage.header.columns), dict(usage.values)
    source = f"blocks counted by {counted.tracer} in a run by itself, placed by CPU time"
    several = counted.processes > 0 or usage.total("processes") not in (None, 1.0)
    one = "the command has several processes, and a tracer counts one" if several else ""
    found = {"instructions": (counted.instructions, one), "flops": (counted.operations, one or counted.missing)}
    for name, (amounts, missing) in found.items():
        if name in columns and not columns[name].missing:
            continue
        unit = "instructions" if name == "instructions" else "operations"
        columns[name] = Column(AMOUNT, unit, "" if missing else source, missing)
        values[name] = np.full(usage.samples, np.nan) if missing else _placed(amounts, counted.seconds, usage)
    return Usage(replace(usage.header, columns=columns), usage.end, values)


def _placed(amounts: FloatArray, seconds: FloatArray, usage: Usage) -> FloatArray:
    """What of `amounts` belongs to each sample: both runs are at one place after one share of their work."""
    used = np.cumsum(np.nan_to_num(usage.column("cpu_user")))
    if not used[-1]:
        used = usage.end
    computed = np.minimum(seconds, _LONGEST_WAIT * np.median(seconds))
    place = np.concatenate([[0.0], np.cumsum(computed)])
    total = np.concatenate([[0.0], np.cumsum(amounts)])
    reached = np.interp(used / used[-1], place / place[-1], total)
    return np.asarray(np.diff(reached, prepend=0.0))
