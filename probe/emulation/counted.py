# SPDX-License-Identifier: Apache-2.0
"""Watchers of what is counted on request: by the processor, and call by call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from probe.emulation.counting.calls import Calls, Strace
from probe.emulation.counting.hardware import EVENTS, Counter, Event
from probe.emulation.tree import Tree
from probe.emulation.usage import AMOUNT, LEVEL, Column, Endpoint
from probe.emulation.watchers import Ended, Watcher

NOT_TRACED = "calls are not traced; --trace-calls has strace do so"

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
