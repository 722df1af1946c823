# SPDX-License-Identifier: Apache-2.0
"""Refuse, while a program is traced, what it would still hold at every phase: sockets to elsewhere, shared memory.

A later stage would find it too, after minutes. What is open for a while only is none of this: a phase where it is
closed can stand for the others.
"""

from __future__ import annotations

import time

from checkpoint.process.descriptors import OTHER, outside, refusal

LASTING_SECONDS = 8.0
"""What a program holds at every look for so long, it holds while it computes."""

_OFTEN, _SELDOM = 0.1, 0.5
_OFTEN_UNTIL = 2.0
_FEWEST_LOOKS = 3
_LOOKING_SHARE = 0.02
"""Of the time, what all looks may take but for the first: one for memory that others have goes through all of /proc."""
_START_SHARE = 0.1
"""What has been there since this share of a shorter run, and was there at its end, was there at every phase."""

_PASSING = "a pipe ("
"""Its other end is a child's, which may end before the computation begins: only the end of the run tells."""


class OutsideLooks:
    """What the program called `name`, which began at `began` (time.monotonic), holds and no probe can."""

    def __init__(self, name: str, began: float) -> None:
        self._name, self._began = name, began
        self._next = self._last = began
        self._since: dict[str, tuple[float, str]] = {}
        self._looks = 0

    def look(self, pid: int, now: float) -> None:
        """Look, if it is time for that. Raises ProgramUnsupported for what lasts."""
        if now < self._next:
            return
        looked = time.monotonic()
        found = {_thing(fault): fault for fault in outside(pid)}
        self._looks += 1
        took = time.monotonic() - looked if self._looks >= _FEWEST_LOOKS else 0.0
        self._next = now + max(_OFTEN if now - self._began < _OFTEN_UNTIL else _SELDOM, took / _LOOKING_SHARE)
        self._last = now
        self._since = {thing: (self._since.get(thing, (now,))[0], fault) for thing, fault in found.items()}
        self._refuse(now - LASTING_SECONDS, passing=False)

    def end(self) -> None:
        """The run is over. Raises ProgramUnsupported for what was held from its beginning to its end."""
        if self._looks >= _FEWEST_LOOKS:
            self._refuse(self._began + _START_SHARE * (self._last - self._began), passing=True)

    def _refuse(self, since: float, *, passing: bool) -> None:
        lasting = [
            fault
            for first, fault in self._since.values()
            if first <= since and (passing or not fault.startswith(_PASSING))
        ]
        if lasting:
            raise refusal(self._name, lasting)


def _thing(fault: str) -> str:
    """What is held, whichever other process has it at this look."""
    return fault.partition(OTHER)[0]
